"""Label confidence: the probability that an answer is right.

A verifiable or judge score is used directly. User ratings are combined with a prior by Bayes' rule. The prior is the share of right
answers in the same slice, estimated from the slice's votes and corrected for rating noise (Rogan and Gladen 1978).

The prior matters if the model is usually wrong. Suppose that one rating in seven is an error and that the model is almost never right
on a kind of request. Then most thumbs up on that kind of request are errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any

import polars as pl

from ratchet.contracts.data.datasets import UNMEASURED_NOISE, ScorerVersion
from ratchet.contracts.data.records import Tier

LEAST_NOISE, MOST_NOISE = 0.01, 0.5
"""Bounds of the rating noise. At 0.5 a rating carries no information; a larger estimate is not plausible."""
LEAST_PRIOR = 0.02
"""Bound of the prior: it stays in [LEAST_PRIOR, 1 - LEAST_PRIOR], so no slice counts as always right or always wrong."""
LEAST_VOTES = 30.0
"""Number of votes at which the prior of a slice and the prior of the whole line have equal weight (shrinkage)."""

MOST_VOTES = 5
"""Largest number of votes that counts for one answer. Votes on the same answer are not independent: all raters see the same text, and
later raters may have seen earlier votes."""


def believe(samples: pl.DataFrame, scorers: Sequence[ScorerVersion], noise: float | None) -> list[float]:
    """Return P(right) for each row of `samples` (records.SAMPLES).

    `noise` is the share of single ratings that are wrong; None means not measured, and UNMEASURED_NOISE is used. For tiers other
    than feedback, the result is the reward itself. For samples without a reward, the result is 0.5.
    """
    error = min(max(UNMEASURED_NOISE if noise is None else noise, LEAST_NOISE), MOST_NOISE)
    rows = samples.select("slice", "reward", "tier", "votes", "parts", "origin").to_dicts()
    priors = _priors(rows, {version.name for version in scorers if version.tier is Tier.FEEDBACK}, error)
    return [_posterior(row, priors, error) for row in rows]


def _posterior(row: Mapping[str, Any], priors: Mapping[str | None, float], error: float) -> float:
    if row["reward"] is None:
        return 0.5
    if row["tier"] != Tier.FEEDBACK:
        return float(row["reward"])
    prior = priors.get(row["slice"], priors[None])
    ups_minus_downs = (2 * row["reward"] - 1) * min(max(row["votes"], 1), MOST_VOTES)
    return 1 / (1 + exp(-(log(prior / (1 - prior)) + ups_minus_downs * log((1 - error) / error))))


def _priors(rows: Sequence[Mapping[str, Any]], people: set[str], error: float) -> dict[str | None, float]:
    """Slice -> share of its rated answers that are right. Key None: the share over the whole line.

    The share of a slice with few votes is shrunk towards the share of the line.
    """
    ups: dict[str | None, float] = {None: 0.0}
    votes: dict[str | None, float] = {None: 0.0}
    for row in rows:
        ratings = [score for name, score in json.loads(row["parts"]).items() if name in people and score is not None]
        if row["origin"] != "traffic" or not ratings or not row["votes"]:
            continue
        count = min(row["votes"], MOST_VOTES)
        for name in {None, row["slice"]}:
            ups[name] = ups.get(name, 0.0) + count * sum(ratings) / len(ratings)
            votes[name] = votes.get(name, 0.0) + count
    line = _share_right(ups[None] / votes[None], error) if votes[None] else 0.5
    shares = {name: _share_right(ups[name] / votes[name], error) for name in votes if name is not None}
    leaning: dict[str | None, float] = {
        name: (votes[name] * share + LEAST_VOTES * line) / (votes[name] + LEAST_VOTES) for name, share in shares.items()
    }
    return {None: line, **leaning}


def _share_right(up: float, error: float) -> float:
    """Convert the share of thumbs up to the share of right answers: solves up = right (1 - e) + (1 - right) e for `right`."""
    right = (up - error) / (1 - 2 * error) if error < MOST_NOISE else 0.5
    return min(max(right, LEAST_PRIOR), 1 - LEAST_PRIOR)
