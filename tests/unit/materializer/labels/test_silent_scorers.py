"""Tests that a scorer of the loop file that scored no logged answer, or probably scored it wrong, is found, with its cause."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.data.records import Tier
from ratchet.contracts.loop import RewardSettings
from ratchet.flows.core.data_notes import data_warnings
from ratchet.materializer.labels.silent_scorers import doubtful_scorers
from ratchet.rewards.scorer_set import build_scorer_set
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import evaluation, span
from tests.unit.materializer.small_datasets import TRAIN, frozen, questions

LIKED = evaluation("user_feedback", 1.0, user__id="user-1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "silent"),
    [
        (
            span(1, TRAIN[0], "A: 1"),
            {
                "final_number": "it compares answers with right answers, and no training prompt has one; log them (`reference` in",
                "user_feedback": "it reads ratings, and no logged answer has one that counts; send feedback",
            },
        ),
        (span(1, TRAIN[0], "A: 1", (LIKED,), metadata__reference="1"), {}),
    ],
)
def test_a_scorer_that_scored_no_answer_is_told_with_its_cause(item: Any, silent: dict[str, str], tmp_path: Path) -> None:
    found = frozen(make_datasets(tmp_path, make_loop()), item).silent_scorers
    assert found.keys() == silent.keys()
    assert all(found[name].startswith(why) for name, why in silent.items())


@pytest.mark.slow
def test_a_scorer_that_abstains_from_all_answers_is_told(tmp_path: Path) -> None:
    loop = make_loop(rewards=[{"name": "final_number"}, {"name": "tool_call_match"}])
    found = frozen(make_datasets(tmp_path, loop), span(1, TRAIN[0], "A: 1", metadata__reference="1")).silent_scorers
    assert found == {"tool_call_match": "it abstained on all 1 logged answers; compare its options with them, or remove it"}


def test_without_a_logged_answer_nothing_is_said(tmp_path: Path) -> None:
    assert frozen(make_datasets(tmp_path, make_loop())).silent_scorers == {}


def judged(scores: list[float | None], **rewards: Any) -> Any:
    """Return a scorer set with one verifiable scorer, and the rows of `Totals.samples` for answers with these scores."""
    rows = [
        {"origin": "traffic", "parts": f'{{"exact_match":{json.dumps(score)}}}', "rows": 1, "scored": 1, "votes": 0} for score in scores
    ]
    return build_scorer_set([RewardSettings(name="exact_match", **rewards)]), pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("scores", "same", "told"),
    [
        ([0.0] * 50, 0, "it gave 0 to 50 of 50 logged answers; log right answers in the form"),
        ([0.0] * 95 + [1.0] * 5 + [None] * 100, 0, "it gave 0 to 95 of 100 logged answers; log"),
        ([0.0] * 94 + [1.0] * 6, 0, None),
        ([0.0] * 49, 0, None),
        ([0.0] * 200 + [1.0] * 200, 10, "it gave 0 to 200 of 400 logged answers, and 10 of these differ from the right answer only in"),
        ([0.0] * 201 + [1.0] * 200, 10, None),
        ([0.0] * 20 + [1.0] * 20, 9, None),
    ],
)
def test_a_scorer_that_finds_nearly_all_wrong_or_right_answers_wrong_is_doubtful(
    scores: list[float | None], same: int, told: str | None
) -> None:
    found = doubtful_scorers(*judged(scores), Counter(exact_match=same))
    assert found.keys() == ({"exact_match"} if told else set())
    assert told is None or found["exact_match"].startswith(told)


def test_scores_of_people_are_not_doubtful() -> None:
    scorers, samples = judged([0.0] * 60, tier=Tier.FEEDBACK)
    assert doubtful_scorers(scorers, samples, Counter()) == {}


@pytest.mark.slow
def test_a_snapshot_counts_the_answers_that_differ_from_the_right_one_in_their_form_only(tmp_path: Path) -> None:
    spans_ = [span(n, text, "Yes.", metadata__reference="yes") for n, text in enumerate(questions(False, 12), 1)]
    spans_ += [span(n, text, "No", metadata__reference="yes") for n, text in enumerate(questions(False, 15)[12:], 20)]
    snapshot = frozen(make_datasets(tmp_path, make_loop(rewards=[{"name": "exact_match"}])), *spans_)
    [(name, told)] = snapshot.doubtful_scorers.items()
    assert name == "exact_match"
    assert "it gave 0 to 15 of 15 logged answers, and 12 of these differ from the right answer only in upper case" in told
    assert data_warnings(snapshot) == [f"The scorer exact_match may find right answers wrong: {told}"]
