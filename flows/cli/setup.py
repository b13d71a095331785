"""`ratchet init`, `check` and `adopt`: the commands that set up a line."""

from __future__ import annotations

from pathlib import Path

import click

from contracts.errors import ConfigError, Permanent
from flows.cli.output import actor, json_option, loop_argument, open_installation, print_json, table, watched
from flows.cli.terminal import say
from flows.engine.context import LineContext

_TEMPLATE = """\
# Loop file: the settings of one model line. Validate it with `ratchet check {name}`.

[line]
name = "{line}"                  # lower-case letters, digits, hyphens
served_model = "{line}"          # model name in client requests

[[sources]]                      # sources of traces and feedback
name = "receiver"
kind = "receiver"                # built-in OTLP/HTTP endpoint; or "otlp" / "jsonl" with a path

[[rewards]]                      # scorers; at least one must be able to score unseen answers
name = "exact_match"             # answer equals reference, ignoring whitespace

[[rewards]]
name = "user_feedback"           # user ratings: for labels only

[holdout]
fraction = 0.2                   # share of prompts that are never used for training
# golden = "golden.jsonl"        # one {{"prompt": …, "reference": …}} per line; used by the gate only

[gate]
min_effect = 0.0                 # the lower confidence bound of the improvement must exceed this

[rollout]
steps = [1, 5, 25, 100]          # percent of sessions routed to the candidate
margin = 0.05                    # non-inferiority margin on the mean rating

[approvals.training]
mode = "person"                  # "person": an approval is required; "auto": no approval
[approvals.rollout]
mode = "person"

[trigger]
cron = "0 3 * * *"
timezone = "UTC"
new_traces = 1000                # also open a cycle after this many new traces
"""


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default="loop.toml")
@click.option("--line", default="my-model", show_default=True, help="Name of the model line.")
def init(path: Path, line: str) -> None:
    """Create a starter loop file at PATH (default: loop.toml).

    An existing file is not overwritten.
    """
    from flows.config.load import parse_loop

    text = _TEMPLATE.format(line=line, name=path.name)
    import tomllib

    parse_loop(tomllib.loads(text), "the new loop file")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} already exists; choose another path or remove the file") from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    say(f"wrote {path}; next steps:\n  ratchet check {path}\n  ratchet adopt {path} MODEL_FOLDER\n  ratchet serve {path}")


@click.command()
@loop_argument
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--by", default=actor, show_default="your login name", help="Your name, recorded in the ledger without verification.")
@json_option
def adopt(loop: Path, model: Path, by: str, as_json: bool) -> None:
    """Register MODEL as version 0 of the line of LOOP and serve it.

    LOOP is the path of a loop file. MODEL is a folder in Hugging Face format with safetensors weights. It becomes the first champion
    of the line.
    """
    from flows.engine.context import TURN_SECONDS
    from flows.engine.line import adopt as adopt_model
    from flows.engine.reconcile import reconcile

    with watched(as_json) as progress:
        context = open_installation(progress).context(loop)
        version = adopt_model(context, model, by)
        repairs = reconcile(context, TURN_SECONDS)
        is_served = version.tag in {endpoint.tag for endpoint in context.server.running()}
    if as_json:
        print_json({**version.model_dump(mode="json"), "url": context.router.url(), "mended": repairs})
    else:
        for line in repairs:
            say(line)
    if not is_served:
        raise Permanent(
            f"line {context.line}: {version.tag} is adopted by {by} as version 0, but its model server does not run; remove the cause, "
            f"then run `ratchet serve {loop}`"
        )
    if not as_json:
        served = f"{context.loop.line.served_model!r} at {context.router.url()}/v1"
        say(f"line {context.line}: {version.tag} adopted by {by} as version 0; served as {served}")


@click.command()
@loop_argument
@json_option
def check(loop: Path, as_json: bool) -> None:
    """Validate the loop file at the path LOOP.

    Checks keys, scorers, sources and servers. Also estimates how many prompts and ratings the gate and the rollout need for a decision.
    """
    context = open_installation().context(loop)
    parts = (_rewards, _sources, _trainers, _serving, _checks, _golden, _power)
    findings = [finding for part in parts for finding in part(context)]
    bad = [text for level, _, text in findings if level == "error"]
    if as_json:
        print_json({"line": context.line, "ok": not bad, "findings": [{"level": a, "about": b, "text": c} for a, b, c in findings]})
    else:
        marks = {"ok": "✓", "note": "·", "error": "✗"}
        table(f"{loop}: line {context.line}", ["", "check", "result"], [[marks[a], b, c] for a, b, c in findings])
    if bad:
        raise ConfigError(f"{loop}: " + "; ".join(bad))


Finding = tuple[str, str, str]


def _rewards(context: LineContext) -> list[Finding]:
    found: list[Finding] = [("ok", "reward", f"{v.name} {v.version}, tier {v.tier}, weight {v.weight:g}") for v in context.rewards.versions]
    if not context.rewards.unseen():
        found.append(
            ("error", "reward", "no scorer for unseen answers, so the gate cannot score a candidate; add exact_match or final_number")
        )
    return found


def _sources(context: LineContext) -> list[Finding]:
    found: list[Finding] = []
    for source in context.loop.sources:
        path = context.folder / source.path if source.path else None
        if source.kind not in ("otlp", "jsonl", "receiver"):
            found.append(("ok", "source", f"{source.name}: kind {source.kind}"))
        elif path is None:
            found.append(("ok", "source", f"{source.name}: OTLP/HTTP on loopback, started by `ratchet serve`"))
        elif path.exists():
            found.append(("ok", "source", f"{source.name}: {path}"))
        else:
            found.append(("error", "source", f"{source.name}: {path} does not exist"))
    if not context.loop.sources:
        found.append(("error", "source", "no source; add a [[sources]] section"))
    return found


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
    if not context.router.attribution:
        found.append(("error", "router", "the router does not attribute answers to versions, which the rollout needs; use another router"))
    return found


def _golden(context: LineContext) -> list[Finding]:
    golden = context.loop.holdout.golden
    if golden is None:
        return [("note", "gate", "no golden set; the gate uses only the holdout")]
    path = context.folder / golden
    if not path.exists():
        return [("error", "gate", f"the golden set {path} does not exist")]
    lines = sum(1 for line in path.read_bytes().splitlines() if line.strip())
    return [("ok", "gate", f"golden set of {lines} prompts")]


def _power(context: LineContext) -> list[Finding]:
    """Estimate the detectable effects of the gate, and the number of ratings and the time that the rollout needs."""
    from flows.core.triggers import evaluation_level
    from gates.rollout_judge import ratings_to_decide
    from gates.statistics import detectable_effect

    loop = context.loop
    found: list[Finding] = []
    for n in (loop.gate.min_prompts, 300, 1000):
        effect = detectable_effect(n, evaluation_level(loop))
        found.append(
            (
                "note",
                "gate",
                f"{n} prompts detect a true improvement of {effect:.3f} with power 0.8 (standard deviation of differences 0.5)",
            )
        )
    ratings = ratings_to_decide(loop.rollout)
    found.append(
        ("note", "rollout", f"non-inferiority within {loop.rollout.margin:g} needs about {ratings} ratings if both versions are equal")
    )
    cursor = context.datasets.cursor()
    line = context.line_view()
    if cursor.feedback and cursor.newest and line.rows:
        days = max((cursor.newest - line.rows[0].at).total_seconds() / 86_400, 1e-6)
        wait = ratings / (cursor.feedback / days)
        found.append(
            ("note", "rollout", f"at the current feedback rate ({cursor.feedback} in {days:.2f} days), this takes {wait:.2g} days")
        )
    return found
