"""`ratchet check`: validates a loop file, and shows how much evidence its decisions need."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import ConfigError, RatchetError, Retryable
from ratchet.contracts.loop import Loop
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import loop_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, table, watched
from ratchet.flows.cli.setup.evidence_check import bound_split, golden, newest_freeze, power
from ratchet.flows.cli.setup.finding import Finding
from ratchet.flows.cli.setup.sample_check import sampled
from ratchet.flows.cli.setup.suite_check import suites
from ratchet.flows.cli.setup.teacher_check import teacher
from ratchet.flows.cli.terminal import say
from ratchet.flows.cli.unread import unread_text

if TYPE_CHECKING:
    from ratchet.flows.composition.installation import Installation
    from ratchet.flows.engine.context import LineContext


@click.command()
@loop_argument
@json_option
def check(loop: str, as_json: bool) -> None:
    """Validate a loop file.

    LOOP is the path of a loop file, or the name of a line. Checks keys, schedule, scorers, sources, GPUs and servers. Also estimates which
    gains the gate can see, and which loss of ratings the rollout can exclude with the line's users.
    """
    with watched(as_json, f"reading {loop} …") as progress:
        installation = open_installation(progress)
        context = installation.context(named_loop(installation, loop, as_json, reads=True), any_file=True)
        owned = [("error", "line", text) for text in _foreign(installation, context)]
        parts = (
            _model,
            _names,
            _schedule,
            _rewards,
            _sources,
            sampled,
            _trainers,
            _machine,
            _jobs,
            _compute,
            _serving,
            _checks,
            bound_split,
            golden,
            _safety,
            suites,
            _privacy,
            _quarantine,
            teacher,
            newest_freeze,
            power,
        )
        findings = owned + [finding for part in parts for finding in part(context)]
    bad = [text for level, _, text in findings if level == "error"]
    if as_json:
        print_json({"line": context.line, "ok": not bad, "findings": [{"level": a, "about": b, "text": c} for a, b, c in findings]})
    else:
        marks = {"ok": "✓", "note": "·", "warning": "!", "error": "✗"}
        table(f"{loop}: line {context.line}", ["", "check", "result"], [[marks[a], b, c] for a, b, c in findings])
    for level, about, text in findings:
        if level == "warning" and not as_json:
            say(f"warning: {about}: {text}")
    if bad:
        raise ConfigError(f"{loop}: " + "; ".join(bad))


LOOKED_AT = 200
"""Files of a source whose content is looked at."""


def _foreign(installation: Installation, context: LineContext) -> list[str]:
    """Return the reason if the line belongs to another loop file."""
    try:
        installation.refuse_other(context.line, context.folder / context.file)
    except ConfigError as error:
        return [str(error)]
    return []


def _names(context: LineContext) -> list[Finding]:
    """Say by which model names callers get answers, and what a change of `served_model` will do."""
    from ratchet.flows.engine.line import unrecorded_name

    line, name = context.line_view(), context.loop.line.served_model
    known = line.served_model or (unrecorded_name(context, line) if line.base else "") or name
    former = [one for one in (known, *line.former_names) if one != name]
    if not former:
        return [("ok", "served_model", f"callers use the model name {name!r}")]
    kept = f"still get answers until `ratchet names {context.line} --end NAME`"
    if known == name:
        return [("note", "served_model", f"callers use the model name {name!r}; {', '.join(map(repr, former))} {kept}")]
    text = f"the line answers to {known!r} now; once this file is served, callers use {name!r}, and {', '.join(map(repr, former))} {kept}"
    return [("warning", "served_model", text)]


def _model(context: LineContext) -> list[Finding]:
    """Say what cannot work with the champion's tokenizer and chat template. Without it, a job or the gate finds it after an approval."""
    from ratchet.flows.composition.before_training import look_at_model

    champion = context.line_view().champion
    if champion is None:
        return []
    try:
        files = champion.model.whole.files
        folder = context.artifacts.fetch(files, context.scratch / "models" / files)
    except RatchetError:  # `ratchet doctor` and `verify` are about damage
        return []
    try:
        found = look_at_model(folder, context.loop.serving)
    except Retryable as error:
        return [("note", "model", f"{champion.tag}: tokenizer and chat template were not looked at: {error}")]
    errors = [("error", "model", f"{champion.tag}: {one}") for one in found.problems]
    warnings = [("warning", "model", f"{champion.tag}: {one}") for one in found.warnings]
    return [*errors, *warnings] or [("ok", "model", f"{champion.tag}: an answer can end, and is trained on as it is served")]


def _schedule(context: LineContext) -> list[Finding]:
    trigger = context.loop.trigger
    schedule = f"cron {trigger.cron} in {trigger.timezone}, or " if trigger.cron else ""
    return [("ok", "trigger", f"{schedule}{trigger.new_traces} new traces")]


def _machine(context: LineContext) -> list[Finding]:
    """Warn if a job asks for GPUs that this machine lacks. The service may run on another machine, so that this is no error."""
    wanted, here = context.loop.training.gpus, visible_gpus()
    if context.loop.cluster is not None or wanted <= here:
        return _shared_gpus(context, here)
    has = "no NVIDIA GPU" if here == 0 else f"{here} GPU" + "s" * (here > 1)
    remedy = f"on this machine, set training.gpus to {here} or less; to train on a cluster, add a section [cluster]"
    return [("warning", "training.gpus", f"{wanted} GPUs are asked for, but this machine has {has} and no cluster is configured; {remedy}")]


def _jobs(context: LineContext) -> list[Finding]:
    """Say which methods have no job on the configured machines: batches that these cannot divide, or a cluster without room for them.

    A plan would reject these methods. It is an error if none is left.
    """
    from ratchet.flows.composition.samples import samples

    found: list[tuple[str, str]] = []
    methods = samples(context.loop, {method: context.trainers[method] for method in context.loop.training.methods})
    for method, job, problem in methods:
        try:
            if context.fits and job:
                context.fits(job)
        except ConfigError as error:
            problem = str(error)
        if problem and context.loop.training.built_in(method):
            found.append((method, problem))
    level = "error" if len(found) == len(methods) else "warning"
    return [(level, f"training.{method}", f"no job can run: {problem}") for method, problem in found]


def _compute(context: LineContext) -> list[Finding]:
    """Look whether the engine of the heavy work can be used. A cluster that is away is no error: the service waits for it."""
    from ratchet.flows.composition.compute import open_compute

    engine = context.loop.compute.engine
    if engine != "inline":
        context.progress(f"looking for the engine {engine} …", 0, 0)
    try:
        return [("ok", "compute", open_compute(context.loop.compute).reach())]
    except Retryable as error:
        return [("warning", "compute", f"{error}; ingest and freeze wait for it")]
    except ConfigError as error:
        return [("error", "compute", str(error))]


def _shared_gpus(context: LineContext, here: int) -> list[Finding]:
    """Refuse a search that takes all GPUs of a machine whose model servers use them, too, unless its time of the day is declared."""
    training = context.loop.training
    if context.loop.cluster is not None or not 0 < training.gpus == here:
        return []
    shares = f"a training job takes all {here} GPUs of this machine" if here > 1 else "a training job takes the only GPU of this machine"
    if training.window is not None:
        told = f"begins between {training.window} ({context.loop.trigger.timezone}); a first training may go on for {training.timeout:g} s"
        return [("ok", "training.gpus", f"{shares}, which also serves, and {told}")]
    if not training.search.budget:
        return [("note", "training.gpus", f"{shares}, which also serves; training.window can restrict it to a time of the day")]
    remedy = 'declare the time of the day in which both share it, for example training.window = "22:00-06:00", or set the budget to 0'
    told = f"a search would hold it for {training.search.budget:g} s and more while it also serves"
    return [("error", "training.gpus", f"{shares}, and {told}; {remedy}")]


def visible_gpus() -> int:
    """Return the number of NVIDIA GPUs of this machine according to nvidia-smi; 0 if the program is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listed = subprocess.run([program, "--list-gpus"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def _rewards(context: LineContext) -> list[Finding]:
    found: list[Finding] = [("ok", "reward", f"{v.name} {v.version}, tier {v.tier}, weight {v.weight:g}") for v in context.rewards.versions]
    for belief in context.rewards.beliefs():
        found.append(("note", "judge", f"{belief.name}: {'believed' if belief.believed else 'not believed, weight 0'}: {belief.reason}"))
    if not context.rewards.unseen():
        found.append(
            ("error", "reward", "no scorer for unseen answers, so the gate cannot score a candidate; add exact_match or final_number")
        )
    return found


def _sources(context: LineContext) -> list[Finding]:
    found: list[Finding] = []
    for source in context.loop.sources:
        opened = next((one for one in context.sources if one.name == source.name), None)
        if source.kind == "receiver":
            found.append(("ok", "source", f"{source.name}: OTLP/HTTP on loopback, started by `ratchet serve`"))
        elif not hasattr(opened, "look"):
            found.append(("ok", "source", f"{source.name}: kind {source.kind}"))
        else:
            place = source.path or str(source.options.get("base_url", ""))
            found.append(_files(source.name, opened, place if "://" in place else str(context.folder / place)))
    if not context.loop.sources:
        found.append(("error", "source", "no source; add a [[sources]] section"))
    return found


def _files(name: str, source: Any, place: str) -> Finding:
    """Look at the files of a source. Files that no reader takes are a note, and no file that is read is one too."""
    try:
        count, unread = source.look(LOOKED_AT)
    except RatchetError as error:
        return ("error", "source", str(error))
    if unread:
        return ("warning", "source", f"{name}: {place}: {unread_text(unread)}")
    if not count:
        return ("note", "source", f"{name}: {place} has no file yet")
    return ("ok", "source", f"{name}: {place}")


def _trainers(context: LineContext) -> list[Finding]:
    """Complete the recipes of trainers of other packages. Those of built-in trainers were checked when the file was read."""
    found: list[Finding] = []
    for method, trainer in context.trainers.items():
        if context.loop.training.built_in(method):
            continue
        about = f"{method} on {context.loop.training.trainer(method)}"
        try:
            recipe = trainer.recipe(context.loop.training.recipe(method))
        except ConfigError as error:
            found.append(("error", "trainer", f"{about}: {error}"))
        else:
            found.append(("ok", "trainer", f"{about}: {len(recipe)} settings"))
    return found


def _checks(context: LineContext) -> list[Finding]:
    shown = ", ".join(f"{one.name} ({one.distribution} {one.version})" for one in context.versions.get("check", ()))
    return [("ok", "gate", f"checks, in this order: {shown}")]


def _serving(context: LineContext) -> list[Finding]:
    can = context.server.capabilities
    listed = ", ".join(f"{name} {'yes' if has else 'no'}" for name, has in can.model_dump().items())
    found: list[Finding] = [("ok", "server", f"{context.loop.serving.kind}: {listed}")]
    if not can.sampling and context.loop.probe.prompts:
        found.append(
            ("error", "server", "the server does not support sampling, which the probe needs; set probe.prompts = 0 or use another server")
        )
    found += _adapters(context)
    return [*found, *([] if context.router.attribution else _unattributed(context.loop))]


NEEDS_ATTRIBUTION = ("unit", "error_margin", "latency_ratio", "slow_margin", "min_people", "min_requests", "metrics", "metrics_options")
"""Settings of the rollout that have no meaning if the router does not attribute answers to versions."""


def _unattributed(loop: Loop) -> list[Finding]:
    """Say what a rollout can decide if the router does not attribute answers, and refuse settings that would have no effect."""
    name, rollout = loop.serving.router, loop.rollout
    about = f"{name}: answers are not attributed to versions"
    remedy = 'use serving.router = "kubernetes" or "local"'
    if not rollout.mirror:
        return [
            ("error", "router", f"{about}, so only mirrored prompts could decide a rollout, and rollout.mirror is 0; set it, or {remedy}")
        ]
    found: list[Finding] = [
        (
            "warning",
            "router",
            f"{about}. A rollout decides by up to {rollout.mirror} mirrored prompts and by the duration of its steps; ratings, errors and "
            "latency of users decide nothing, and a session may be answered by both versions",
        )
    ]
    default = type(rollout)()
    return [
        *found,
        *(
            ("error", "router", f"rollout.{setting} needs attribution, which the router {name!r} does not give; remove it, or {remedy}")
            for setting in NEEDS_ATTRIBUTION
            if getattr(rollout, setting) != getattr(default, setting)
        ),
    ]


def _adapters(context: LineContext) -> list[Finding]:
    """Say which methods train adapters that are served as such, and which are served as whole models all the same."""
    from ratchet.flows.engine.choice.adapters import cannot_share, no_adapter

    training = context.loop.training
    if context.loop.serving.adapters == "merged":
        return []
    found: list[Finding] = []
    shared, champion = context.loop.serving.adapters == "shared", context.line_view().champion
    for method in training.methods:
        why = no_adapter(training, method)
        if why is not None:
            own = " in a process of its own" if shared else ""
            found.append(("note", "adapters", f"{method}: served as a whole model{own}, because {why}"))
        elif not shared:
            found.append(("ok", "adapters", f"{method}: the server of a candidate loads the adapter over its base model"))
        elif champion is not None and (problem := cannot_share(context, champion.model.whole, _rank(training.recipe(method)["lora"]))):
            found.append(("error", "adapters", f"{method}: {problem}"))
        else:
            found.append(("ok", "adapters", f"{method}: the process of the champion loads the adapter of a candidate"))
    return found


def _rank(lora: Any) -> int:
    """Return the rank in the setting `lora` of a recipe, 0 if it is not stated: a default fits every server."""
    return int(lora.get("rank") or 0) if isinstance(lora, dict) else 0


def _safety(context: LineContext) -> list[Finding]:
    from ratchet.gates.safety.prompts import all_prompts

    settings = context.loop.gate.safety
    if settings is None:
        return [("note", "gate", "no section gate.safety; the gate does not see whether a candidate refuses harmful prompts")]
    try:
        prompts = all_prompts(context.folder / settings.prompts if settings.prompts else None)
    except ConfigError as error:
        return [("error", "gate", str(error))]
    harmful = sum(one.expected == "refuse" for one in prompts)
    return [("ok", "gate", f"safety: {harmful} harmful and {len(prompts) - harmful} harmless prompts")]


def _privacy(context: LineContext) -> list[Finding]:
    from ratchet.materializer.privacy.masking import Masker

    masker = Masker(context.loop.privacy)
    if context.loop.privacy.ner is not None:
        context.progress("loading the models of names …", 0, 0)
    try:
        masker.ready()
    except ConfigError as error:
        return [("error", "privacy", str(error))]
    return [("ok", "privacy", f"masked at ingest: {', '.join(masker.kinds) or 'nothing'}")]


def _quarantine(context: LineContext) -> list[Finding]:
    from ratchet.flows.core.quarantine_alarm import alarm_text, is_alarm

    settings = context.loop.quarantine
    counts = context.datasets.quarantine.counts(context.clock.now().timestamp() - settings.alarm_window)
    if not counts.read:
        return []
    alarm = is_alarm(counts, settings, context.line_view().alarm is not None)
    advice = f"; see `ratchet quarantine list {context.line}`" if alarm else ""
    return [("warning" if alarm else "ok", "quarantine", f"in the last {settings.alarm_window / 3600:g} h, {alarm_text(counts)}{advice}")]
