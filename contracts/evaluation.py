"""What the gate measures and says. Missing, stale or contradictory evidence is inconclusive, and inconclusive holds."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from contracts.ids import Digest
from contracts.model import Frozen


class ChatRequest(Frozen):
    """One request to a model."""

    messages: tuple[dict[str, Any], ...]
    temperature: float = 0.0
    """0 is greedy."""
    max_tokens: int = 256
    seed: int | None = None
    session: str | None = None


class ChatAnswer(Frozen):
    """One answer; `text` is None where the request failed, and `error` says why."""

    text: str | None
    finish_reason: str | None = None
    latency_ms: float = 0.0
    version: str | None = None
    """From the server's attribution header."""
    trace: str | None = None
    error: str | None = None


class Interval(Frozen):
    """An estimate with its two-sided interval at `level`."""

    estimate: float
    low: float
    high: float
    level: float
    n: int
    """Clusters behind it."""


class Comparison(Frozen):
    """Candidate against champion on the same prompts: paired differences of rewards, clustered by prompt."""

    name: str
    """overall | golden | holdout | slice:<name>"""
    n: int
    champion: float
    candidate: float
    difference: Interval


UNLIKE = "decided by other scorers on either side"
"""In a report's failures: prompts answered and scored on both sides, which compare nothing."""


class EvalReport(Frozen):
    """Figures only; what they mean is the checks' business."""

    edition: int
    champion: Digest
    """ModelRef.id"""
    candidate: Digest
    asked: int
    answered_by_both: int
    """Pairs with two scored answers."""
    failures: dict[str, int]
    """`champion:<reason>` / `candidate:<reason>` -> count."""
    comparisons: tuple[Comparison, ...]
    lengths: dict[str, float] = Field(default_factory=dict)
    """Mean answer length in characters, per side."""
    latency_ms: dict[str, float] = Field(default_factory=dict)
    """p95 per side."""
    answers: Digest
    """JSON-lines artifact: every prompt with both answers and rewards."""


class Result(StrEnum):
    """Three values; nothing else."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class CheckResult(Frozen):
    """One check of the gate."""

    check: str
    result: Result
    reason: str
    """With the figures."""


class Verdict(Frozen):
    """Fail if any check fails; else inconclusive if any is; else pass. No checks: inconclusive."""

    result: Result
    checks: tuple[CheckResult, ...]
    report: Digest
    """Digest of the EvalReport it judges."""


def verdict_of(checks: tuple[CheckResult, ...], report: Digest) -> Verdict:
    """Folds checks into a verdict."""
    results = {check.result for check in checks}
    if Result.FAIL in results:
        result = Result.FAIL
    elif not results or Result.INCONCLUSIVE in results:
        result = Result.INCONCLUSIVE
    else:
        result = Result.PASS
    return Verdict(result=result, checks=checks, report=report)
