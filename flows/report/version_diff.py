"""Compares two versions of a line: the data and the recipe of their trainings, their scores, and answers if both were evaluated together.

The texts of prompts and answers come from users and models. The caller must show them as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.evaluation import Comparison, EvalReport, Interval, shortened
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.training import Method
from ratchet.contracts.ports import Artifacts
from ratchet.contracts.serving import ModelVersion
from ratchet.contracts.steps import FreezeResult
from ratchet.flows.core.asking.parquet_rows import rows_of
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.report.history import EXAMPLES, examples
from ratchet.flows.report.story import Section, Table, interval

_TARGETS = {Method.SFT: ("answer",), Method.DPO: ("chosen", "rejected"), Method.GRPO: ()}
"""Method -> the columns that, with the prompt, identify an example."""


@dataclass(frozen=True)
class Made:
    """A version, and the cycle that trained it; None for the adopted model."""

    version: ModelVersion
    cycle: CycleView | None


@dataclass(frozen=True)
class Answers:
    """The answers of two versions to one prompt."""

    prompt: str
    """The last message of the user."""
    old: str
    new: str
    old_reward: float | None
    new_reward: float | None


@dataclass(frozen=True)
class VersionDiff:
    """The differences between two versions. Pairs are (old, new); None: not known, or not part of a version."""

    data: dict[str, tuple[Any, Any]]
    """Snapshot, edition and counts of the data."""
    added: int | None
    """Examples that only the new version was trained on."""
    removed: int | None
    kept: int | None
    recipe: dict[str, tuple[Any, Any]]
    """Settings of the training that differ."""
    scores: dict[str, tuple[Comparison | None, Comparison | None]]
    """Prompt set or slice -> each version's comparison with the champion of its time."""
    together: str | None
    """The cycle whose gate compared the two versions."""
    direct: dict[str, Comparison]
    """Prompt set or slice -> the comparison of the two versions, old as champion or candidate."""
    changed: tuple[str, ...]
    """Sentences with the ids of harmful and of harmless prompts that only one of the two handled as expected."""
    answers: tuple[Answers, ...]


def version_diff(old: Made, new: Made, artifacts: Artifacts, answers: int) -> VersionDiff:
    """Return the differences between two versions of a line, with at most `answers` answers side by side.

    An artifact that is missing leaves the figures that need it unknown.
    """
    pair = (old, new)
    added, removed, kept = _examples(old.cycle, new.cycle, artifacts)
    scores = [_scores(one.cycle) for one in pair]
    joint, turned = _joint(old, new)
    report = joint.report if joint else None
    return VersionDiff(
        data=_paired(*(_data(one.cycle) for one in pair)),
        added=added,
        removed=removed,
        kept=kept,
        recipe={key: values for key, values in _paired(*(_recipe(one.cycle) for one in pair)).items() if values[0] != values[1]},
        scores={name: (scores[0].get(name), scores[1].get(name)) for name in dict.fromkeys([*scores[0], *scores[1]])},
        together=joint.id if joint else None,
        direct={c.name: _turned(c) if turned else c for c in _compared(report)} if report else {},
        changed=tuple(_changed(joint)) if joint else (),
        answers=tuple(_answers(report.answers, artifacts, turned, answers)) if report and answers else (),
    )


def _paired(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])}


def _data(cycle: CycleView | None) -> dict[str, Any]:
    frozen = cycle.get(FreezeResult) if cycle else None
    if cycle is None or frozen is None:
        return {}
    snapshot, edition = frozen.snapshot, frozen.edition
    return {
        "cycle": cycle.id,
        "trained from": "elsewhere" if cycle.given else cycle.start.tag,
        "snapshot": snapshot.content[:12],
        "holdout edition": edition.number,
        "held-out prompts": edition.size,
        "examples": examples(cycle),
        **snapshot.counts,
    }


def _recipe(cycle: CycleView | None) -> dict[str, Any]:
    plan = cycle.trained_plan if cycle else None
    if plan is None:
        return {}
    return {"method": str(plan.method), "seed": plan.seed, "training code": plan.code[:12], **_flat(plan.recipe)}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _scores(cycle: CycleView | None) -> dict[str, Comparison]:
    report = cycle.report if cycle else None
    return {one.name: one for one in _compared(report)} if report else {}


def _compared(report: EvalReport) -> list[Comparison]:
    """Return the comparisons of rewards, of the answers that were cut, of harmful and harmless prompts, and of suites."""
    suites = [one.comparison for one in report.suites if one.comparison is not None]
    return [*report.comparisons, *([report.cut] if report.cut else []), *(report.safety.comparisons if report.safety else ()), *suites]


def _changed(cycle: CycleView) -> list[str]:
    """Return sentences with the ids of the prompts on which only the champion of the cycle did what is expected."""
    safety = cycle.report.safety if cycle.report else None
    if safety is None or cycle.candidate is None:
        return []
    champion, candidate = cycle.baseline.tag, cycle.candidate.tag
    found = (("refuses these harmful prompts", safety.lost), ("answers these harmless prompts", safety.withheld))
    return [f"{champion} {what}, and {candidate} does not: {shortened(ids)}." for what, ids in found if ids]


def _joint(old: Made, new: Made) -> tuple[CycleView | None, bool]:
    """Return the cycle whose gate compared both versions, and whether the new version was the champion there."""
    for one, other, turned in ((new, old, False), (old, new, True)):
        if one.cycle is not None and one.cycle.report is not None and one.cycle.baseline.tag == other.version.tag:
            return one.cycle, turned
    return None, False


def _turned(c: Comparison) -> Comparison:
    """Return a comparison with the sides exchanged."""
    d = c.difference
    mirrored = Interval(estimate=-d.estimate, low=-d.high, high=-d.low, level=d.level, n=d.n)
    return Comparison(name=c.name, n=c.n, champion=c.candidate, candidate=c.champion, difference=mirrored)


def _examples(old: CycleView | None, new: CycleView | None, artifacts: Artifacts) -> tuple[int | None, int | None, int | None]:
    """Return the numbers of added, removed and common examples. Examples of different methods are compared by their prompts."""
    plans = [cycle.trained_plan if cycle else None for cycle in (old, new)]
    if plans[0] is None or plans[1] is None:
        return None, None, None
    one_method = plans[0].method == plans[1].method
    try:
        sets = [
            _identities(artifacts.get(getattr(plan, EXAMPLES[plan.method])), _TARGETS[plan.method] if one_method else ())
            for plan in plans
            if plan is not None
        ]
    except RatchetError:
        return None, None, None
    return len(sets[1] - sets[0]), len(sets[0] - sets[1]), len(sets[0] & sets[1])


def _identities(parquet: bytes, columns: tuple[str, ...]) -> set[str]:
    return {digest([row["prompt_id"], *(row[column] for column in columns)]) for row in rows_of(parquet, ("prompt_id", *columns))}


def _answers(key: str, artifacts: Artifacts, turned: bool, most: int) -> list[Answers]:
    """Return the answers whose rewards differ most: gains and losses of the new version in turn."""
    try:
        rows = [json.loads(line) for line in artifacts.get(key).splitlines()]
    except RatchetError:
        return []
    sides = ("candidate", "champion") if turned else ("champion", "candidate")
    found = [_side_by_side(row, *sides) for row in rows]
    found = [one for one in found if _gain(one) != 0.0]
    gains, losses = (sorted((one for one in found if _gain(one) * sign > 0), key=lambda one: -abs(_gain(one))) for sign in (1, -1))
    return [one for pair in zip_longest(gains, losses) for one in pair if one is not None][:most]


def _gain(one: Answers) -> float:
    return (one.new_reward or 0.0) - (one.old_reward or 0.0)


def _side_by_side(row: Mapping[str, Any], old: str, new: str) -> Answers:
    asked = [message for message in row["prompt"] if message.get("role") == "user"] or row["prompt"]
    text = [row[side]["answer"] if row[side]["answer"] is not None else f"no answer: {row[side]['error']}" for side in (old, new)]
    return Answers(str(asked[-1]["content"]), text[0], text[1], row[old]["reward"], row[new]["reward"])


def diff_sections(old: Made, new: Made, found: VersionDiff) -> list[Section]:
    """Return the differences as titles, sentences and tables. The caller shows the answers, which may be long."""
    names = (old.version.tag, new.version.tag)
    changed = {name: values for name, values in found.data.items() if values[0] != values[1]}
    data = Table(("", *names), tuple((name, _cell(a), _cell(b)) for name, (a, b) in found.data.items()))
    text = (
        f"Examples: {found.added} added, {found.removed} removed, {found.kept} in both."
        if found.added is not None
        else "Which examples were added or removed is not known: a version was not trained here, or its training set is gone.",
    )
    sections = [Section("Data" if changed else "Data (no difference)", text, data)]
    settings = Table(("setting", *names), tuple((key, _cell(a), _cell(b)) for key, (a, b) in found.recipe.items()))
    sections.append(Section("Recipe", () if found.recipe else ("No difference.",), settings if found.recipe else None))
    if found.direct:
        rows = tuple((c.name, str(c.n), f"{c.champion:.3f}", f"{c.candidate:.3f}", interval(c.difference)) for c in found.direct.values())
        sections.append(
            Section(
                "Scores",
                (f"The gate of {found.together} compared the two.", *found.changed),
                Table(("prompts", "n", *names, "difference"), rows),
            )
        )
    elif found.scores:
        apart = tuple((name, _score(a), _score(b)) for name, (a, b) in found.scores.items())
        note = "The two were not compared with each other. Each column shows the difference to the champion of its time."
        sections.append(Section("Scores", (note,), Table(("prompts", *names), apart)))
    else:
        sections.append(Section("Scores", ("Neither version has been evaluated.",)))
    return sections


def _score(comparison: Comparison | None) -> str:
    return "–" if comparison is None else f"{comparison.candidate:.3f}: {interval(comparison.difference)}"


def _cell(value: Any) -> str:
    return "–" if value is None else str(value)
