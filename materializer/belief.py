"""How sure we may be that an answer is right: proof where there is some, else what people said of it, weighed against how often
such answers are right at all.

A thumb up from people who err one time in seven says little of an answer to a kind of request that the model never gets
right: most such thumbs are the errors. So the prior comes from the votes on the same slice, corrected for their noise
(Rogan and Gladen 1978), and the votes on the answer itself move it by Bayes' rule. Knows nothing of pairs or of training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any

import polars as pl

from contracts.data import UNMEASURED_NOISE, ScorerVersion
from contracts.records import Tier

LEAST_NOISE, MOST_NOISE = 0.01, 0.5
"""At one half ratings say nothing; beyond it, nothing that we would believe."""
LEAST_PRIOR = 0.02
"""No kind of answer is held to be always right or always wrong."""
LEAST_VOTES = 30.0
"""A slice's own prior counts fully from about so many votes on; with fewer it leans on the whole line's."""

MOST_VOTES = 5
"""Votes on one answer are no independent witnesses: they share its looks, and later ones have seen the earlier. More count as so many."""


def believe(samples: pl.DataFrame, scorers: Sequence[ScorerVersion], noise: float | None) -> list[float]:
    """P(right) of each of `samples` (records.SAMPLES). `noise`: share of single ratings that are wrong, None where unmeasured.

    Tiers other than feedback speak for themselves: their reward is taken as it is, 0.5 where nobody spoke.
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
    """Slice -> share of its rated answers that are right; None -> of the whole line. A slice with few votes leans on the line."""
    ups: dict[str | None, float] = {None: 0.0}
    votes: dict[str | None, float] = {None: 0.0}
    for row in rows:
        said = [score for name, score in json.loads(row["parts"]).items() if name in people and score is not None]
        if row["origin"] != "traffic" or not said or not row["votes"]:
            continue
        count = min(row["votes"], MOST_VOTES)
        for name in {None, row["slice"]}:
            ups[name] = ups.get(name, 0.0) + count * sum(said) / len(said)
            votes[name] = votes.get(name, 0.0) + count
    line = _share_right(ups[None] / votes[None], error) if votes[None] else 0.5
    shares = {name: _share_right(ups[name] / votes[name], error) for name in votes if name is not None}
    leaning: dict[str | None, float] = {
        name: (votes[name] * share + LEAST_VOTES * line) / (votes[name] + LEAST_VOTES) for name, share in shares.items()
    }
    return {None: line, **leaning}


def _share_right(up: float, error: float) -> float:
    """From the share of thumbs up to the share of right answers: up = right (1 - e) + (1 - right) e, solved."""
    right = (up - error) / (1 - 2 * error) if error < MOST_NOISE else 0.5
    return min(max(right, LEAST_PRIOR), 1 - LEAST_PRIOR)
