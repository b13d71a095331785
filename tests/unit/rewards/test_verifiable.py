"""Tests of the scorers that compare an answer with a reference."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.errors import ConfigError
from ratchet.rewards.verifiable import ExactMatch, FinalNumber
from tests.needs import shared_data


def _score(scorer: ExactMatch | FinalNumber, answer: str, reference: str | None) -> float | None:
    return scorer.score([{"answer": answer, "reference": reference}])[0]


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [("so\nA: 1,080", "1080", 1.0), ("A: 3\nA: 4", "4", 1.0), ("A: 3\nA: 4", "3", 0.0), ("193", "193", 0.0), ("A: 5", None, None)],
)
def test_final_number_is_the_number_after_the_last_marker(answer: str, reference: str | None, score: float | None) -> None:
    assert _score(FinalNumber(), answer, reference) == score


def test_final_number_of_a_correction_is_its_result() -> None:
    assert _score(FinalNumber(), "other words\nA: 7", "3 + 4 = 7\nA: 7") == 1.0


@pytest.mark.shared
def test_final_number_equals_every_published_label() -> None:
    path = shared_data("gsm8k_traces", "golden.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    samples = [{"answer": row["record"]["response"], "reference": row["record"]["reference"]} for row in rows]
    assert FinalNumber().score(samples) == [float(row["correct"]) for row in rows]
    assert len(rows) == 5276


@given(st.text(), st.text())
def test_exact_match_is_symmetric_and_reflexive(left: str, right: str) -> None:
    assert _score(ExactMatch(), left, left) == 1.0
    assert _score(ExactMatch(), left, right) == _score(ExactMatch(), right, left)


def test_exact_match_ignores_white_space_and_case_on_request() -> None:
    assert _score(ExactMatch(), " a\n b ", "a b") == 1.0
    assert _score(ExactMatch(), "Paris", "paris") == 0.0
    assert _score(ExactMatch(ignore_case=True), "Paris", "paris") == 1.0


def test_error_for_an_unknown_option_names_the_nearest_known_option() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ignore_case'"):
        ExactMatch(ignorecase=True)
    with pytest.raises(ConfigError, match="marker"):
        FinalNumber(marker="")
