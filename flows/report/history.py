"""Lists all cycles and versions of a line, one row each, with outcome, method, examples, score difference, cost and time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ratchet.contracts.evaluation import Interval
from ratchet.contracts.jobs.training import Method
from ratchet.contracts.rows import Adopted, FileTaken, Request, RolledBack, ServedAs, content_of
from ratchet.contracts.steps import PlanResult
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.line import LineView

EXAMPLES = {Method.SFT: "demonstrations", Method.DPO: "pairs", Method.GRPO: "prompts"}
"""Method -> the part of the training set that it trains on, as named in `Facts` and in a plan."""


@dataclass(frozen=True)
class Chapter:
    """One cycle of a line, or the adoption of its model."""

    name: str
    """LINE/NUMBER; LINE/0 is the adoption."""
    at: datetime
    outcome: str
    version: str | None
    """Tag of the version that the cycle made."""
    standing: str
    """champion | previous | rolled back | empty; with `recalled` if the version was trained on erased rows."""
    method: str | None
    examples: int | None
    difference: Interval | None
    """Difference of the mean rewards of candidate and champion at the gate."""
    cost: float | None
    """By the price table of the cluster; None if nothing was metered."""
    gpu_minutes: float | None
    seconds: float | None
    """Duration of an ended cycle."""
    note: str = ""
    """What an operator decided about the line's loop file or its model names. Such a chapter has none of the figures."""


def history(line: LineView, cycles: Sequence[CycleView]) -> list[Chapter]:
    """Return the adoption and all cycles of a line, and what was decided about its loop file and its model names, oldest first."""
    standings = _standings(line)
    chapters = [*_adoption(line, standings), *(_chapter(cycle, standings) for cycle in cycles), *_decisions(line)]
    return sorted(chapters, key=lambda chapter: chapter.at)


def _decisions(line: LineView) -> list[Chapter]:
    """Return one chapter for each takeover of the line by another loop file, each change of its model name, and each end of one."""
    found, named = [], ""
    for row in line.rows:
        if row.kind == "file_taken":
            taken = content_of(FileTaken, row)
            place = f"{Path(taken.folder) / taken.file}, before to {taken.former or 'no known file'}"
            note = f"{taken.actor}: the line belongs to {place}: {taken.reason}"
            found.append((row.at, "taken_over", note))
        elif row.kind == "served_as":
            name = content_of(ServedAs, row).name
            if named:
                found.append((row.at, "renamed", f"callers use the model name {name!r}; {named!r} stays valid"))
            named = name
        elif row.kind == "name_ended":
            ended = content_of(Request, row)
            found.append((row.at, "name_ended", f"{ended.actor}: the model name {row.key!r} is no longer valid: {ended.reason}"))
    return [Chapter(line.line, at, outcome, None, "", None, None, None, None, None, None, note) for at, outcome, note in found]


def _standings(line: LineView) -> dict[str, str]:
    found: dict[str, str] = {}
    for row in line.rows:
        if row.kind == "rolled_back" and (back := content_of(RolledBack, row)).to and back.gone:
            found[back.gone.tag] = "rolled back"
    for version, standing in ((line.previous, "previous"), (line.champion, "champion")):
        if version is not None:
            found[version.tag] = standing
    for tag in line.recalled:
        found[tag] = f"{found[tag]}, recalled" if tag in found else "recalled"
    return found


def _adoption(line: LineView, standings: dict[str, str]) -> list[Chapter]:
    row = next((row for row in line.rows if row.kind == "adopted"), None)
    if row is None:
        return []
    tag = content_of(Adopted, row).version.tag
    standing = standings.get(tag, "")
    return [Chapter(f"{line.line}/0", row.at, "adopted", tag, standing, None, None, None, None, None, None)]


def _chapter(cycle: CycleView, standings: dict[str, str]) -> Chapter:
    overall = cycle.report.comparison("overall") if cycle.report else None
    usages = {one.attempt: one.usage for one in cycle.incarnations if one.usage is not None}
    version = cycle.candidate.tag if cycle.candidate else None
    return Chapter(
        name=cycle.id.removeprefix("cycle/"),
        at=cycle.opened_at,
        outcome=str(cycle.state),
        version=version,
        standing=standings.get(version, "") if version else "",
        method=cycle.method_name,
        examples=examples(cycle),
        difference=overall.difference if overall else None,
        cost=sum(usage.cost for usage in usages.values()) if usages else None,
        gpu_minutes=sum(usage.used + usage.idle + usage.lost for usage in usages.values()) / 60 if usages else None,
        seconds=(cycle.ended_at - cycle.opened_at).total_seconds() if cycle.ended_at else None,
    )


def examples(cycle: CycleView) -> int | None:
    """Return the number of examples that the cycle's method trains on, or None if nothing is trained."""
    if cycle.plan is None or cycle.method is None:
        return None
    facts = cycle.result(PlanResult).choice.facts
    match cycle.method:
        case Method.SFT:
            return sum(facts.demonstrations.values())
        case Method.DPO:
            return facts.pairs
        case _:
            return facts.prompts
