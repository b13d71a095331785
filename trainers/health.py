"""When a run is going wrong, and what the next attempt should change: rules as data, judged over the figures of each step.

Pure, without torch: the same rules watch every trainer, because all of them speak of their figures by the same names. A rule
says that a step is beyond its limit; beyond it for `patience` steps in a row, it notes, adjusts or stops, as the recipe's
`health` says. This module refuses to know who trains, where, and whether an adjustment is granted: that is a ledger's row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Any, Final

from contracts.training import Adjustment, Proposal
from trainers.recipes import Action, Health

Figures = Mapping[str, float]
History = Sequence[tuple[int, Figures]]
"""Earlier steps and their figures, oldest first."""
Measure = Callable[[float, Sequence[float]], float | None]
"""(this step's value, earlier values) -> what is held against the limit; None: not yet to be said."""

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


def _itself(value: float, _earlier: Sequence[float]) -> float:
    return value


def _above_usual(value: float, earlier: Sequence[float]) -> float | None:
    """Spreads above the median of the steps before; the spread is a robust one, and never less than a twentieth of the median."""
    if len(earlier) < WINDOW:
        return None
    usual = earlier[-WINDOW:]
    middle = median(usual)
    spread = max(1.4826 * median(abs(other - middle) for other in usual), 0.05 * abs(middle), 0.01)
    return (value - middle) / spread


def _rise(value: float, earlier: Sequence[float]) -> float | None:
    if len(earlier) < 2 * START:
        return None
    return fmean([*earlier[1 - START :], value]) - fmean(earlier[:START])


def _fall_from_best(value: float, earlier: Sequence[float]) -> float | None:
    if len(earlier) < 2 * START:
        return None
    sums = list(accumulate(earlier, initial=0.0))
    best = max(later - sooner for sooner, later in zip(sums, sums[START:], strict=False)) / START
    return best - fmean([*earlier[1 - START :], value])


def _range_by_chance(value: float, earlier: Sequence[float]) -> float:
    """How far two means of START steps, the best of all and today's, lie apart in a run in which nothing changes.

    A step's mean reward is that of a few prompts, so it leaps about. Its spread comes from the leaps between neighbours,
    which a trend hardly touches; a median of them would be 0 where most steps are alike. The extremes of n means lie
    2 sqrt(2 ln n) spreads apart at most, more or less; one more for safety: on made-up runs with unchanging difficulty, of
    200 and 1000 steps, less than one in a hundred is accused.
    """
    known = [*earlier, value]
    leaps = fmean((later - sooner) ** 2 for sooner, later in pairwise(known)) / 2
    return (1 + 2 * math.sqrt(2 * math.log(len(known)))) * math.sqrt(leaps / START)


def _share_of_start(value: float, earlier: Sequence[float]) -> float | None:
    start = median(earlier[:BASE]) if len(earlier) >= BASE else 0.0
    return value / start if start > 0 else None


def _length(value: float, earlier: Sequence[float]) -> float | None:
    return value / max(SHORT_ANSWER, median(earlier[:BASE])) if len(earlier) >= BASE else None


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


def judge(step: int, figures: Figures, history: History, health: Health) -> list[Verdict]:
    """Every rule that this step has broken for long enough. `history`: the steps before, of the same incarnation."""
    broken = [name for name in FINITE if not math.isfinite(figures.get(name, 0.0))]
    if broken:
        reason = f"{broken[0]} is {figures[broken[0]]} at step {step}: lower the learning rate, or look for broken rows"
        return [Verdict("not_finite", health.not_finite, step, reason, SLOWER)] if health.not_finite != "off" else []
    return [verdict for rule in RULES if (verdict := _judged(rule, step, figures, history, health)) is not None]


def striking(rule: Rule, step: int, figures: Figures, history: History, health: Health) -> list[tuple[int, float, float]]:
    """The last steps in a row that are beyond the rule's limit, newest first, with what was measured and the limit that held; at most
    its patience."""
    limit = getattr(health, rule.name)
    name = next((name for name in rule.figures if name in figures), None)
    if name is None or limit.action == "off" or not math.isfinite(figures[name]):
        return []
    known = [(at, row[name]) for at, row in history if math.isfinite(row.get(name, math.nan))] + [(step, figures[name])]
    values = [value for _, value in known]
    found: list[tuple[int, float, float]] = []
    while len(found) < min(limit.patience, len(known)):
        at = len(known) - 1 - len(found)
        measured = rule.measure(values[at], values[:at])
        if measured is None or not (measured < limit.limit if rule.below else measured > limit.limit):
            break
        bound = max(limit.limit, (rule.chance(values[at], values[:at]) or 0.0) if rule.chance else limit.limit)
        if not rule.below and measured <= bound:
            break
        found.append((known[at][0], measured, bound))
    return found


def _judged(rule: Rule, step: int, figures: Figures, history: History, health: Health) -> Verdict | None:
    limit = getattr(health, rule.name)
    found = striking(rule, step, figures, history, health)
    if len(found) < limit.patience:
        return None
    beyond = "stayed below" if rule.below else "exceeded"
    steps = "step" if limit.patience == 1 else f"{limit.patience} steps in a row, last at step"
    reason = f"{rule.what} {found[0][1]:.3g} {beyond} {found[0][2]:.3g}" + (f" at {steps}" if limit.patience == 1 else f" for {steps}")
    return Verdict(rule.name, limit.action, found[-1][0], f"{reason} {step}", rule.remedy)


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
        self._history: list[tuple[int, Figures]] = []
        self._noted: set[str] = set()

    def judge(self, step: int, figures: Figures) -> list[Verdict]:
        """What is new after this step; the first one that adjusts or stops ends the run."""
        said = [self._as_run(verdict) for verdict in judge(step, figures, self._history, self.health)]
        new = [verdict for verdict in said if verdict.action != "note" or verdict.rule not in self._noted]
        self._noted |= {verdict.rule for verdict in new if verdict.action == "note"}
        finite = all(math.isfinite(figures.get(name, 0.0)) for name in FINITE)
        if finite and not any(verdict.action != "note" for verdict in said) and not self._trouble(step, figures):
            self.calm = step
        self._history.append((step, dict(figures)))
        return sorted(new, key=lambda verdict: verdict.action == "note")

    def _trouble(self, step: int, figures: Figures) -> bool:
        ends = [rule for rule in RULES if self._action(rule.name, getattr(self.health, rule.name).action) != "note"]
        return any(striking(rule, step, figures, self._history, self.health) for rule in ends)

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
