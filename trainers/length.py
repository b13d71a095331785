"""Decides how long a run trains, from scores on development prompts that it never trains on (`steps = "auto"`).

The learning rate is constant after the warm-up. The model is measured before the first step and at steps that double each time. Once the
scores no longer rise, the rate falls to 0 over a fifth of the steps so far, and the result is measured as well (constant rate with a
cooldown: Hägele et al. 2024, arXiv:2405.18392). Of all measured models, the better one is published, by scores and by the agreement with
known right answers together (`is_as_good`). The one-standard-error rule (Breiman et al. 1984) prefers a shorter training unless a longer
one is shown to be better; it loses more (`benchmarks/development.py`).
The module is pure. Every decision is a function of the measurements, which a checkpoint contains, so a resumed run decides alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

POINTS = 7
"""Maximum number of measured steps while the rate is constant."""
PATIENCE = 2
"""The scores no longer rise if this many measurements in a row are not above the best earlier one."""
SOON = 100
"""Steps before which a run does not end for lack of a rise: a few dozen prompts can show a short rise or fall by chance. A run of
at most 400 steps may end after a quarter of its steps."""
COOLDOWN = 0.2
"""Steps with a falling rate, as a share of the steps before."""
LEAST = 10
"""Minimum number of development prompts with a score. With fewer, the run trains for `unmeasured_steps`."""
LEAST_IN_SLICE = 10
"""Minimum number of development prompts for a standard error of a slice. Smaller slices are compared by a sign test."""
CHANCE = 0.025
"""Largest probability at which a test does not take its result for chance: for a test of slices, all large ones together and all small ones
together. A single large slice is then worse by two standard errors, one of four by 2.5, and a single small one by six losses without a
gain."""
AGREEMENT_WEIGHT = 0.5
"""Weight of the agreement with known right answers beside the scores."""
RIGHT, OTHERS = 0.5, 0.1
"""Score above which an answer is right, and share of the right answers that may differ from the known one."""
FIRST = 8
"""Least step that is measured."""
LEAST_STEPS = 1000
"""Upper limit of the steps for small training sets. Tiny models learn for tens of passes over a few hundred rows."""
PASSES = 4
"""Upper limit of the passes over a training set that takes more than LEAST_STEPS steps."""
UNMEASURED_PASSES = 3
"""Passes over the training set if nothing can be measured."""


class Measurement(NamedTuple):
    """Scores of the model after a step."""

    step: int
    """Optimiser steps so far. 0: the start model."""
    scores: tuple[float | None, ...]
    """Score of each development prompt, in the same order for all steps: in [0, 1], or a log-probability per token in nats. None: no
    score."""
    cooled: bool = False
    """Whether the rate fell to 0 before this measurement."""
    agreement: tuple[float | None, ...] = ()
    """Share of the tokens of a known right answer to each development prompt that the model ranks first, given the tokens before; None
    without such an answer. It is finer than a score: a model that learns a long answer becomes less wrong before it becomes right. Unlike a
    likelihood, it does not fall because a model becomes surer of its errors."""


class Length(NamedTuple):
    """Decision after a measurement."""

    action: str
    """train: go on to the next point. cool: let the rate fall to 0. end: publish `kept`."""
    kept: int
    """Step of the model to publish."""
    reason: str
    """Why, as text."""


def most_steps(rows: int, batch: int) -> int:
    """Return the upper limit of the steps for a training set of `rows` rows in batches of `batch`."""
    return max(LEAST_STEPS, math.ceil(PASSES * rows / batch))


def unmeasured_steps(rows: int, batch: int, most: int) -> int:
    """Return the steps of a run that cannot be measured: three passes, at most `most`."""
    return min(most, max(4 * FIRST, math.ceil(UNMEASURED_PASSES * rows / batch)))


def points(most: int) -> tuple[int, ...]:
    """Return the steps that are measured at a constant rate, ascending, so that run and cooldown have at most `most` steps."""
    last = max(1, most - cooldown_steps(math.floor(most / (1 + COOLDOWN))))
    found = {max(1, last >> halvings) for halvings in range(POINTS)}
    return tuple(sorted(step for step in found if step >= min(FIRST, last)))


def cooldown_steps(step: int) -> int:
    """Return the number of steps over which the rate falls to 0 after `step`."""
    return max(1, math.ceil(COOLDOWN * step))


def share_of_rate(step: int, warmup: int, cooling: tuple[int, int] | None) -> float:
    """Return the learning rate of a step as a share of the peak.

    `step` counts from 0, `warmup` is the number of warm-up steps. `cooling` is the step after which the rate falls, and the number of
    steps until it is 0; None while it is constant.
    """
    share = min(1.0, step / warmup) if warmup else 1.0
    if cooling is None:
        return share
    start, length = cooling
    return share * max(0.0, 1.0 - max(0, step - start) / length)


def decide(measured: Sequence[Measurement], slices: Sequence[str | None], most: int) -> Length:
    """Return what to do after the newest of the measurements.

    `measured` are all measurements in order; the first one is the start model at step 0. `slices` are the slices of the development
    prompts. `most` is the maximum number of steps.
    """
    start, trained = measured[0], measured[1:]
    kept, why = best(start, trained, slices)
    if not trained:
        return Length("train", 0, f"the start model scores {_text(start)}")
    newest = trained[-1]
    if newest.cooled:
        return Length("end", kept.step, why)
    constant = [one for one in trained if not one.cooled]
    rising = (
        newest.step < min(SOON, most // 4)
        or len(constant) <= PATIENCE
        or rises([mean(one) for one in constant])
        or rises([_agreement(one) for one in constant])
    )
    if rising and newest.step < points(most)[-1]:
        return Length("train", kept.step, why)
    lost, error = difference(max(constant, key=mean), newest)
    if lost > error and lost > 0:
        return Length("end", kept.step, f"{why}; longer training became worse")
    return Length("cool", kept.step, why)


def cooling(measured: Sequence[Measurement], slices: Sequence[str | None], most: int) -> tuple[int, int] | None:
    """Return the last step at a constant rate and the steps of the cooldown, if the run is in it or past it; otherwise None."""
    constant = [one for one in measured if not one.cooled]
    if not constant or decide(constant, slices, most).action != "cool":
        return None
    return constant[-1].step, cooldown_steps(constant[-1].step)


def rises(values: Sequence[float]) -> bool:
    """Whether one of the last PATIENCE values is above all values before them."""
    best_before = max(values[:-PATIENCE], default=-math.inf)
    return any(value > best_before for value in values[-PATIENCE:])


def _agreement(one: Measurement) -> float:
    return mean(Measurement(one.step, one.agreement))


def is_as_good(one: Measurement, other: Measurement) -> bool:
    """Return whether `one` is at least as good as `other`.

    The paired difference of the scores decides together with that of the agreement, each in standard errors. The agreement has half the
    weight, and counts at most as one standard error of the scores: it varies much less than they do, but it is not what users get.
    """
    scores = _in_errors(*difference(one, other))
    agreement = _in_errors(*difference(Measurement(one.step, one.agreement), Measurement(other.step, other.agreement)))
    return scores + max(-1.0, min(1.0, AGREEMENT_WEIGHT * agreement)) >= 0


def _in_errors(gain: float, error: float) -> float:
    """Return a difference in standard errors. It is infinite if all prompts differ alike."""
    if error == 0:
        return math.copysign(math.inf, gain) if gain else 0.0
    return gain / error


def mean(one: Measurement) -> float:
    """Return the mean score; minus infinity without any score."""
    known = [score for score in one.scores if score is not None]
    return math.fsum(known) / len(known) if known else -math.inf


def difference(one: Measurement, other: Measurement, among: Sequence[int] | None = None) -> tuple[float, float]:
    """Return the mean of `one` minus `other` over prompts that both have a score for, and its standard error.

    `among` restricts the prompts by their positions. Without two such prompts, the result is (0, infinity).
    """
    places = range(len(one.scores)) if among is None else among
    both = [(one.scores[i], other.scores[i]) for i in places]
    pairs = [a - b for a, b in both if a is not None and b is not None]
    if len(pairs) < 2:
        return 0.0, math.inf
    centre = math.fsum(pairs) / len(pairs)
    return centre, math.sqrt(math.fsum((pair - centre) ** 2 for pair in pairs) / (len(pairs) - 1) / len(pairs))


def accepts_many(scores: Sequence[float | None], answers: Sequence[str], known: Sequence[str | None]) -> bool:
    """Whether it is shown that more than OTHERS of the answers that score as right are others than the known right ones.

    The agreement with one known answer then tells little about how right a model is.
    """
    right = [
        (answer.strip(), one.strip())
        for score, answer, one in zip(scores, answers, known, strict=True)
        if one is not None and score is not None and score > RIGHT
    ]
    return _at_least(sum(answer != one for answer, one in right), len(right), OTHERS) <= CHANCE


def worse_slices(one: Measurement, start: Measurement, slices: Sequence[str | None]) -> list[str]:
    """Return the slices that are worse than the start model's beyond chance, in alphabetical order.

    The bound of a slice allows for the number of slices (Bonferroni). Otherwise, one of ten runs with four slices would lose its best model
    by chance.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(slices):
        if name is not None:
            places[name].append(place)
    worse, small = [], sum(len(among) < LEAST_IN_SLICE for among in places.values())
    errors = NormalDist().inv_cdf(1 - CHANCE / max(1, len(places) - small))
    for name, among in sorted(places.items()):
        lost, error = difference(start, one, among)
        both = [(one.scores[place], start.scores[place]) for place in among]
        pairs = [(after, before) for after, before in both if after is not None and before is not None]
        if len(pairs) >= LEAST_IN_SLICE:
            is_worse = lost > errors * error and lost > 0
        elif small and all(0 <= score <= 1 for pair in pairs for score in pair):  # a likelihood changes in every prompt
            losses, gains = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
            is_worse = _at_least(losses, losses + gains, 0.5) <= CHANCE / small
        else:
            is_worse = False
        if is_worse:
            worse.append(name)
    return worse


def _at_least(found: int, of: int, share: float) -> float:
    """Return the probability of at least `found` successes in `of` trials with the success probability `share` (binomial test)."""
    from scipy.special import bdtrc

    return float(bdtrc(found - 1, of, share))


def best(start: Measurement, trained: Sequence[Measurement], slices: Sequence[str | None]) -> tuple[Measurement, str]:
    """Return the measurement of the model to publish, and why. Models with a worse slice are taken only if there is no other."""
    if not trained:
        return start, ""
    sound = [one for one in trained if not worse_slices(one, start, slices)]
    guarded = "" if sound else f"; every trained model is worse in a slice ({', '.join(worse_slices(trained[-1], start, slices))})"
    able = sound or [max(trained, key=mean)]
    kept = able[0]
    for one in able[1:]:
        gain, _ = difference(one, kept)
        if is_as_good(one, kept) or (one.cooled and gain >= 0):  # a cooldown removes noise of the rate, which few prompts do not show
            kept = one
    gain, error = difference(kept, start)
    shown = f"{gain:+.3f} against the start model, standard error {error:.3f}" if math.isfinite(error) else "too few scores to compare"
    return kept, f"step {kept.step} scores {_text(kept)} ({shown}){guarded}"


def _text(one: Measurement) -> str:
    known = sum(score is not None for score in one.scores)
    return f"{mean(one):.3f} on {known} development prompts" if known else "nothing"
