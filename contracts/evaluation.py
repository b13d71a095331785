"""Types of the gate: requests, answers, comparisons, check results and verdicts.

Missing, stale or contradictory evidence is inconclusive. An inconclusive verdict does not advance a cycle.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from contracts.extension import ExtensionVersion
from contracts.ids import Digest
from contracts.model import Frozen


class ChatRequest(Frozen):
    """One chat request to a model."""

    messages: tuple[dict[str, Any], ...]
    temperature: float = 0.0
    """Sampling temperature. 0 selects greedy decoding."""
    max_tokens: int = 256
    seed: int | None = None
    session: str | None = None


class ChatAnswer(Frozen):
    """Answer of a model, or the error of a failed request."""

    text: str | None
    """None if the request failed; `error` then contains the reason."""
    finish_reason: str | None = None
    latency_ms: float = 0.0
    version: str | None = None
    """Version tag from the attribution header of the response."""
    trace: str | None = None
    error: str | None = None


class Interval(Frozen):
    """An estimate with a two-sided interval at confidence level `level`."""

    estimate: float
    low: float
    high: float
    level: float
    n: int
    """Number of clusters in the estimate."""


class Comparison(Frozen):
    """Comparison of candidate and champion on the same prompts, by paired reward differences clustered by prompt."""

    name: str
    """overall | golden | holdout | slice:<name>"""
    n: int
    """Number of clusters."""
    champion: float
    """Mean reward of the champion."""
    candidate: float
    """Mean reward of the candidate."""
    difference: Interval


UNLIKE = "decided by other scorers on either side"
"""Key in `EvalReport.failures`: prompts with scored answers on both sides that different scorers decided, so they are not comparable."""


class EvalReport(Frozen):
    """Measurements of an evaluation. The gate's checks interpret them."""

    edition: int
    champion: Digest
    """ModelRef.id of the champion."""
    candidate: Digest
    """ModelRef.id of the candidate."""
    asked: int
    """Number of prompts in the evaluation."""
    answered_by_both: int
    """Number of prompts with comparable scored answers of both models."""
    failures: dict[str, int]
    """`champion:<reason>` / `candidate:<reason>` -> count."""
    comparisons: tuple[Comparison, ...]
    lengths: dict[str, float] = Field(default_factory=dict)
    """`champion` / `candidate` -> mean answer length in characters."""
    latency_ms: dict[str, float] = Field(default_factory=dict)
    """`champion` / `candidate` -> 95th percentile of the latency in milliseconds."""
    answers: Digest
    """JSON-lines artifact with both answers and rewards for every prompt."""


class Result(StrEnum):
    """Result of a check or of a whole verdict."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class CheckResult(Frozen):
    """Result of one gate check."""

    check: str
    result: Result
    reason: str
    """Explanation, including the figures."""


class Verdict(Frozen):
    """Decision of the gate, combined from its checks (see `verdict_of`)."""

    result: Result
    checks: tuple[CheckResult, ...]
    report: Digest
    """Digest of the evaluated EvalReport."""
    versions: tuple[ExtensionVersion, ...] = ()
    """Code versions of the checks."""


def verdict_of(checks: tuple[CheckResult, ...], report: Digest, versions: tuple[ExtensionVersion, ...] = ()) -> Verdict:
    """Combine check results into a verdict. `versions` are the code versions of the checks.

    The verdict is `fail` if any check fails. Otherwise it is `inconclusive` if any check is inconclusive or if there are no checks.
    Otherwise it is `pass`.
    """
    results = {check.result for check in checks}
    if Result.FAIL in results:
        result = Result.FAIL
    elif not results or Result.INCONCLUSIVE in results:
        result = Result.INCONCLUSIVE
    else:
        result = Result.PASS
    return Verdict(result=result, checks=checks, report=report, versions=versions)
