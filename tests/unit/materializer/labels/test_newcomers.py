"""Tests of the wait for new users: many new ids have no influence on what a model learns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import Inconclusive
from ratchet.contracts.ids import root_id
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.labels.credible import without_newcomers
from ratchet.materializer.training_sets.holdout import held_out
from tests.unit.materializer.conftest import NOW, make_datasets, make_loop
from tests.unit.materializer.records import batch, evaluation, span, spans
from tests.unit.materializer.small_datasets import HELD, rows

SYBILS = 1000
WEEK = timedelta(days=7)


def _prompts(count: int) -> list[str]:
    texts = (f"question {n}?" for n in range(100_000))
    found = (text for text in texts if not held_out(root_id([{"role": "user", "content": text}]), "ratchet", 0.2))
    return [next(found) for _ in range(count)]


def _datasets(folder: Path, days: float) -> LakeDatasets:
    return make_datasets(folder, make_loop(rewards=[{"name": "user_feedback"}], snapshot={"newcomer_days": days}))


def _corrected(first: int, prompts: list[str], users: list[str], text: str) -> list[Any]:
    """Return traces that users have corrected, one per prompt."""
    return [
        span(first + n, prompt, "no", [evaluation("user_correction", text=text, user__id=user)], user__id=user)
        for n, (prompt, user) in enumerate(zip(prompts, users, strict=True))
    ]


def _send(datasets: LakeDatasets, *items: Any) -> None:
    """Ingest spans that an application has sent."""
    datasets.ingest(replace(batch(spans(*items)), sender=Sender(name="app", roles=(Role.TRACES, Role.FEEDBACK))))


def _poison(datasets: LakeDatasets, days_between: float) -> float:
    """Return the share of the weight of the sybils' pairs and demonstrations, after a week or less of honest users."""
    prompts = _prompts(100 + SYBILS)
    honest = _corrected(1, prompts[:100], [f"honest-{n % 20}" for n in range(100)], "right")
    _send(datasets, span(99_999, HELD, metadata__reference="1"), *honest)
    datasets.clock.sleep(days_between * 86_400)
    _send(datasets, *_corrected(1000, prompts[100:], [f"sybil-{n}" for n in range(SYBILS)], "poison"))
    snapshot = datasets.freeze("s", datasets.clock.now(), datasets.edition(1))
    training = datasets.assemble("t", snapshot, None)
    chosen = [(row["chosen"], row["weight"]) for row in rows(datasets, training.pairs)]
    chosen += [(row["answer"], row["weight"]) for row in rows(datasets, training.demonstrations)]
    assert sum(text == "right" for text, _ in chosen) > 0
    return sum(weight for text, weight in chosen if text == "poison") / sum(weight for _, weight in chosen)


@pytest.mark.slow
def test_a_thousand_new_users_have_no_weight(tmp_path: Path) -> None:
    assert _poison(_datasets(tmp_path, days=7), days_between=8) <= 0.01


@pytest.mark.slow
def test_without_the_wait_they_have_most_of_it(tmp_path: Path) -> None:
    assert _poison(_datasets(tmp_path, days=0), days_between=8) > 0.5


@pytest.mark.slow
def test_feedback_is_used_when_its_user_is_no_longer_new(tmp_path: Path) -> None:
    datasets = _datasets(tmp_path, days=7)
    _send(datasets, span(99_999, HELD, metadata__reference="1"), *_corrected(1, _prompts(5), ["ada"] * 5, "right"))
    datasets.clock.sleep(8 * 86_400)
    _send(datasets, *_corrected(10, _prompts(10)[5:], ["eve"] * 5, "right"))
    first, early, late = (datasets.freeze(f"day {day}", NOW + timedelta(days=day), datasets.edition(1)) for day in (7, 9, 16))
    assert first.counts["corrections"] == 5, "ada came with the first traces of the line"
    assert "feedback:newcomer" not in first.counts
    assert (early.counts["corrections"], early.counts["feedback:newcomer"]) == (5, 5)
    assert late.counts["corrections"] == 10
    assert "feedback:newcomer" not in late.counts


def test_who_waits() -> None:
    old, new = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 9, tzinfo=UTC)
    late = new + timedelta(days=1)
    traces = pl.DataFrame({"user": ["ada", "ada", "eve", None], "ingested": [old, new, late, late]})
    rows_ = [
        ("ada", "rating", None),
        ("eve", "rating", None),
        ("eve", "rating", True),
        ("eve", "reference", None),
        ("eve", "correction", False),
        (None, "rating", None),
        ("unknown", "rating", True),
    ]
    feedback = pl.DataFrame(rows_, schema=["rater", "kind", "trusted"], orient="row")
    kept = without_newcomers(feedback, traces, late, WEEK)
    assert kept.rows() == [rows_[0], rows_[2], rows_[3], rows_[6]]
    assert without_newcomers(feedback, traces, late + WEEK, WEEK).rows() == rows_
    first_week = traces.filter(pl.col("ingested") > old)
    assert without_newcomers(feedback, first_week, late, WEEK).rows() == rows_, "the line is younger than a week"


def test_a_lake_without_traces_has_no_newcomers(tmp_path: Path) -> None:
    """No trace gives a time from which to count, so nothing is left out."""
    with pytest.raises(Inconclusive, match="no trace is in the lake yet"):
        _datasets(tmp_path, 7).edition(1)
    feedback = pl.DataFrame({"trace": ["t"], "user": ["u"], "received": [NOW]})
    empty = pl.DataFrame(schema={"user": pl.String, "ingested": pl.Datetime("us", "UTC")})
    assert without_newcomers(feedback, empty, NOW, WEEK).equals(feedback)
