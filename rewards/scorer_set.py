"""Scorer set: the scorers of a loop file with their tiers and weights.

It selects the tier that determines the reward of a sample and computes the weighted mean within this tier. It does not depend on the
origin of the samples or on the use of the rewards.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from ratchet.contracts.data.beliefs import JudgeBelief
from ratchet.contracts.data.datasets import Label, ScorerVersion
from ratchet.contracts.data.records import FeedbackKind, Tier
from ratchet.contracts.errors import ConfigError, Permanent, RatchetError
from ratchet.contracts.jobs.training import TrainingPlan
from ratchet.contracts.loop import RewardSettings
from ratchet.contracts.ports import RewardFunction
from ratchet.rewards.feedback import ratings
from ratchet.rewards.judge.job_verdicts import JobVerdicts
from ratchet.rewards.judge.options import EndpointOptions
from ratchet.rewards.verifiable import ExactMatch
from ratchet.runtime.extensions import ExtensionKind, load

if TYPE_CHECKING:
    from ratchet.rewards.judge.records import JudgeRecords

UNSEEN = frozenset({"prompt", "answer", "reference"})
"""Sample keys that are available for a new answer, before any user has seen it."""

CORRECTION = "correction"
"""Name of the label part for a score that results from a user's correction of the answer."""

log = logging.getLogger(__name__)


class Consulted(Protocol):
    """A scorer that asks a model about an answer, at a cost per score, and that must prove itself first (`rewards/judge`)."""

    options: EndpointOptions
    """Its options."""

    @property
    def believed(self) -> bool:
        """Whether it has a weight at present."""

    def serve_job(self, verdicts: JobVerdicts) -> None:
        """Grade the answers of a training job, and keep the verdicts there."""

    def ready(self, seconds: float) -> None:
        """Raise if it cannot be asked within this time."""

    def job_problem(self, secrets: Mapping[str, str] | None) -> str:
        """Return why a training job cannot ask it; empty if it can, or is not to."""

    def record_in(self, records: JudgeRecords) -> None:
        """Keep its verdicts in `records`."""

    def belief(self) -> JudgeBelief | None:
        """Return whether it is believed, with the measurements."""

    def calibrate(self, labelled: Sequence[tuple[Mapping[str, Any], float | None]]) -> None:
        """Measure whether it is believed, from answers with the reward of people's labels."""

    def selected(self, samples: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the indices of the logged answers that it grades."""

    def prefer(self, samples: Sequence[Mapping[str, Any]], others: Sequence[str]) -> list[float | None]:
        """Return for each answer whether it is better (1) than the other answer, as good (0.5) or worse (0)."""

    def declined(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Return for each answer whether it declines the request (1) or gives what was asked (0)."""


@dataclass(frozen=True)
class Scorer:
    """A scorer with its identity, tier and weight."""

    function: RewardFunction
    version: ScorerVersion

    @property
    def alone(self) -> bool:
        """Whether its score counts without a score of another scorer in its tier."""
        return getattr(self.function, "alone", True)

    @property
    def in_jobs(self) -> bool:
        """Whether a training job may use it for new answers."""
        return _for_unseen(self) and getattr(self.function, "in_jobs", True)

    @property
    def usable(self) -> bool:
        """Whether it has a weight at present. All scorers have one but judges that are not believed."""
        return self.judge is None or self.judge.believed

    @property
    def judge(self) -> Consulted | None:
        """The scorer, if it asks a model."""
        return cast(Consulted, self.function) if hasattr(self.function, "calibrate") else None


class ScorerSet:
    """Implementation of the `Rewards` port.

    The tiers are, strongest first: verifiable, feedback, judge. The strongest tier in which at least one scorer gives a score determines
    the reward: the weighted mean of the scores in this tier.
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.scorers = tuple(scorers)
        self.versions = tuple(scorer.version for scorer in self.scorers)

    def unseen(self) -> bool:
        """Return whether some scorer needs at most prompt, answer and reference."""
        return any(_for_unseen(scorer) for scorer in self.scorers)

    def for_jobs(self) -> tuple[ScorerVersion, ...]:
        """Return the scorers of new answers that a training job uses now: of the judges, those that are believed and have `in_jobs`.

        A scorer that does not count alone is among them only with one of its tier that does.
        """
        able = [scorer for scorer in self.scorers if scorer.in_jobs and scorer.usable]
        tiers = {scorer.version.tier for scorer in able if scorer.alone}
        return tuple(scorer.version for scorer in able if scorer.version.tier in tiers)

    def check_jobs(self, secrets: Mapping[str, str] | None) -> None:
        """Raise ConfigError if a training job cannot ask a judge that it is to ask, or if it would show a judge's API key to programs.

        `secrets` are the variables that pods get from Secrets. None: jobs run on this machine.
        """
        exposed = [
            one.version.name for one in self.scorers if getattr(getattr(one.function, "options", None), "isolation", "") == "process"
        ]
        for scorer in self.scorers:
            if scorer.judge is None:
                continue
            options, where = scorer.judge.options, f"reward {scorer.version.name!r} with in_jobs"
            if problem := scorer.judge.job_problem(secrets):
                raise ConfigError(f"{where}: {problem}")
            if options.in_jobs and exposed and (options.key_env or options.key_file):
                raise ConfigError(
                    f'{where}: reward {exposed[0]!r} runs programs of the model with isolation = "process", which could read the API key; '
                    'use isolation = "namespaces", or a judge without a key'
                )

    def without_reference(self, in_jobs: bool = False) -> bool:
        """Return whether some scorer of new answers needs no reference; with `in_jobs`, one that runs in a training job."""
        able = [one for one in self.scorers if one.usable and one.alone and (one.in_jobs if in_jobs else _for_unseen(one))]
        return any("reference" not in scorer.function.needs for scorer in able)

    @property
    def judges(self) -> tuple[Consulted, ...]:
        """The scorers that ask a model."""
        return tuple(scorer.judge for scorer in self.scorers if scorer.judge is not None)

    def proves_alone(self) -> bool:
        """Return whether some verifiable scorer of new answers needs no reference."""
        return any("reference" not in scorer.function.needs for scorer in self._verifiers())

    def _verifiers(self) -> list[Scorer]:
        """Return the verifiable scorers of new answers."""
        return [scorer for scorer in self.scorers if _for_unseen(scorer) and scorer.version.tier is Tier.VERIFIABLE]

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Label new answers, for which only prompt, answer and reference are known."""
        scorers = [scorer for scorer in self.scorers if _for_unseen(scorer)]
        rows = _rows(scorers, samples)
        judged = _undecided(scorers, _labels(samples, rows))
        return _judged(samples, rows, judged)

    def verify(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Label new answers by verifiable scorers alone."""
        return _labels(samples, _rows(self._verifiers(), samples))

    def compare(self, samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, float | None]]:
        """Return the scores of each new answer by the verifiable scorers that compare with the right answer, by their names."""
        comparing = [scorer for scorer in self._verifiers() if "reference" in scorer.function.needs]
        return [label.parts for label in _labels(samples, _rows(comparing, samples))]

    def label(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Label logged answers, and measure whether judges are believed.

        A sample has the keys prompt, answer, reference (or None), trace, and feedback (the latest item per rater and kind). Judges grade a
        selection of the answers that no stronger tier decides.
        """
        rows = _rows(self.scorers, samples)
        labels = [_with_correction(sample, label) for sample, label in zip(samples, _labels(samples, rows), strict=True)]
        people = [label.reward if self._by_people(label) else None for label in labels]
        for scorer in self.scorers:
            if scorer.judge is not None:
                scorer.judge.calibrate(list(zip(samples, people, strict=True)))
        judged = []
        for scorer, judge, places in _undecided(self.scorers, labels):
            chosen = judge.selected([samples[place] for place in places])
            judged.append((scorer, judge, [places[place] for place in chosen]))
        if not judged:
            return labels
        return [_with_correction(sample, label) for sample, label in zip(samples, _judged(samples, rows, judged), strict=True)]

    def _by_people(self, label: Label) -> bool:
        """Return whether a label comes from people: from a correction, a rating, or a reference."""
        deciding = [scorer for scorer in self.scorers if scorer.version.name in label.deciding]
        return CORRECTION in label.parts or any(scorer.function.needs & {"reference", "feedback"} for scorer in deciding)

    def prefer(self, samples: Sequence[Mapping[str, Any]], others: Sequence[str]) -> list[float | None]:
        """Let the judges compare each new answer with another answer to the same prompt: 1 better, 0 worse, 0.5 a tie.

        The result is the mean by weight; None without a verdict.
        """
        return self._by_panel(samples, lambda judge: judge.prefer(samples, others))

    def declined(self, samples: Sequence[Mapping[str, Any]]) -> list[bool | None]:
        """Let the judges say of each new answer whether it declines the request: the mean by weight is above one half. None: no verdict."""
        return [None if value is None else value > 0.5 for value in self._by_panel(samples, lambda judge: judge.declined(samples))]

    def _by_panel(self, samples: Sequence[Mapping[str, Any]], ask: Callable[[Consulted], Sequence[float | None]]) -> list[float | None]:
        """Return the mean by weight of what the judges say about each sample that `ask` gives them; None without a verdict."""
        panel = [scorer for scorer in self.scorers if _for_unseen(scorer) and scorer.judge is not None and scorer.usable]
        columns = [ask(scorer.judge) for scorer in panel if scorer.judge is not None]
        rows = zip(*columns, strict=True) if columns else [()] * len(samples)
        return [_decide(list(zip(panel, row, strict=True)))[0] for row in rows]

    def has_judges(self) -> bool:
        """Return whether some scorer is a judge, whose agreement with people is measured on all samples of `label`."""
        return any(scorer.judge is not None for scorer in self.scorers)

    def beliefs(self) -> tuple[JudgeBelief, ...]:
        """Return for each judge whether it is believed, as measured last."""
        found = [scorer.judge.belief() for scorer in self.scorers if scorer.judge is not None]
        return tuple(belief for belief in found if belief is not None)


_TIERS = tuple(Tier)
_Row = list[tuple[Scorer, float | None]]
"""The scores of one sample."""
_Judging = tuple[Scorer, Consulted, list[int]]
"""A judge, and the indices of the samples that it grades."""


def _rows(scorers: Sequence[Scorer], samples: Sequence[Mapping[str, Any]]) -> list[_Row]:
    """Return the scores of each sample by all scorers except judges."""
    rows: list[_Row] = [[] for _ in samples]
    for scorer in scorers:
        if scorer.judge is None:
            for row, score in zip(rows, _scores(scorer, samples), strict=True):
                row.append((scorer, score))
    return rows


def _undecided(scorers: Sequence[Scorer], labels: Sequence[Label]) -> list[_Judging]:
    """Return for each judge that is believed the indices of the samples that no stronger tier has decided."""
    order = list(Tier)
    found = []
    for scorer in scorers:
        if scorer.judge is not None and scorer.judge.believed:
            weaker = order.index(scorer.version.tier)
            places = [place for place, label in enumerate(labels) if label.tier is None or order.index(label.tier) >= weaker]
            found.append((scorer, scorer.judge, places))
    return found


def _judged(samples: Sequence[Mapping[str, Any]], rows: Sequence[_Row], judged: Sequence[_Judging]) -> list[Label]:
    """Return the labels after the judges have graded their samples."""
    for scorer, _, places in judged:
        for place, score in zip(places, _scores(scorer, [samples[place] for place in places]), strict=True):
            rows[place].append((scorer, score))
    return _labels(samples, rows)


def _labels(samples: Sequence[Mapping[str, Any]], rows: Sequence[_Row]) -> list[Label]:
    """Return the label of each sample. Samples with equal scores and votes share one: there are few scores."""
    known: dict[tuple[object, ...], Label] = {}
    found = []
    for sample, row in zip(samples, rows, strict=True):
        votes = len(ratings(sample.get("feedback") or ()))
        key = (votes, *((id(scorer), score) for scorer, score in row))
        if (label := known.get(key)) is None:
            label = known[key] = _label_of(row, votes)
        found.append(label)
    return found


def _label_of(row: _Row, votes: int) -> Label:
    reward, tier = _decide(row)
    parts = {scorer.version.name: score for scorer, score in row}
    deciding = frozenset(scorer.version.name for scorer, score in row if scorer.version.tier == tier and score is not None)
    return Label(reward, tier, parts, votes, deciding)


def _for_unseen(scorer: Scorer) -> bool:
    return frozenset(scorer.function.needs) <= UNSEEN


def _scores(scorer: Scorer, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Return the scores of all samples by one scorer. If the scorer raises an unexpected error, it abstains on all samples."""
    try:
        scores = scorer.function.score(samples)
    except RatchetError:
        raise
    except Exception:  # third-party code: its failure must not count as a bad answer
        log.warning("reward %s failed; it abstains on %d samples", scorer.version.name, len(samples), exc_info=True)
        return [None] * len(samples)
    if len(scores) != len(samples):
        raise Permanent(f"reward {scorer.version.name!r} returned {len(scores)} scores for {len(samples)} samples; correct its code")
    for score in scores:
        if score is not None and not (math.isfinite(score) and 0 <= score <= 1):
            raise Permanent(f"reward {scorer.version.name!r} returned {score}, outside [0, 1]; correct its code")
    return [None if score is None else float(score) for score in scores]


def _decide(scored: Sequence[tuple[Scorer, float | None]]) -> tuple[float | None, Tier | None]:
    by_tier: dict[Tier, list[tuple[Scorer, float]]] = {}
    for scorer, score in scored:
        if score is not None:
            by_tier.setdefault(scorer.version.tier, []).append((scorer, score))
    for tier in _TIERS:
        speaking = by_tier.get(tier, ())
        if any(scorer.alone for scorer, _ in speaking):
            total = sum(scorer.version.weight for scorer, _ in speaking)
            return sum(scorer.version.weight * score for scorer, score in speaking) / total, tier
    return None, None


def _with_correction(sample: Mapping[str, Any], label: Label) -> Label:
    """Use a user's correction of this answer as verifiable evidence if no verifiable scorer gave a score.

    An answer equal to the corrected text gets reward 1, any other answer gets 0.
    """
    texts = [item["text"] for item in sample.get("feedback") or () if item["kind"] == FeedbackKind.CORRECTION and item["text"]]
    if not texts or label.tier == Tier.VERIFIABLE:
        return label
    scores = ExactMatch().score([{"answer": sample["answer"], "reference": text} for text in texts])
    reward = max(score for score in scores if score is not None)
    return Label(reward, Tier.VERIFIABLE, {**label.parts, CORRECTION: reward}, label.votes)


def build_scorer_set(rewards: Sequence[RewardSettings], records: JudgeRecords | None = None) -> ScorerSet:
    """Build the scorer set of a loop file. `records` are those of judges, which ask nothing and abstain without them.

    Raises `ConfigError` for an unknown reward or option.
    """
    scorers = [_build(entry.name, entry.options, entry.tier, entry.weight) for entry in rewards]
    for scorer in scorers:
        if scorer.judge is not None and records is not None:
            scorer.judge.record_in(records)
    return ScorerSet(scorers)


def _build(name: str, options: Mapping[str, Any], tier: Tier | None, weight: float) -> Scorer:
    extension = load(ExtensionKind.REWARD, name)
    function: RewardFunction = extension.create(options=options, where=f"rewards.{name}.options")
    identity = extension.identity().model_dump()
    return Scorer(function, ScorerVersion(**identity, tier=tier or Tier(function.tier), weight=weight))


def planned_scorer_set(plan: TrainingPlan, verdicts: JobVerdicts | None = None) -> ScorerSet:
    """Build the scorer set that a training job uses: the plan's scorers for new answers.

    Judges keep their verdicts in `verdicts`; without it, they are left out. Raises `Permanent` if the installed code of a scorer differs
    from the code in the plan, because rewards must not change between planning and training. Also raises `Permanent` if the plan has no
    scorer for new answers.
    """
    scorers = []
    for planned in plan.scorers:
        scorer = _build(planned.name, plan.scorer_options.get(planned.name, {}), planned.tier, planned.weight)
        if not scorer.in_jobs or (scorer.judge is not None and verdicts is None):
            continue
        if _pin(scorer.version) != _pin(planned):
            raise Permanent(
                f"reward {planned.name!r} has different code here ({_code(scorer.version)}) than in the plan ({_code(planned)}); "
                "install the planned version, or plan again"
            )
        if scorer.judge is not None and verdicts is not None:
            scorer.judge.serve_job(verdicts)
        scorers.append(scorer)
    if not scorers:
        raise Permanent("the plan contains no reward that can score new answers; add one to the loop file and plan again")
    return ScorerSet(scorers)


def scores_without_reference(plan: TrainingPlan) -> bool:
    """Return whether a GRPO job of this plan can score answers to prompts without a reference. Raises as `planned_scorer_set`."""
    return planned_scorer_set(plan, JobVerdicts()).without_reference()


def _pin(version: ScorerVersion) -> tuple[str, str, str]:
    return version.distribution, version.version, version.code


def _code(version: ScorerVersion) -> str:
    return f"{version.distribution} {version.version}, {version.code[:12]}"
