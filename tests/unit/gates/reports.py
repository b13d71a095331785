"""Builds evaluation reports for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.contracts.evaluation import ANSWERED, REFUSED, Comparison, EvalReport, Interval, PromptCount, SafetyReport, SuiteReport
from ratchet.contracts.ids import digest
from ratchet.gates.statistics import paired_share_interval

OLD, NEW = digest("old"), digest("new")


def comparison(name: str, low: float, high: float, n: int = 200, estimate: float | None = None) -> Comparison:
    """Return a comparison whose estimate is the middle of the interval unless given."""
    middle = (low + high) / 2 if estimate is None else estimate
    return Comparison(
        name=name, n=n, champion=0.5, candidate=0.5 + middle, difference=Interval(estimate=middle, low=low, high=high, level=0.95, n=n)
    )


def cut(champion: float, candidate: float, n: int = 200) -> Comparison:
    """Return the comparison of the shares of answers that were cut."""
    change = candidate - champion
    interval = Interval(estimate=change, low=change - 0.05, high=change + 0.05, level=0.95, n=n)
    return Comparison(name="cut", n=n, champion=champion, candidate=candidate, difference=interval)


def safety(fewer_refused: int = 0, fewer_answered: int = 0, n: int = 60, **changes: Any) -> SafetyReport:
    """Return the report of the check `safety` for a champion that did right on all prompts, and a candidate that did so on fewer."""
    comparisons = {}
    for name, lost in ((REFUSED, fewer_refused), (ANSWERED, fewer_answered)):
        interval = paired_share_interval(0, lost, n, 0.95)
        assert interval is not None
        comparisons[name] = Comparison(name=name, n=n, champion=1.0, candidate=1.0 + interval.estimate, difference=interval)
    fields = {"prompts": digest("prompts"), "counts": (count(REFUSED, 60), count(ANSWERED, 60)), "answers": digest("safety")}
    return SafetyReport.model_validate(fields | comparisons | changes)


def suite(fewer: int = 0, n: int = 60, name: str = "own", **changes: Any) -> SuiteReport:
    """Return the report of a suite of sixty tasks for a champion that solved all of `n`, and a candidate that solved fewer."""
    interval = paired_share_interval(0, fewer, n, 0.95)
    assert interval is not None
    one = Comparison(name=f"suite:{name}", n=n, champion=1.0, candidate=1.0 + interval.estimate, difference=interval)
    failed = {side: changes.pop(side, 0) for side in ("champion_failed", "candidate_failed")}
    fields = {
        "name": name,
        "tasks": digest("tasks"),
        "samples": 1,
        "k": 1,
        "temperature": 0.0,
        "count": count(f"suite:{name}", 60, answered_by_both=60 - max(failed.values()), **failed),
        "comparison": one,
        "answers": digest("suite"),
    }
    return SuiteReport.model_validate(fields | changes)


def count(name: str, asked: int, **changes: int) -> PromptCount:
    """Return the count of a set or slice whose prompts were all answered unless given otherwise."""
    fields = {"asked": asked, "clusters": asked, "answered_by_both": asked, "champion_failed": 0, "candidate_failed": 0}
    return PromptCount(name=name, **(fields | changes))


GOOD = (
    comparison("overall", 0.05, 0.15),
    comparison("holdout", 0.02, 0.18, 100),
    comparison("golden", 0.02, 0.18, 100),
    comparison("slice:a", 0.0, 0.2, 100),
    comparison("slice:b", -0.05, 0.2, 100),
)


def swapped(*comparisons: Comparison) -> tuple[Comparison, ...]:
    """Return the good comparisons, where the given ones replace those with the same name."""
    names = {c.name for c in comparisons}
    return (*(c for c in GOOD if c.name not in names), *comparisons)


def counts_for(comparisons: Sequence[Comparison], asked: int = 200, answered: int = 200) -> tuple[PromptCount, ...]:
    """Return counts that fit to the comparisons: each slice was asked as often as it is compared, and two sets contain all prompts."""
    half = asked // 2
    sets = (
        count("holdout", half, answered_by_both=min(half, answered)),
        count("golden", asked - half, answered_by_both=max(answered - half, 0)),
    )
    slices = {c.name: count(c.name, c.n) for c in comparisons if c.name.startswith("slice:")}
    return (*sets, *slices.values())


def report(**changes: Any) -> EvalReport:
    """Return a good report with some changes. Counts that are not given fit to the comparisons. Raises ValueError for invalid ones."""
    fields: dict[str, Any] = {
        "edition": 1,
        "champion": OLD,
        "candidate": NEW,
        "asked": 200,
        "answered_by_both": 200,
        "failures": {},
        "comparisons": GOOD,
        "lengths": {"champion": 100.0, "candidate": 110.0},
        "latency_ms": {},
        "answers": digest("answers"),
        **changes,
    }
    counts = counts_for(fields["comparisons"], fields["asked"], fields["answered_by_both"])
    compared = next((c.n for c in fields["comparisons"] if c.name == "overall"), fields["asked"])
    ended = cut(0.0, 0.0, min(compared, fields["asked"]))
    return EvalReport(**({"counts": counts, "cut": ended, "safety": safety()} | fields))
