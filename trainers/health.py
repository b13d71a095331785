"""Health rules: when a run is failing, and what the next attempt should change.

The rules are data and are evaluated on the figures of each step. A step can be beyond the limit of a rule. After `patience` such
steps in a row, the rule notes, adjusts or stops, as the recipe's `health` section defines. All trainers use the same names for
their figures, so the same rules apply to each of them. The ledger decides whether a proposed adjustment is granted.
The module is pure and does not load torch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from ratchet.contracts.jobs.training import Adjustment, JobEvent, Proposal
from ratchet.trainers.recipes.health_limits import Action, Health, Limit

Figures = Mapping[str, float]
"""Name of a figure -> its value in one step."""

START = 10
"""Number of steps over which a mean reward is computed."""
BASE = 5
"""Number of initial steps whose median is the baseline. It is small because a reward can be exploited within ten steps."""
WINDOW = 20
"""Number of preceding steps with which the loss of a step is compared."""
SHORT_ANSWER = 16.0
"""Minimum baseline for the answer length, in tokens. With a shorter baseline, a single additional word would exceed the limit."""
FINITE = ("loss", "grad_norm")
"""Figures that must be finite, independent of the recipe."""
SLOWER: Final = Adjustment(learning_rate=0.5)
"""Remedy: half the learning rate."""
NEARER: Final = Adjustment(kl=2.0)
"""Remedy: twice the penalty for the distance from the start model."""


class Past:
    """Summary of the earlier values of a figure: the first values, the last values, and sums. Its size does not grow with the run."""

    def __init__(self) -> None:
        self.count = 0
        """Number of values."""
        self.first: list[float] = []
        """The first values, at most START."""
        self.last: deque[float] = deque(maxlen=WINDOW)
        """The newest values, at most WINDOW."""
        self.best = -math.inf
        """Highest mean of START consecutive values."""
        self.leaps = 0.0
        """Sum of the squared differences between consecutive values."""

    def add(self, value: float) -> None:
        """Add the value of the next step."""
        self.leaps += (value - self.last[-1]) ** 2 if self.last else 0.0
        if len(self.first) < START:
            self.first.append(value)
        self.last.append(value)
        self.count += 1
        if self.count >= START:
            self.best = max(self.best, fmean(self.newest(START)))

    def newest(self, n: int) -> list[float]:
        """Return the newest `n` values, oldest first. `n` is at most WINDOW."""
        return list(self.last)[-n:]


Measure = Callable[[float, Past], float | None]
"""(value of this step, earlier values) -> the quantity compared with the limit, or None if it cannot be determined yet."""


@dataclass(frozen=True)
class HealthRule:
    """One kind of failure. The recipe holds the limit, patience and action under the name of the rule."""

    name: str
    what: str
    """Description of the measured quantity. In messages, the value follows it."""
    figures: tuple[str, ...]
    """Figures that the rule applies to. The first one that the step has is evaluated."""
    measure: Measure
    """Derives the measured quantity from the figure."""
    remedy: Adjustment
    """Adjustment for the next attempt."""
    below: bool = False
    """Whether values below the limit are wrong, instead of values above it."""
    chance: Measure | None = None
    """Largest deviation expected from chance alone, in the unit of the limit. The effective limit is at least this value."""
    again: Action = "stop"
    """Action instead of `adjust` if an earlier attempt was already adjusted for this rule."""


@dataclass(frozen=True)
class HealthVerdict:
    """Result of a rule that was beyond its limit for `patience` steps."""

    rule: str
    """Name of the rule."""
    action: Action
    """What happens to the run."""
    since: int
    """First step beyond the limit. Checkpoints of this and later steps are not resumed from."""
    reason: str
    """Explanation for events and reports."""
    remedy: Adjustment
    """Adjustment that the action `adjust` proposes."""

    @property
    def proposal(self) -> Proposal | None:
        """The proposal for the next attempt, or None if the action is not `adjust`."""
        return Proposal(rule=self.rule, adjustment=self.remedy, good=self.since - 1) if self.action == "adjust" else None


def _itself(value: float, _past: Past) -> float:
    return value


def _above_usual(value: float, past: Past) -> float | None:
    """Deviation above the median of the last WINDOW values, in units of a robust standard deviation.

    The unit is 1.4826 times the median absolute deviation, but at least a twentieth of the median and at least 0.01.
    """
    if past.count < WINDOW:
        return None
    middle = median(past.last)
    spread = max(1.4826 * median(abs(other - middle) for other in past.last), 0.05 * abs(middle), 0.01)
    return (value - middle) / spread


def _rise(value: float, past: Past) -> float | None:
    return _newest_mean(value, past) - fmean(past.first) if past.count >= 2 * START else None


def _fall_from_best(value: float, past: Past) -> float | None:
    return past.best - _newest_mean(value, past) if past.count >= 2 * START else None


def _newest_mean(value: float, past: Past) -> float:
    return fmean([*past.newest(START - 1), value])


def _range_by_chance(value: float, past: Past) -> float:
    """Difference between the best and the newest mean of START values that is expected in a run without any change.

    The mean reward of a step is based on few prompts, so it varies. The standard deviation is estimated from the differences
    between consecutive steps, because a trend has little influence on them. (A median of these differences would be 0 if most steps
    are equal.) The extremes of n means are about 2 sqrt(2 ln n) standard deviations apart at most. One standard deviation is added
    as a margin. In simulated runs of constant difficulty with 200 and 1000 steps, fewer than one in a hundred exceeds the result.
    Requires at least one earlier value.
    """
    leaps = (past.leaps + (value - past.last[-1]) ** 2) / past.count / 2
    return (1 + 2 * math.sqrt(2 * math.log(past.count + 1))) * math.sqrt(leaps / START)


def _share_of_start(value: float, past: Past) -> float | None:
    start = median(past.first[:BASE]) if past.count >= BASE else 0.0
    return value / start if start > 0 else None


def _length(value: float, past: Past) -> float | None:
    return value / max(SHORT_ANSWER, median(past.first[:BASE])) if past.count >= BASE else None


RULES: Final = (
    HealthRule("kl", "KL to the start model", ("kl",), _itself, NEARER),
    HealthRule("grad_norm", "gradient norm", ("grad_norm",), _itself, SLOWER, again="note"),  # harmless in itself: gradients are clipped
    HealthRule("chosen_fall", "decrease of the chosen answers' log-probability", ("chosen_fall",), _itself, NEARER),
    HealthRule("loss_spike", "loss above its median (in robust standard deviations)", ("loss",), _above_usual, SLOWER),
    HealthRule(
        "generation_mismatch",
        "disagreement of generation and training on the probability of a token (factor)",
        ("generation_mismatch",),
        _itself,
        Adjustment(),
    ),
    HealthRule("reward_falls", "decrease of the mean reward from its best", ("reward",), _fall_from_best, SLOWER, chance=_range_by_chance),
    HealthRule("reward_flat", "increase of the mean reward", ("reward",), _rise, NEARER, below=True),
    HealthRule("entropy_collapse", "entropy (relative to the first steps)", ("entropy",), _share_of_start, NEARER, below=True),
    HealthRule("length_grows", "answer length (relative to the first steps)", ("answer_tokens",), _length, NEARER),
    HealthRule(
        "generation_slow", "step time (relative to the first steps)", ("generation_seconds", "step_seconds"), _share_of_start, Adjustment()
    ),
)
REMEDIES: Final = {rule.name: rule.remedy for rule in RULES} | {
    "not_finite": SLOWER,
    "memory": Adjustment(memory=0.5),
    "stall": Adjustment(),  # resume from the last good step without changes: a stall may not occur again
}
"""Rule -> the adjustment that it proposes, including the rules that are not based on figures."""


class Streak:
    """The current run of consecutive steps in which one figure was beyond the limit of one rule."""

    def __init__(self, rule: HealthRule, limit: Limit) -> None:
        self.rule, self.limit = rule, limit
        self.past = Past()
        """Earlier values of the figure."""
        self.steps: deque[tuple[int, float, float]] = deque(maxlen=limit.patience)
        """(step, measured quantity, effective limit) of each step, oldest first; at most `patience` steps."""

    def add(self, step: int, value: float) -> None:
        """Add the figure of a step. A step within the limit ends the streak."""
        beyond = self._beyond(value)
        if beyond is None:
            self.steps.clear()
        else:
            self.steps.append((step, *beyond))
        self.past.add(value)

    def _beyond(self, value: float) -> tuple[float, float] | None:
        measured, bound = self.rule.measure(value, self.past), self.limit.limit
        if measured is None:
            return None
        if self.rule.below:
            return (measured, bound) if measured < bound else None
        if measured > bound and self.rule.chance:
            bound = max(bound, self.rule.chance(value, self.past) or 0.0)
        return (measured, bound) if measured > bound else None

    def verdict(self, step: int) -> HealthVerdict | None:
        """Return the verdict at `step`, or None if the streak is shorter than `patience`."""
        if len(self.steps) < self.limit.patience:
            return None
        beyond = "stayed below" if self.rule.below else "exceeded"
        _, measured, bound = self.steps[-1]
        steps = "at step" if self.limit.patience == 1 else f"for {self.limit.patience} steps in a row, last at step"
        reason = f"{self.rule.what} {measured:.3g} {beyond} {bound:.3g} {steps} {step}"
        return HealthVerdict(self.rule.name, self.limit.action, self.steps[0][0], reason, self.rule.remedy)


class Watch:
    """Applies all rules to one incarnation.

    Each rule notes at most once, and no rule adjusts twice for the same plan.
    """

    def __init__(self, health: Health, beta: float = 0.0, used: Collection[str] = ()) -> None:
        self.health = health
        self.beta = beta
        """`beta` of the recipe. If it is 0, a stronger KL penalty has no effect and the learning rate is reduced instead."""
        self.used = frozenset(used)
        """Rules whose remedy is already applied in this attempt."""
        self.calm: int | None = None
        """The last step with finite figures and within the limits of all rules that can end the run. Its checkpoint is kept."""
        limits = {rule.name: getattr(health, rule.name) for rule in RULES}
        self._streaks = {
            (rule.name, name): Streak(rule, limits[rule.name])
            for rule in RULES
            if limits[rule.name].action != "off"
            for name in rule.figures
        }
        self._noted: set[str] = set()

    def judge(self, step: int, figures: Figures) -> list[HealthVerdict]:
        """Evaluate the figures of `step` and return the new verdicts, those that note last.

        The caller ends the run at the first verdict that adjusts or stops.
        """
        streaks = self._seen(step, figures)
        verdicts = [self._as_run(verdict) for verdict in self._verdicts(step, figures, streaks)]
        new = [verdict for verdict in verdicts if verdict.action != "note" or verdict.rule not in self._noted]
        self._noted |= {verdict.rule for verdict in new if verdict.action == "note"}
        finite = all(math.isfinite(figures.get(name, 0.0)) for name in FINITE)
        if finite and not any(verdict.action != "note" for verdict in verdicts) and not self._trouble(streaks):
            self.calm = step
        return sorted(new, key=lambda verdict: verdict.action == "note")

    def _seen(self, step: int, figures: Figures) -> list[Streak]:
        """Add the finite figures of this step and return the streak of each rule's first available figure."""
        for (_, name), streak in self._streaks.items():
            if math.isfinite(figures.get(name, math.nan)):
                streak.add(step, figures[name])
        judged = ((rule, next((name for name in rule.figures if name in figures), "")) for rule in RULES)
        found = (self._streaks.get((rule.name, name)) for rule, name in judged if math.isfinite(figures.get(name, math.nan)))
        return [streak for streak in found if streak is not None]

    def _verdicts(self, step: int, figures: Figures, streaks: Sequence[Streak]) -> list[HealthVerdict]:
        """Verdicts of all rules that were beyond their limits for `patience` steps."""
        broken = [name for name in FINITE if not math.isfinite(figures.get(name, 0.0))]
        if broken:
            reason = f"{broken[0]} is {figures[broken[0]]} at step {step}: lower the learning rate, or check the data for invalid rows"
            return [HealthVerdict("not_finite", self.health.not_finite, step, reason, SLOWER)] if self.health.not_finite != "off" else []
        return [verdict for streak in streaks if (verdict := streak.verdict(step)) is not None]

    def _trouble(self, streaks: Sequence[Streak]) -> bool:
        return any(streak.steps for streak in streaks if self._action(streak.rule.name, streak.limit.action) != "note")

    def _as_run(self, verdict: HealthVerdict) -> HealthVerdict:
        return HealthVerdict(
            verdict.rule, self._action(verdict.rule, verdict.action), verdict.since, verdict.reason, self._remedy(verdict.rule)
        )

    def _action(self, rule: str, action: Action) -> Action:
        return next((found.again for found in RULES if found.name == rule), "stop") if action == "adjust" and rule in self.used else action

    def _remedy(self, rule: str) -> Adjustment:
        remedy = REMEDIES[rule]
        return SLOWER if remedy.kl != 1.0 and not self.beta else remedy


def proposed(rule: str, action: Action, used: Collection[str], good: int) -> Proposal | None:
    """Return the proposal after a failure that is not visible in the figures, or None if no adjustment is allowed.

    `rule` is `memory` or `stall`, `used` are the rules that were already applied, and `good` is the last good step.
    """
    if action != "adjust" or rule in used:
        return None
    return Proposal(rule=rule, adjustment=REMEDIES[rule], good=good)


def out_of_memory(reason: str) -> bool:
    """Return whether the text of an error indicates that a GPU or the machine ran out of memory."""
    text = reason.lower()
    return any(word in text for word in ("out of memory", "outofmemoryerror", "memoryerror", "can't allocate memory"))


STALL_STEPS = 3
"""Number of step times that are required to estimate the time of a step."""


SAVING = "saving"
"""Kind of the event at the start of a checkpoint."""
MEASURING = "measuring"
"""Kind of the event at the start of a measurement on the development prompts."""
LOADING = "loading"
"""Kind of the event at the start of a fold of a cross-validation, and at its end: the start model is read again."""
FOLD = "fold"
"""Kind of the event of a step of a fold. Health rules and curves of the run itself do not see these steps."""
BETWEEN_STEPS = (SAVING, "exporting", MEASURING, LOADING)
"""Kinds of events after which large files are read or written, or the model is measured. No step is expected until the next event."""


def stall_timeout(times: Sequence[float], health: Health, last: str = "progress", saves: Sequence[float] = ()) -> float:
    """Return the timeout, in seconds without an event, after which a run counts as stalled.

    `times` are the end times of its steps in order, in seconds. `last` is the kind of its last event. `saves` are the durations of
    earlier checkpoints in seconds. They do not apply to the final export, because the complete model can be many times larger than
    the checkpoint of an adapter.
    """
    if last == SAVING and saves:
        return min(health.save_seconds, max(health.stall_least_seconds, health.stall_times * max(saves)))
    if last in BETWEEN_STEPS:
        return health.save_seconds
    taken = [later - sooner for sooner, later in pairwise(times)][-START * 5 :]
    if len(taken) < STALL_STEPS:
        return health.stall_seconds
    return min(health.stall_seconds, max(health.stall_least_seconds, health.stall_times * median(taken)))


def seconds_of_saves(events: Sequence[JobEvent]) -> list[float]:
    """Return the duration of each save in seconds, from its start to its checkpoint, from the ordered events of a job."""
    progress = [event for event in events if event.kind != "warning"]
    pairs = ((sooner, later) for sooner, later in pairwise(progress) if (sooner.kind, later.kind) == (SAVING, "checkpoint"))
    return [later.at - sooner.at for sooner, later in pairs]
