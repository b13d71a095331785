"""The findings of `ratchet check` about the evidence of a line: its newest freeze, and what gate and rollout can decide with it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from ratchet.contracts.errors import ConfigError, RatchetError
from ratchet.contracts.mirror import MIRROR_PEOPLE, MIRROR_SHARE
from ratchet.flows.cli.output import span
from ratchet.flows.cli.setup.finding import Finding

if TYPE_CHECKING:
    from pathlib import Path

    from ratchet.contracts.loop import Loop
    from ratchet.contracts.serving import Arm
    from ratchet.contracts.steps import FreezeResult
    from ratchet.flows.core.folds.cycle import CycleView
    from ratchet.flows.engine.context import LineContext


def newest_freeze(context: LineContext) -> list[Finding]:
    """Warn about the data of the newest freeze: near-duplicates, masked answers, and scorers with no score or doubtful ones."""
    from ratchet.flows.core.data_notes import doubtful_scorers, prompt_warnings, silent_scorers, spare_holdout

    frozen = _newest(context)
    if frozen is None:
        return []
    known = {version.name for version in context.rewards.versions}
    silent, doubtful = (
        {name: why for name, why in found.items() if name in known}
        for found in (frozen.snapshot.silent_scorers, frozen.snapshot.doubtful_scorers)
    )
    held = spare_holdout(frozen.edition, frozen.snapshot.counts)
    return [
        *(("warning", "prompts", text) for text in prompt_warnings(frozen.snapshot)),
        *([("warning", "prompts", held)] if held else []),
        *(("warning", "reward", text) for text in [*silent_scorers(silent), *doubtful_scorers(doubtful)]),
    ]


def _newest(context: LineContext) -> FreezeResult | None:
    from ratchet.contracts.steps import FreezeResult

    return next((found for cycle in reversed(_cycles(context)) if (found := cycle.get(FreezeResult))), None)


def golden(context: LineContext) -> list[Finding]:
    """Count the golden prompts, and say how many a slice needs so that losses which add up over promotions are found."""
    name = context.loop.holdout.golden
    if name is None:
        return [("note", "gate", "no golden set; the gate uses only the holdout")]
    path = context.folder / name
    if not path.exists():
        return [("error", "gate", f"the golden set {path} does not exist")]
    from ratchet.gates.evaluation.earlier import rows_to_find

    slices = Counter(_slice_of(line) for line in path.read_bytes().splitlines() if line.strip())
    found = [("ok", "gate", f"golden set of {slices.total()} prompts"), *_edited(context, path)]
    judged = {part: rows for part, rows in slices.items() if rows >= context.loop.gate.min_slice}
    needs = {loss: rows_to_find(loss, len(judged) + 1) for loss in (0.03, 0.05, 0.1)}
    told = ", ".join(f"{loss:g}: {rows:,}" for loss, rows in needs.items())
    text = f"golden prompts that a slice needs so that a loss that has added up over promotions is found in four cases of five: {told}"
    short = [f"{part or 'prompts without a slice'} ({rows})" for part, rows in sorted(judged.items()) if rows < needs[0.1]]
    if short:
        text += f". Too few even for a loss of 0.1: {', '.join(short[:5])}" + (f" and {len(short) - 5} more" if len(short) > 5 else "")
    return [*found, ("note", "gate", text)]


def _edited(context: LineContext, path: Path) -> list[Finding]:
    """Warn if the golden set was edited since the edition by which candidates are judged was frozen."""
    from ratchet.flows.core.asking.parquet_rows import rows_of
    from ratchet.materializer.training_sets.holdout import read_golden

    edition = frozen.edition if (frozen := _newest(context)) else None
    if edition is None or edition.golden is None:
        return []
    columns = ["prompt_id", "reference", "slice"]
    try:
        now = set(read_golden(path, context.loop.holdout.skipped).select(columns).iter_rows())
        then = {tuple(row[name] for name in columns) for row in rows_of(context.artifacts.get(edition.golden), columns)}
    except ConfigError as error:
        return [("error", "gate", str(error))]
    except RatchetError:  # `ratchet doctor` and `verify` are about damage
        return []
    if not (changed := {row[0] for row in then ^ now}):
        return []
    every = context.loop.holdout.rotate_after
    left = every - context.line_view().evaluations % every
    text = (
        f"{len(changed):,} prompts of the golden set differ from edition {edition.number}, by which candidates are judged; "
        f"the file as it is now counts from the next edition on, after {left} more {'evaluation' if left == 1 else 'evaluations'}"
    )
    return [("warning", "gate", text)]


def bound_split(context: LineContext) -> list[Finding]:
    """Report settings that the next cycle would refuse, because they differ from those by which the prompts of the line were split."""
    from ratchet.materializer.training_sets.split import forbidden_changes

    with suppress(RatchetError):  # `ratchet doctor` and `verify` are about damage
        return [("error", "holdout", text) for text in forbidden_changes(context.loop, context.artifacts)]
    return []


def _slice_of(line: bytes) -> str:
    """Return the slice of a row of the golden set; empty without one. What is wrong with a row is reported elsewhere."""
    try:
        row = json.loads(line)
    except ValueError:
        return ""
    return str(row.get("slice") or "") if isinstance(row, dict) else ""


def power(context: LineContext) -> list[Finding]:
    """Estimate which gains the gate can see, and which margins the rollout can decide with the line's ratings."""
    gains: list[Finding] = [("note", "gate", text) for text in _visible_gains(context)]
    return [*gains, *_unmeasured(context.loop), *_development(context), *decidable(context)]


DISCORDANCE = 0.3
"""Share of prompts that two models of a line typically answer with different success."""


def _unmeasured(loop: Loop) -> list[Finding]:
    """Warn of methods whose length nothing measures, because the line has no development prompts and their runs have no folds."""
    from ratchet.contracts.jobs.training import Method
    from ratchet.trainers.cross_validation import may_have_folds
    from ratchet.trainers.recipes.completion import KINDS, complete

    training, found = loop.training, list[str]()
    if loop.holdout.development > 0:
        return []
    for name in filter(training.built_in, training.methods):
        with suppress(ConfigError):  # an invalid recipe is reported with the jobs
            recipe = complete(KINDS[Method(name)], training.recipe(name))
            folded = not training.on_nemo(name) and may_have_folds(recipe, training.nodes, training.gpus)
            found += [name.upper()] if recipe.steps == "auto" and not folded else []
    text = "has no cross-validation here, so with holdout.development = 0 the length of its runs is not measured"
    remedy = "set holdout.development = 0.15 before the first cycle, because it cannot be raised later"
    return [("warning", "training", f"{name} {text}; {remedy}, or remove the method") for name in found]


def _development(context: LineContext) -> list[Finding]:
    """Say what the development prompts of the newest training set can tell a run that ends by their scores."""
    from ratchet.contracts.data.datasets import CROSS_VALIDATED_BELOW, CROSS_VALIDATED_LEAST
    from ratchet.contracts.steps import PlanResult
    from ratchet.flows.core.searches.search import LEAST_PROMPTS
    from ratchet.trainers.length import LEAST

    newest = next(((cycle, found) for cycle in reversed(_cycles(context)) if (found := cycle.get(PlanResult))), None)
    if newest is None:
        return []
    cycle, planned = newest
    prompts, folded = planned.dataset.development_prompts, planned.dataset.cross_validated_prompts
    if prompts < CROSS_VALIDATED_BELOW and folded >= CROSS_VALIDATED_LEAST:
        by = f"find their number of steps by cross-validation over training prompts in {folded} clusters"
        known = '. With line.start_from = "base", the start model would not know them' if cycle.start.cycle is not None else ""
        return [("note", "training", f"{prompts} development prompts: runs of SFT and DPO {by}, if the recipe has folds{known}")]
    if prompts < LEAST:
        return [("note", "training", f"{prompts} development prompts of {LEAST}: runs train for three passes and are not measured")]
    error = math.sqrt(DISCORDANCE / prompts)
    searched = "" if prompts >= LEAST_PROMPTS else f"; a search over recipes needs {LEAST_PROMPTS}"
    told = f"{prompts} development prompts tell models apart that differ by about {error:.2f} (one standard error)"
    return [("note", "training", told + searched)]


def decidable(context: LineContext) -> Iterator[Finding]:
    """Yield findings about the margin that the rollout can decide with the champion's ratings of the past time of one step."""
    from ratchet.gates.rollout_forecast import forecast, ratings_needed, time_needed
    from ratchet.gates.sequential import MOST_RATINGS

    settings = context.loop.rollout
    if not context.router.attribution:  # the traces name no versions, so they show nothing about how long a decision takes
        if settings.mirror:
            yield _mirrored(context, None)
        return
    context.progress("reading the lake …", 0, 0)
    past = f"in the last {span(settings.max_seconds)}"
    live = _live(context, settings.max_seconds)
    if settings.mirror:
        yield _mirrored(context, live)
        return
    rated = live.rated if live else ()
    found = forecast(settings, rated)
    mirror = _mirror_remedy(context, live)
    if found is None:
        needed = f"a margin of {settings.margin:g} needs about {ratings_needed(settings):,} ratings if each is of another user{mirror}"
        yield "note", "rollout", f"fewer than two users have rated live answers {past}; {needed}"
        return
    who = f"{found.people:,} users gave {found.ratings:,.0f} ratings {past}"
    if not found.enough_people:
        enough = f"they count as {found.effective:.0f} of rollout.min_people = {settings.min_people} effective people per version"
        level, remedy = ("error", 'set rollout.unit = "session", or wait') if settings.unit == "user" else ("warning", "wait")
        yield level, "rollout", f"{who}; {enough}, so no rollout can be decided; {remedy} until more users rate{mirror}"
        return
    smallest = math.ceil(found.margin * 1000) / 1000
    decided = f"a step of rollout.max_seconds decides margins of {smallest:g} and more, if both versions are equal (probability 0.8)"
    if found.margin <= settings.margin:
        yield "ok", "rollout", f"{who}; {decided}"
        return
    times = time_needed(settings, rated)
    longer = f", or rollout.max_seconds to {times * settings.max_seconds:,.0f}" if times else ""
    by_session = ', or rollout.unit to "session"' if settings.unit == "user" else ""
    remedy = f"set rollout.margin to {smallest:g} or more{longer}{by_session}{mirror}"
    # Ratings above a limit per person do not count, so longer times would not help: the people themselves differ too much.
    never = settings.unit == "user" and times is None and found.ratings >= MOST_RATINGS * found.people
    yield "error" if never else "warning", "rollout", f"{who}; {decided}, not rollout.margin = {settings.margin:g}; {remedy}"


def _pairs(context: LineContext, live: Arm | None) -> tuple[int, str]:
    """Return the number of mirrored pairs that decide `rollout.margin`, and the assumed spread of their differences in words.

    The number of people is that of the live traffic; without any, the least one that can decide.
    """
    from ratchet.gates.rollout_forecast import pairs_needed
    from ratchet.gates.statistics import deviation_of

    newest = next((report for cycle in reversed(_cycles(context)) if (report := cycle.report)), None)
    overall = newest.comparison("overall") if newest else None
    known = overall is not None and overall.n > 1
    deviation = deviation_of(overall.difference) if overall is not None and known else math.sqrt(DISCORDANCE)
    spread = f"if the rewards of a pair differ with a standard deviation of {deviation:.2f}"
    people = max(MIRROR_PEOPLE, (live.users or 0) if live else 0)
    return pairs_needed(context.loop.rollout, deviation, people), spread + (", as in the newest evaluation" if known else ", assumed")


def _mirror_remedy(context: LineContext, live: Arm | None) -> str:
    """Return the setting of mirrored prompts that decides the margin, as the end of a remedy. Empty if it would not decide either."""
    if not context.rewards.unseen() or _few_people(live):
        return ""
    pairs, spread = _pairs(context, live)
    return f"; or set rollout.mirror to {pairs} or more: so many users' prompts, asked again at both versions, decide it ({spread})"


def _mirrored(context: LineContext, live: Arm | None) -> Finding:
    """Say whether the mirrored prompts of a rollout can decide `rollout.margin`."""
    settings = context.loop.rollout
    if not context.rewards.unseen():
        otherwise = ", or set rollout.mirror to 0" if context.router.attribution else ""
        return "error", "rollout", f"rollout.mirror needs a scorer for unseen answers; add one to [[rewards]]{otherwise}"
    pairs, spread = _pairs(context, live)
    needed = f"about {pairs:,} mirrored prompts decide rollout.margin = {settings.margin:g}, if both versions are equal ({spread})"
    if settings.mirror < pairs:
        return (
            "warning",
            "rollout",
            f"rollout.mirror = {settings.mirror} is too few: {needed}; set it to {pairs} or more, or widen rollout.margin",
        )
    if not context.router.attribution:
        return "note", "rollout", f"{needed}; they must be of at least {MIRROR_PEOPLE} people, whose applications send their traces"
    if live is None:
        return "note", "rollout", f"{needed}; there is no live traffic yet"
    people = live.users or 0
    who = f"{people:,} users sent {live.requests:,} requests in the last {span(settings.max_seconds)}"
    if _few_people(live):
        return (
            "warning",
            "rollout",
            f"{who}; mirrored prompts of fewer than {1 / MIRROR_SHARE:.0f} people decide nothing; wait for more users",
        )
    if live.requests < pairs:
        longer = f"set rollout.max_seconds to {pairs / max(1, live.requests) * settings.max_seconds:,.0f} or more, or widen rollout.margin"
        return "warning", "rollout", f"{who}; {needed}; {longer}"
    return "ok", "rollout", f"{who}; {needed}; near-duplicates and prompts that may not be used are not asked"


def _few_people(live: Arm | None) -> bool:
    return live is not None and live.users is not None and live.users < 1 / MIRROR_SHARE


def _live(context: LineContext, seconds: float) -> Arm | None:
    """Return the evidence of the champion's live answers in the last `seconds`. None if that cannot be measured."""
    champion, now = context.line_view().champion, context.clock.now()
    if champion is None:
        return None
    try:
        return context.metrics.evidence(champion.tag, "-", now - timedelta(seconds=seconds), now).champion
    except (RatchetError, ValueError):
        return None


def _visible_gains(context: LineContext) -> Iterator[str]:
    """Yield sentences about the smallest gains that the gate can see: for round numbers of prompts, and as the newest evaluation shows.

    A gain is visible if the gate shows it with probability 0.8. Its lower bound must exceed gate.min_effect.
    """
    from ratchet.flows.core.triggers import edition_history, evaluation_level
    from ratchet.gates.statistics import detectable_effect, deviation_of

    gate, history = context.loop.gate, edition_history(context.line_view(), context.loop.holdout.rotate_after)
    level = evaluation_level(context.loop, history)

    def gain(n: int, deviation: float = 0.5) -> float:
        return gate.min_effect + detectable_effect(n, level, deviation=deviation)

    least = gate.min_prompts
    more = "; ".join(f"{n:,} prompts: {gain(n):.2f}" for n in (300, 1000, 3000) if n > least)
    yield f"with {least} prompts the gate only sees gains above {gain(least):.2f}" + (f"; {more}" if more else "")
    newest = next((report for cycle in reversed(_cycles(context)) if (report := cycle.report)), None)
    overall = newest.comparison("overall") if newest else None
    if newest is not None and overall is not None:
        whole = newest.looks.clusters if newest.looks and newest.looks.stopped else overall.n
        seen = gain(whole, deviation_of(overall.difference))
        compared = f"{overall.n:,} prompts" if whole == overall.n else f"{overall.n:,} of {whole:,} prompts before it stopped"
        of_all = "" if whole == overall.n else " with all of them"
        yield f"the newest evaluation compared {compared}; with its spread, the gate sees gains above {seen:.2f}{of_all}"


def _cycles(context: LineContext) -> list[CycleView]:
    return [context.cycle_view(stream) for stream in context.ledger.streams(f"cycle/{context.line}/")]
