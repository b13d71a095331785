"""Types of the gate: requests, answers, comparisons, check results and verdicts.

The types reject invalid and contradictory figures. Missing, stale or contradictory evidence is inconclusive. An inconclusive verdict does
not advance a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ratchet.contracts.extension import ExtensionVersion
from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Count, Extended, Finite, Frozen, Magnitude


class ChatRequest(Frozen):
    """One chat request to a model."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    """Schemas of the tools that the model may call."""
    temperature: float = 0.0
    """Sampling temperature. 0 selects greedy decoding."""
    max_tokens: int = 256
    seed: int | None = None
    session: str | None = None


class ChatAnswer(Frozen):
    """Answer of a model, or the error of a failed request."""

    text: str | None
    """The answer as tables store it: text, or the JSON of a message that calls tools (contracts/conversation.py). None if the request
    failed; `error` then contains the reason."""
    finish_reason: str | None = None
    latency_ms: float = 0.0
    version: str | None = None
    """Version tag from the attribution header of the response."""
    trace: str | None = None
    error: str | None = None
    """Why the request failed: a kind of error, and after a colon what is not stored."""
    reason: str = ""
    """What the server said about the failure, at most a few hundred characters and without anything that users or models wrote, because
    it is recorded in the ledger."""

    @property
    def cut(self) -> bool | None:
        """Whether the answer ended at the limit of tokens instead of its end. None without an answer, or if the server does not say."""
        return None if self.text is None or self.finish_reason is None else self.finish_reason == "length"

    @property
    def failure(self) -> str:
        """The kind of error with the server's reason, for counts and reports."""
        kind = (self.error or "no answer").split(":")[0]
        return f"{kind}: {self.reason}" if self.reason else kind


class Interval(Frozen):
    """An estimate with a two-sided interval at confidence level `level`."""

    estimate: Finite
    low: Finite
    high: Finite
    level: float = Field(gt=0, lt=1)
    n: Count
    """Number of clusters in the estimate."""

    @model_validator(mode="after")
    def _contains_its_estimate(self) -> Interval:
        if not self.low <= self.estimate <= self.high:
            raise ValueError(f"the interval {self.low:g} to {self.high:g} does not contain its estimate {self.estimate:g}")
        return self


class Comparison(Frozen):
    """Comparison of candidate and champion on the same prompts, by paired differences of rewards, or of shares, clustered by prompt."""

    name: str
    """overall | golden | holdout | slice:<name>, or a share: cut (answers that were cut), refused (harmful prompts that were refused),
    answered (harmless prompts that were answered)"""
    n: Count
    """Number of clusters."""
    champion: Finite
    """Mean reward of the champion, or its share."""
    candidate: Finite
    """Mean reward of the candidate, or its share."""
    difference: Interval

    @model_validator(mode="after")
    def _one_number_of_clusters(self) -> Comparison:
        if self.difference.n != self.n:
            raise ValueError(f"{self.name}: {self.n} clusters, but the interval has {self.difference.n}")
        return self


class PromptCount(Frozen):
    """What became of the prompts of one set or slice. A prompt failed for a model if an answer to it is missing or unscored."""

    name: str
    """golden | holdout | slice:<name>, or refused | answered: the harmful or the harmless prompts of `SafetyReport`"""
    asked: Count
    """Number of prompts."""
    clusters: Count
    """Number of distinct conversations among them."""
    answered_by_both: Count
    """Number of prompts with comparable scored answers of both models."""
    champion_failed: Count
    candidate_failed: Count

    @model_validator(mode="after")
    def _at_most_asked(self) -> PromptCount:
        if max(self.clusters, self.answered_by_both + max(self.champion_failed, self.candidate_failed)) > self.asked:
            raise ValueError(f"{self.name}: more prompts answered, failed or distinct than the {self.asked} that were asked")
        return self


class EarlierComparison(Frozen):
    """Comparison of the candidate with the earlier champion that was best in one part of the golden set, on the same prompts."""

    version: str
    """Tag of the earlier champion."""
    comparison: Comparison
    """Its name is golden or slice:<name>; `champion` is the mean reward of the earlier champion. The level of its interval allows for the
    number of earlier champions and parts that were compared."""


class EarlierAnswers(Frozen):
    """The answers that an earlier champion gave when it was compared with a candidate of its time."""

    version: str
    """Tag of the earlier champion."""
    answers: Digest
    """`EvalReport.answers` of that comparison."""
    safety: Digest | None = None
    """`SafetyReport.answers` of the newest comparison that asked the prompts of the check `safety`; None if none did."""


Stopped = Literal["success", "futility"]
"""Why an evaluation asked no further prompts: the gain is shown, or the rest would hardly show one."""


class Looks(Frozen):
    """The looks of an evaluation: it asks its prompts in batches, looks at the comparison after each, and may stop before the last."""

    planned: Annotated[int, Field(gt=0)]
    """Number of looks, if it does not stop early."""
    prompts: Count
    """Number of prompts of the whole edition and golden set."""
    clusters: Count
    """Number of distinct conversations among them."""
    compared: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Number of conversations compared at each look so far."""
    level: Annotated[float, Field(gt=0, lt=1)]
    """Confidence level that the evaluation would have with a single look. All looks together have its error. The level of the comparison
    `overall` is that of the boundary at the newest look."""
    stopped: Stopped | None = None
    """None: the evaluation asked all prompts."""

    @property
    def done(self) -> int:
        """Number of looks so far."""
        return len(self.compared)

    @property
    def error(self) -> float:
        """Error of one side over all looks."""
        return (1 - self.level) / 2

    @model_validator(mode="after")
    def _in_order(self) -> Looks:
        if list(self.compared) != sorted(self.compared) or self.compared[-1] > self.clusters or self.clusters > self.prompts:
            raise ValueError(f"looks at {list(self.compared)} of {self.clusters} conversations in {self.prompts} prompts")
        if self.done > self.planned:
            raise ValueError(f"{self.done} looks, but {self.planned} were planned")
        if (self.stopped is None) != (self.done == self.planned):
            raise ValueError(f"{self.done} of {self.planned} looks, and the evaluation has {'' if self.stopped else 'not '}stopped early")
        return self


REFUSED, ANSWERED = "refused", "answered"
"""Comparisons of a `SafetyReport`: the share of the harmful prompts that were refused, and of the harmless prompts that were answered."""


_EXAMPLES = 5
"""Number of ids that a sentence names."""


def shortened(ids: Sequence[str]) -> str:
    """Return the first ids of prompts, and how many more there are."""
    more = f" and {len(ids) - _EXAMPLES} more" if len(ids) > _EXAMPLES else ""
    return ", ".join(ids[:_EXAMPLES]) + more


class SafetyReport(Frozen):
    """The answers of both models to the prompts of the check `safety`. Each prompt is one cluster."""

    prompts: Digest
    """Digest of all prompts that were asked, and of the rules by which an answer is a refusal."""
    counts: tuple[PromptCount, PromptCount]
    """Of the harmful and of the harmless prompts. A prompt failed for a model if it has no answer, or one that no judge could judge."""
    failures: dict[str, Count] = Field(default_factory=dict)
    """`champion:<reason>` / `candidate:<reason>` -> number of such prompts, as in `EvalReport.failures`."""
    refused: Comparison | None
    """Share of the harmful prompts that were refused. A request that failed for the candidate alone counts as not refused. None if less
    than two prompts could be compared."""
    answered: Comparison | None
    """Share of the harmless prompts that were answered: with content, and without a refusal. Failed requests count as above."""
    lost: tuple[str, ...] = ()
    """Ids of the harmful prompts that the champion refused and the candidate did not."""
    withheld: tuple[str, ...] = ()
    """Ids of the harmless prompts that the champion answered and the candidate did not."""
    earlier: tuple[EarlierComparison, ...] = ()
    """For each of the two shares: the comparison with the earlier champion that had the highest one, on the prompts of both."""
    answers: Digest
    """JSON-lines artifact with both answers to every prompt."""

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The comparisons that exist."""
        return tuple(one for one in (self.refused, self.answered) if one is not None)

    @property
    def told(self) -> tuple[str, ...]:
        """The two shares of champion and candidate in words, and examples of prompts on which only the champion did what is expected."""
        what = {REFUSED: "harmful prompts refused", ANSWERED: "harmless prompts answered"}
        shares = [f"{what[c.name]}: {c.champion:.0%} → {c.candidate:.0%} (n {c.n})" for c in self.comparisons]
        changed = (("no longer refused", self.lost), ("no longer answered", self.withheld))
        return (*shares, *(f"{change}: {shortened(ids)}" for change, ids in changed if ids))

    @model_validator(mode="after")
    def _consistent(self) -> SafetyReport:
        for count, one, name in zip(self.counts, (self.refused, self.answered), (REFUSED, ANSWERED), strict=True):
            if count.name != name or (one is not None and one.name != name):
                raise ValueError(f"the figures of {name} are those of {count.name}")
            if one is not None and one.n > count.asked - count.champion_failed:
                raise ValueError(f"{name} compares {one.n} of {count.asked} prompts, of which {count.champion_failed} have no answer")
            if one is not None and not _is_share(one):
                raise ValueError(f"{name}: the shares are not between 0 and 1, or the estimate is not their difference")
        return self


class SuiteReport(Extended):
    """The answers of both models to the tasks of one suite (`gate.suites`)."""

    LATER = ("asked_by",)

    name: str
    tasks: Digest
    """Digest of the tasks."""
    samples: Annotated[int, Field(gt=0)]
    """Number of answers per task and model."""
    k: Annotated[int, Field(gt=0)]
    """The comparison is of pass@k."""
    temperature: Magnitude
    count: PromptCount
    """What became of the tasks. Its clusters are the groups of tasks."""
    failures: dict[str, Count] = Field(default_factory=dict)
    """`champion:<reason>` / `candidate:<reason>` -> number of tasks with an answer that is missing or has no score."""
    comparison: Comparison | None
    """Mean pass@k over the groups of tasks. None if less than two groups could be compared."""
    answers: Digest
    """JSON-lines artifact with both answers to every draw of every task."""
    asked_by: str = ""
    """Program that asked and scored the tasks, with its version, the task and its metrics. Empty: Ratchet itself."""

    @property
    def told(self) -> str:
        """The shares of champion and candidate in words."""
        if self.comparison is None:
            return f"{self.count.name}: nothing could be compared"
        one = self.comparison
        what = f" ({self.asked_by})" if self.asked_by else f", pass@{self.k}"
        return f"{self.name}{what}: {one.champion:.1%} → {one.candidate:.1%} (n {one.n})"

    @model_validator(mode="after")
    def _consistent(self) -> SuiteReport:
        one = self.comparison
        if one is not None and (one.n > self.count.clusters or not _is_share(one)):
            raise ValueError(
                f"the suite {self.name} compares {one.n} of {self.count.clusters} groups, or shares that are not between 0 and 1"
            )
        return self


UNLIKE = "decided by other scorers on either side"
"""Key in `EvalReport.failures`: prompts with scored answers on both sides that different scorers decided, so they are not comparable."""


class EvalReport(Extended):
    """Measurements of an evaluation. The gate's checks interpret them."""

    LATER = ("suites", "eroded")

    edition: int
    champion: Digest
    """ModelRef.id of the champion."""
    candidate: Digest
    """ModelRef.id of the candidate."""
    samples: Annotated[int, Field(gt=0)] = 1
    """Number of answers per prompt and model. All counts of the report are of prompts, and the reward of a prompt is the mean."""
    temperature: Magnitude = 0.0
    """Sampling temperature of the answers. 0: greedy."""
    asked: Count
    """Number of prompts that the evaluation asked."""
    looks: Looks | None = None
    """The looks before the end. None: the evaluation asked all prompts at once."""
    answered_by_both: Count
    """Number of prompts with comparable scored answers of both models, in each draw."""
    failures: dict[str, Count]
    """`champion:<reason>` / `candidate:<reason>` -> number of prompts with such an answer. A prompt counts once per model. A reason is the
    kind of error, and after a colon what the server said (`ChatAnswer.reason`)."""
    comparisons: tuple[Comparison, ...]
    """A draw on which only the candidate failed counts in them with reward 0 for the candidate."""
    counts: tuple[PromptCount, ...]
    """One element per prompt set and slice that was asked."""
    lengths: dict[str, Magnitude] = Field(default_factory=dict)
    """`champion` / `candidate` -> mean answer length in characters."""
    length_adjusted: Interval | None = None
    """Overall reward difference if the answers that a judge scored had equal lengths. None if a judge scored few or none. Judges prefer
    long answers, also where these are not better."""
    cut: Comparison | None = None
    """Share of the answers that ended at `gate.max_tokens` instead of their end, on prompts that both models answered. None if there are no
    two conversations with such prompts, or if a server does not say how its answers ended."""
    safety: SafetyReport | None = None
    """The answers to the prompts of the check `safety`. None: they were not asked (`gate.safety`)."""
    suites: tuple[SuiteReport, ...] = ()
    """The answers to the tasks of each suite of `gate.suites`."""
    earlier: tuple[EarlierComparison, ...] = ()
    """For the golden set and each of its slices: the comparison with the best earlier champion. Empty if there is none."""
    eroded: tuple[EarlierComparison, ...] = ()
    """The parts of the golden set in which losses have added up: the candidate is certainly lower than the line's earlier champions up to
    `version` are on average, and not higher than the present champion by a standard error."""
    earlier_common: Count = 0
    """Number of golden conversations that were asked in this evaluation and answered by an earlier champion: the maximum over the earlier
    champions."""
    latency_ms: dict[str, Magnitude] = Field(default_factory=dict)
    """`champion` / `candidate` -> 95th percentile of the latency in milliseconds."""
    answers: Digest
    """JSON-lines artifact with both answers and rewards for every draw of every prompt."""

    @model_validator(mode="after")
    def _consistent(self) -> EvalReport:
        flaw = next(_flaws(self), None)
        if flaw:
            raise ValueError(f"the report contradicts itself: {flaw}")
        return self

    @property
    def stop(self) -> str | None:
        """Where and why the evaluation stopped before its last prompt, in words, and the requests that it saved. None if it asked all."""
        looks = self.looks
        if looks is None or looks.stopped is None:
            return None
        why = "the gain is shown" if looks.stopped == "success" else "the rest would hardly show a gain"
        saved = 2 * self.samples * (looks.prompts - self.asked)
        where = f"look {looks.done} of {looks.planned} ({self.asked} of {looks.prompts} prompts)"
        return f"stopped after {where}: {why}; {saved} requests saved"

    def count(self, name: str) -> PromptCount | None:
        """Return the count of a prompt set or slice, or None if it was not asked."""
        return next((count for count in self.counts if count.name == name), None)

    def comparison(self, name: str) -> Comparison | None:
        """Return the comparison of this name, or None if there is none."""
        return next((comparison for comparison in self.comparisons if comparison.name == name), None)


_TOLERANCE = 1e-6
"""Largest rounding error between an estimate and the difference of the two means."""


def _is_share(one: Comparison) -> bool:
    """Return whether a comparison is one of two shares, and its estimate is their difference."""
    exact = abs(one.candidate - one.champion - one.difference.estimate) <= _TOLERANCE
    return exact and 0 <= one.champion <= 1 and 0 <= one.candidate <= 1


def _flaws(report: EvalReport) -> Iterator[str]:
    """Yield the contradictions between the figures of a report."""
    if report.answered_by_both > report.asked:
        yield f"{report.answered_by_both} prompts answered of {report.asked} asked"
    for side in ("champion", "candidate"):
        failed = sum(n for key, n in report.failures.items() if key.startswith(f"{side}:"))
        if failed > report.asked:
            yield f"{failed} failures of the {side} for {report.asked} prompts"
    for names in ([c.name for c in report.comparisons], [c.name for c in report.counts]):
        yield from (f"{name} occurs more than once" for name in sorted({name for name in names if names.count(name) > 1}))
    compared = [*report.comparisons, *([report.cut] if report.cut else [])]
    yield from (f"{c.name} compares {c.n} of {report.asked} prompts" for c in compared if c.n > report.asked)
    if report.cut and not (0 <= report.cut.champion <= 1 and 0 <= report.cut.candidate <= 1):
        yield "the share of cut answers is not between 0 and 1"
    yield from _flaws_of_levels(report)
    yield from _flaws_of_counts(report)


def _flaws_of_levels(report: EvalReport) -> Iterator[str]:
    """Yield contradictions between the confidence levels and the looks."""
    looks = report.looks
    levels = {c.difference.level for c in report.comparisons if looks is None or c.name != "overall"}
    if len(levels) > 1:
        yield "the intervals have different confidence levels"
    if looks is None:
        return
    if any(abs(level - looks.level) > _TOLERANCE for level in levels):
        yield f"intervals of level {max(levels):g} in an evaluation of level {looks.level:g}"
    overall = report.comparison("overall")
    if overall is not None and overall.difference.level < looks.level - _TOLERANCE:
        yield f"the level {overall.difference.level:g} of a look is below that of the evaluation, {looks.level:g}"
    if overall is not None and overall.n != looks.compared[-1]:
        yield f"{overall.n} conversations compared, but {looks.compared[-1]} at the newest look"
    if report.asked > looks.prompts or (looks.stopped is None and report.asked != looks.prompts):
        yield f"{report.asked} prompts asked of {looks.prompts}"


def _flaws_of_counts(report: EvalReport) -> Iterator[str]:
    """Yield contradictions between the counts, the comparisons and the totals."""
    sets = [count for count in report.counts if not count.name.startswith("slice:")]
    if sum(count.asked for count in sets) != report.asked:
        yield f"the prompt sets do not add up to the {report.asked} prompts that were asked"
    if sum(count.answered_by_both for count in sets) != report.answered_by_both:
        yield f"the prompt sets do not add up to the {report.answered_by_both} prompts that both answered"
    for c in report.comparisons:
        count = report.count(c.name)
        if c.name != "overall" and (count is None or c.n > count.clusters):
            yield f"{c.name} compares more prompts than were asked"
        if abs(c.candidate - c.champion - c.difference.estimate) > _TOLERANCE:
            yield f"{c.name}: the estimate {c.difference.estimate:g} is not the difference of the means {c.candidate:g} and {c.champion:g}"


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

    @property
    def reasons(self) -> str:
        """The checks that do not pass, with their reasons, in words; empty if all pass."""
        return "; ".join(f"{one.check}: {one.reason}" for one in self.checks if one.result is not Result.PASS)


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
