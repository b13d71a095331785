"""Tests of label noise, which is measured on answers with both user ratings and a verifiable reward."""

from __future__ import annotations

import json
import random

import polars as pl
import pytest

from ratchet.contracts.data.datasets import ScorerVersion
from ratchet.contracts.data.records import SAMPLES, Tier
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.training_sets.facts import label_noise

SCORERS = tuple(
    ScorerVersion(name=name, distribution="d", version="1", code="c", tier=tier, weight=1.0)
    for name, tier in (("f", Tier.FEEDBACK), ("v", Tier.VERIFIABLE))
)


def rated(rows: list[tuple[list[float], float]]) -> pl.DataFrame:
    """Samples from (ratings, verifiable reward)."""
    base = {
        "prompt": "[]",
        "reward": 1.0,
        "tier": "verifiable",
        "user": None,
        "origin": "traffic",
        "model_version": None,
        "slice": None,
        "tools": None,
    }
    return frame_of(
        [
            base
            | {"prompt_id": f"p{i}", "answer": "a", "trace": f"t{i}", "votes": len(votes), "repeats": 1}
            | {"parts": json.dumps({"f": sum(votes) / len(votes), "v": proof})}
            for i, (votes, proof) in enumerate(rows)
        ],
        SAMPLES,
    )


@pytest.mark.parametrize("raters", [1, 2, 3, 5])
def test_noise_is_per_rating_for_any_number_of_raters(raters: int) -> None:
    luck = random.Random(raters)
    proofs = [float(luck.random() < 0.6) for _ in range(3000)]
    rows = [([proof if luck.random() >= 0.2 else 1 - proof for _ in range(raters)], proof) for proof in proofs]
    assert label_noise(rated(rows), SCORERS) == pytest.approx(0.2, abs=0.02)


def test_neutral_ratings_are_ignored() -> None:
    assert label_noise(rated([([1.0], 1.0)] * 30 + [([0.5], 1.0)] * 30), SCORERS) == 0


def test_noise_is_not_measured_on_few_answers() -> None:
    assert label_noise(rated([([1.0] * 9, 1.0)] * 19), SCORERS) is None
