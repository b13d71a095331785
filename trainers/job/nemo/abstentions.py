"""Neutral rewards for abstentions: a substitute that gives the answer an advantage of exactly zero.

The release computes the advantage of an answer from the rewards of its group, which is all answers to one prompt. It requires a
number for each answer and cannot represent a missing reward. The loss multiplier is set before the sampling, so it cannot be used
either. So an answer without a score gets the mean m of the scored answers in its group. For N answers, n of them scored and
k = N - n with the reward m:

* Baseline of all answers: the mean of the group stays m, so the advantage of an abstention is m - m = 0.
* Leave-one-out baseline: the baseline of an abstention is (n*m + (k-1)*m) / (N-1) = m, so its advantage is also 0. A scored answer
  with the reward r has the advantage r - (N*m - r) / (N-1) = (r - m) * N/(N-1). Without the abstentions, it is (r - m) * n/(n-1).
  Sign and order are the same; the value is smaller by the factor N(n-1) / (n(N-1)) <= 1.
* Division by the standard deviation of the group: the k values at m reduce it, so the advantages of scored answers increase. Without
  leave-one-out, the factor is exactly sqrt((N-1) / (n-1)). The direction of every update is the same; the weight of a group changes
  slightly.

The KL term of such an answer remains, which is independent of its reward, and its tokens count in the denominator of the loss.
A group with one score or none has constant rewards and so no advantage. A batch without any score is an error.
The module is pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from ratchet.contracts.errors import Retryable


def rewards(groups: Sequence[Hashable], scores: Sequence[float | None]) -> list[float]:
    """Return the scores with every None replaced by the mean score of its group, or of the batch if its group has no score.

    `groups` and `scores` have one entry per answer. Raises Retryable if there is no score at all.
    """
    scored: dict[Hashable, list[float]] = {}
    for group, score in zip(groups, scores, strict=True):
        if score is not None:
            scored.setdefault(group, []).append(score)
    if scores and not scored:
        raise Retryable(f"every scorer abstained on all {len(scores)} answers of a batch; check the scorers, then retry")
    overall = _mean([score for part in scored.values() for score in part])
    means = {group: _mean(part) for group, part in scored.items()}
    return [means.get(group, overall) if score is None else score for group, score in zip(groups, scores, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
