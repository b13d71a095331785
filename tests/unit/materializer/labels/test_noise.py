"""How wrong people's ratings are, measured where an answer has both ratings and proof."""

from __future__ import annotations

import json
import random

import polars as pl
import pytest

from contracts.data import ScorerVersion
from contracts.records import SAMPLES, Tier
from materializer.lake.schemas import frame_of
from materializer.training_sets.facts import label_noise

SCORERS = tuple(
    ScorerVersion(name=name, distribution="d", version="1", code="c", tier=tier, weight=1.0)
    for name, tier in (("f", Tier.FEEDBACK), ("v", Tier.VERIFIABLE))
)


def rated(rows: list[tuple[list[float], float]]) -> pl.DataFrame:
    """Samples with (ratings, proof)."""
    base = {"prompt": "[]", "reward": 1.0, "tier": "verifiable", "user": None, "origin": "traffic", "model_version": None, "slice": None}
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
def test_noise_is_that_of_one_rating_however_many_rate_an_answer(raters: int) -> None:
    luck = random.Random(raters)
    proofs = [float(luck.random() < 0.6) for _ in range(3000)]
    rows = [([proof if luck.random() >= 0.2 else 1 - proof for _ in range(raters)], proof) for proof in proofs]
    assert label_noise(rated(rows), SCORERS) == pytest.approx(0.2, abs=0.02)


def test_a_rating_in_the_middle_takes_no_side() -> None:
    assert label_noise(rated([([1.0], 1.0)] * 30 + [([0.5], 1.0)] * 30), SCORERS) == 0


def test_a_few_answers_measure_nothing() -> None:
    assert label_noise(rated([([1.0] * 9, 1.0)] * 19), SCORERS) is None
