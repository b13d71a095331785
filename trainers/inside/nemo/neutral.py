"""What an abstention is worth in a group: exactly nothing. Pure arithmetic on rewards.

The release computes an answer's advantage from the rewards of its group (all answers to one prompt) and takes only a
number for each; it has no word for "not scored", and a loss multiplier is set before anything is sampled. So an answer
that nobody could score gets the mean m of its group's scored ones. With N answers, n scored, k = N - n at m:

* baseline of all: the group's mean stays m, so an abstention's advantage is m - m = 0.
* leave-one-out: its baseline is (n*m + (k-1)*m) / (N-1) = m, again 0; a scored answer r has
  r - (N*m - r) / (N-1) = (r - m) * N/(N-1), against (r - m) * n/(n-1) without the abstentions: same sign, same order,
  smaller by the factor N(n-1) / (n(N-1)) <= 1.
* divided by the group's spread: the k values at m shrink the spread, so scored answers get larger again; without
  leave-one-out by sqrt((N-1) / (n-1)) exactly. The direction of every update stays; a group's weight changes a little.

What stays is the KL term of such an answer (it holds the model near the start, whatever the score) and its tokens in
the loss's denominator. A group with one score, or none, is constant: no advantage at all. A batch in which nothing was
scored is not an answer's fault, and is not neutral but an error.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from contracts.errors import Retryable


def rewards(groups: Sequence[Hashable], scores: Sequence[float | None]) -> list[float]:
    """Scores with every None replaced by the mean of its group's scored answers; by the batch's mean where a group has none.

    Retryable where nothing was scored at all.
    """
    scored: dict[Hashable, list[float]] = {}
    for group, score in zip(groups, scores, strict=True):
        if score is not None:
            scored.setdefault(group, []).append(score)
    if scores and not scored:
        raise Retryable(f"every scorer abstained on all {len(scores)} answers of a batch; look after the scorers, then try again")
    overall = _mean([score for part in scored.values() for score in part])
    means = {group: _mean(part) for group, part in scored.items()}
    return [means.get(group, overall) if score is None else score for group, score in zip(groups, scores, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
