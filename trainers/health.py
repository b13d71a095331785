"""When a run is going wrong, and what the next attempt should change: rules as data, judged over the figures of each step.

Pure, without torch: the same rules watch every trainer, because all of them speak of their figures by the same names. A rule
says that a step is beyond its limit; beyond it for `patience` steps in a row, it notes, adjusts or stops, as the recipe's
`health` says. This module refuses to know who trains, where, and whether an adjustment is granted: that is a ledger's row.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final

from contracts.training import Adjustment, Proposal
from trainers.recipes import Action, Health, Limit

Figures = Mapping[str, float]

START = 10
"""Steps that a mean of rewards is taken over."""
BASE = 5
"""Steps at the beginning whose median later ones are compared with: few, because a reward can be cheated within ten."""
WINDOW = 20
"""Steps before a step that its loss is compared with."""
SHORT_ANSWER = 16.0
"""Tokens. An answer that was shorter at the start counts as this long: a word more is no blow-up."""
FINITE = ("loss", "grad_norm")
"""Figures without which a step is broken, whatever the recipe makes of it."""
SLOWER: Final = Adjustment(learning_rate=0.5)
NEARER: Final = Adjustment(kl=2.0)


class Past:
    """What the rules need of a figure's earlier values: the first, the last, and sums. It stays as small however long a run is."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[float] = []
        """START of them at most."""
        self.last: deque[float] = deque(maxlen=WINDOW)
        self.best = -math.inf
        """Highest mean of START in a row."""
        self.leaps = 0.0
        """Sum of squared differences between neighbours."""

    def add(self, value: float) -> None:
        self.leaps += (value - self.last[-1]) ** 2 if self.last else 0.0
        if len(self.first) < START:
            self.first.append(value)
        self.last.append(value)
        self.count += 1
        if self.count >= START:
            self.best = max(self.best, fmean(self.newest(START)))

    def newest(self, n: int) -> list[float]:
        """The last n of them, in order; n is WINDOW at most."""
        return list(self.last)[-n:]


Measure = Callable[[float, Past], float | None]
"""(this step's value, the ones before) -> what is held against the limit; None: not yet to be said."""


@dataclass(frozen=True)
class Rule:
    """One way to go wrong. Its limit, patience and action are in the recipe, under its name."""

    name: str
    what: str
    """In words, before the measured value."""
    figures: tuple[str, ...]
    """The first one that is known is judged."""
    measure: Measure
    remedy: Adjustment
    below: bool = False
    """Whether it is what lies below the limit that is wrong."""
    chance: Measure | None = None
    """What chance alone can bring, in the rule's unit: the limit is never taken to be nearer than that."""
    again: Action = "stop"
    """Instead of `adjust`, where an attempt before was adjusted for this already."""


@dataclass(frozen=True)
class Verdict:
    """A rule that has been broken for long enough."""

    rule: str
    action: Action
    since: int
    """The first step of the trouble: checkpoints from there on are not good."""
    reason: str
    remedy: Adjustment

    @property
    def proposal(self) -> Proposal | None:
        """What the next attempt should change, where it should."""
        return Proposal(rule=self.rule, adjustment=self.remedy, good=self.since - 1) if self.action == "adjust" else None


def _itself(value: float, _past: Past) -> float:
    return value


def _above_usual(value: float, past: Past) -> float | None:
    """Spreads above the median of the steps before; the spread is a robust one, and never less than a twentieth of the median."""
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
    """How far two means of START steps, the best of all and today's, lie apart in a run in which nothing changes.

    A step's mean reward is that of a few prompts, so it leaps about. Its spread comes from the leaps between neighbours,
    which a trend hardly touches; a median of them would be 0 where most steps are alike. The extremes of n means lie
    2 sqrt(2 ln n) spreads apart at most, more or less; one more for safety: on made-up runs with unchanging difficulty, of
    200 and 1000 steps, less than one in a hundred is accused. Called with one value before it at least.
    """
    leaps = (past.leaps + (value - past.last[-1]) ** 2) / past.count / 2
    return (1 + 2 * math.sqrt(2 * math.log(past.count + 1))) * math.sqrt(leaps / START)


def _share_of_start(value: float, past: Past) -> float | None:
    start = median(past.first[:BASE]) if past.count >= BASE else 0.0
    return value / start if start > 0 else None


def _length(value: float, past: Past) -> float | None:
    return value / max(SHORT_ANSWER, median(past.first[:BASE])) if past.count >= BASE else None


RULES: Final = (
    Rule("kl", "KL to the start model", ("kl",), _itself, NEARER),
    Rule("grad_norm", "gradient norm", ("grad_norm",), _itself, SLOWER, again="note"),  # it is clipped, after all
    Rule("chosen_fall", "fall of the chosen answers' log-probability", ("chosen_fall",), _itself, NEARER),
    Rule("loss_spike", "loss above its median, in spreads,", ("loss",), _above_usual, SLOWER),
    Rule("reward_falls", "fall of the mean reward from its best", ("reward",), _fall_from_best, SLOWER, chance=_range_by_chance),
    Rule("reward_flat", "rise of the mean reward", ("reward",), _rise, NEARER, below=True),
    Rule("entropy_collapse", "entropy, as a share of the start's,", ("entropy",), _share_of_start, NEARER, below=True),
    Rule("length_grows", "answer length, in lengths of the start,", ("answer_tokens",), _length, NEARER),
    Rule(
        "generation_slow", "time of a step, in times of the start,", ("generation_seconds", "step_seconds"), _share_of_start, Adjustment()
    ),
)
REMEDIES: Final = {rule.name: rule.remedy for rule in RULES} | {
    "not_finite": SLOWER,
    "memory": Adjustment(memory=0.5),
    "stall": Adjustment(),  # the same again, from the last good step: what hung may not hang twice
}


class Streak:
    """The last steps in a row in which one figure was beyond one rule's limit."""

    def __init__(self, rule: Rule, limit: Limit) -> None:
        self.rule, self.limit = rule, limit
        self.past = Past()
        self.steps: deque[tuple[int, float, float]] = deque(maxlen=limit.patience)
        """(step, what was measured, the limit that held), oldest first."""

    def add(self, step: int, value: float) -> None:
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

    def verdict(self, step: int) -> Verdict | None:
        if len(self.steps) < self.limit.patience:
            return None
        beyond = "stayed below" if self.rule.below else "exceeded"
        _, measured, bound = self.steps[-1]
        steps = "at step" if self.limit.patience == 1 else f"for {self.limit.patience} steps in a row, last at step"
        reason = f"{self.rule.what} {measured:.3g} {beyond} {bound:.3g} {steps} {step}"
        return Verdict(self.rule.name, self.limit.action, self.steps[0][0], reason, self.rule.remedy)


class Watch:
    """The rules over one incarnation: a note is told once, and what was adjusted for once already is not adjusted again."""

    def __init__(self, health: Health, beta: float = 0.0, used: Collection[str] = ()) -> None:
        self.health = health
        self.beta = beta
        """Of the recipe: without a pull to the start model, a stronger pull is no remedy."""
        self.used = frozenset(used)
        """Rules whose remedy this attempt has already."""
        self.calm: int | None = None
        """The last step of finite figures that no rule which can end the run found fault with. A checkpoint of it is worth keeping."""
        limits = {rule.name: getattr(health, rule.name) for rule in RULES}
        self._streaks = {
            (rule.name, name): Streak(rule, limits[rule.name])
            for rule in RULES
            if limits[rule.name].action != "off"
            for name in rule.figures
        }
        self._noted: set[str] = set()

    def judge(self, step: int, figures: Figures) -> list[Verdict]:
        """What is new after this step; the first one that adjusts or stops ends the run."""
        streaks = self._seen(step, figures)
        said = [self._as_run(verdict) for verdict in self._verdicts(step, figures, streaks)]
        new = [verdict for verdict in said if verdict.action != "note" or verdict.rule not in self._noted]
        self._noted |= {verdict.rule for verdict in new if verdict.action == "note"}
        finite = all(math.isfinite(figures.get(name, 0.0)) for name in FINITE)
        if finite and not any(verdict.action != "note" for verdict in said) and not self._trouble(streaks):
            self.calm = step
        return sorted(new, key=lambda verdict: verdict.action == "note")

    def _seen(self, step: int, figures: Figures) -> list[Streak]:
        """Of the figures that this step has: one for each rule, the first that the rule knows. What is no number is passed over."""
        for (_, name), streak in self._streaks.items():
            if math.isfinite(figures.get(name, math.nan)):
                streak.add(step, figures[name])
        judged = ((rule, next((name for name in rule.figures if name in figures), "")) for rule in RULES)
        found = (self._streaks.get((rule.name, name)) for rule, name in judged if math.isfinite(figures.get(name, math.nan)))
        return [streak for streak in found if streak is not None]

    def _verdicts(self, step: int, figures: Figures, streaks: Sequence[Streak]) -> list[Verdict]:
        """Every rule that this step has broken for long enough."""
        broken = [name for name in FINITE if not math.isfinite(figures.get(name, 0.0))]
        if broken:
            reason = f"{broken[0]} is {figures[broken[0]]} at step {step}: lower the learning rate, or look for broken rows"
            return [Verdict("not_finite", self.health.not_finite, step, reason, SLOWER)] if self.health.not_finite != "off" else []
        return [verdict for streak in streaks if (verdict := streak.verdict(step)) is not None]

    def _trouble(self, streaks: Sequence[Streak]) -> bool:
        return any(streak.steps for streak in streaks if self._action(streak.rule.name, streak.limit.action) != "note")

    def _as_run(self, verdict: Verdict) -> Verdict:
        return Verdict(verdict.rule, self._action(verdict.rule, verdict.action), verdict.since, verdict.reason, self._remedy(verdict.rule))

    def _action(self, rule: str, action: Action) -> Action:
        return next((found.again for found in RULES if found.name == rule), "stop") if action == "adjust" and rule in self.used else action

    def _remedy(self, rule: str) -> Adjustment:
        remedy = REMEDIES[rule]
        return SLOWER if remedy.kl != 1.0 and not self.beta else remedy


def proposed(rule: str, action: Action, used: Collection[str], good: int) -> Proposal | None:
    """The proposal after a failure that no figure shows: `memory` or `stall`. `good`: the last step that went well."""
    if action != "adjust" or rule in used:
        return None
    return Proposal(rule=rule, adjustment=REMEDIES[rule], good=good)


def out_of_memory(reason: str) -> bool:
    """Whether an error's words say that memory was short, on a GPU or on the machine."""
    said = reason.lower()
    return any(word in said for word in ("out of memory", "outofmemoryerror", "memoryerror", "can't allocate memory"))


STALL_STEPS = 3
"""Steps that must have been seen before the time of a step counts as known."""


SAVING = "saving"
WRITING = (SAVING, "exporting")
"""Kinds of events after which something large is written: until the next event, no step is due."""


def patience_for_a_step(times: Sequence[float], health: Health, last: str = "progress", saves: Sequence[float] = ()) -> float:
    """Seconds without a sign after which a run stalls. `times`: when its steps ended, seconds, in order; `last`: kind of its last event;
    `saves`: seconds that earlier checkpoints took. The finished model may be many times larger than an adapter's checkpoint."""
    if last == SAVING and saves:
        return min(health.save_seconds, max(health.stall_least_seconds, health.stall_times * max(saves)))
    if last in WRITING:
        return health.save_seconds
    taken = [later - sooner for sooner, later in pairwise(times)][-START * 5 :]
    if len(taken) < STALL_STEPS:
        return health.stall_seconds
    return min(health.stall_seconds, max(health.stall_least_seconds, health.stall_times * median(taken)))


def seconds_of_saves(events: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of a job's events, in order: from the beginning of each save to its checkpoint."""
    told = [event for event in events if event["kind"] != "warning"]
    pairs = ((sooner, later) for sooner, later in pairwise(told) if (sooner["kind"], later["kind"]) == (SAVING, "checkpoint"))
    return [float(later["at"]) - float(sooner["at"]) for sooner, later in pairs]
