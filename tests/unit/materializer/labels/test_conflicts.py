"""Tests of conflict resolution for contradictory feedback on the same answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.data.records import SAMPLES
from ratchet.contracts.loop import SnapshotSettings
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.training_sets.pairs import make_pairs
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import evaluation, span
from tests.unit.materializer.small_datasets import TRAIN, VERSIONS, assembled, rows

pytestmark = pytest.mark.slow


def people_only(folder: Path) -> Any:
    return make_datasets(folder, make_loop(rewards=[{"name": "user_feedback"}]))


def corrected(number: int, answer: str, text: str, who: str = "ann", question: str = TRAIN[0]) -> dict[str, Any]:
    return span(number, question, answer, [evaluation("user_correction", text=text, user__id=who)])


def test_corrections_that_contradict_each_other_are_dropped(tmp_path: Path) -> None:
    datasets = people_only(tmp_path)
    training, pairs = assembled(datasets, corrected(1, "A", "B", "ann"), corrected(2, "B", "A ", "bob"))
    assert pairs == []
    assert training.facts.corrections == 0
    assert rows(datasets, training.demonstrations) == []
    assert rows(datasets, training.prompts) == [], "a contested correction is not used as a reference"


def test_correction_that_was_itself_corrected_is_dropped(tmp_path: Path) -> None:
    datasets = people_only(tmp_path)
    training, pairs = assembled(datasets, corrected(1, "A", "B", "ann"), corrected(2, "B", "C", "bob"))
    assert [(pair["chosen"], pair["rejected"]) for pair in pairs] == [("C", "B")]
    assert training.facts.corrections == 1


def test_different_corrections_of_the_same_answer_are_no_conflict(tmp_path: Path) -> None:
    _, pairs = assembled(people_only(tmp_path), corrected(1, "A", "B", "ann"), corrected(2, "A", "C", "bob"))
    assert {(pair["chosen"], pair["rejected"]) for pair in pairs} == {("B", "A"), ("C", "A")}


def test_snapshot_counts_contested_corrections(tmp_path: Path) -> None:
    datasets = people_only(tmp_path)
    assembled(datasets, corrected(1, "A", "B"), corrected(2, "B", "A"), corrected(3, "X", "Y", question=TRAIN[1]))
    snapshot = json.loads(datasets.artifacts.get(datasets.artifacts.resolve("s") or ""))
    assert (snapshot["counts"]["contested_corrections"], snapshot["counts"]["corrections"]) == (2, 1)


def samples(rows: Sequence[tuple[str, float, str]]) -> pl.DataFrame:
    """Samples of one prompt from (answer, reward, tier)."""
    base = {
        "prompt_id": "p",
        "prompt": "[]",
        "votes": 1,
        "user": None,
        "origin": "traffic",
        "model_version": None,
        "slice": None,
        "tools": None,
    }
    parts = {"verifiable": "v", "feedback": "f"}
    return frame_of(
        [
            base | {"repeats": 1, "answer": a, "reward": r, "tier": t, "trace": str(i), "parts": json.dumps({parts[t]: r})}
            for i, (a, r, t) in enumerate(rows)
        ],
        SAMPLES,
    )


@pytest.mark.parametrize(
    ("rows", "pairs", "contested"),
    [
        ([("x", 1.0, "verifiable"), ("y", 0.0, "verifiable"), ("y", 1.0, "verifiable"), ("x", 0.0, "verifiable")], set(), 2),
        ([("x", 1.0, "verifiable"), ("x", 0.0, "verifiable"), ("y", 0.0, "verifiable"), ("z", 1.0, "verifiable")], {("z", "y")}, 1),
        ([("x", 0.0, "verifiable"), ("x", 1.0, "feedback"), ("y", 0.0, "feedback"), ("z", 1.0, "verifiable")], {("z", "x")}, 1),
    ],
)
def test_answer_with_contradictory_rewards_is_in_no_pair(rows: Any, pairs: set[tuple[str, str]], contested: int) -> None:
    made = make_pairs(samples(rows), SnapshotSettings(), VERSIONS, 0.1, "salt")
    assert {(row["chosen"], row["rejected"]) for row in made.frame.to_dicts()} == pairs
    assert made.dropped["contested"] == contested


def test_votes_on_equal_answers_are_pooled(tmp_path: Path) -> None:
    """Three of four users rate the answer positively: it is chosen in one pair, and there is no reversed pair."""
    thumbs = [span(n, TRAIN[0], "x", [evaluation("user_feedback", float(n != 1), user__id=f"u{n}")]) for n in range(1, 5)]
    training, pairs = assembled(people_only(tmp_path), *thumbs, span(9, TRAIN[0], "y", [evaluation("user_feedback", 0.0)]))
    assert [(pair["chosen"], pair["rejected"], pair["margin"]) for pair in pairs] == [("x", "y", 0.75)]
    assert training.facts.pairs_dropped == {}
