"""Tests that a scorer of the loop file that scored no logged answer is found, with its cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import evaluation, span
from tests.unit.materializer.small_datasets import TRAIN, frozen

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
