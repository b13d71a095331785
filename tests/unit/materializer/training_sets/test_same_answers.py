"""Tests that no pair has two sides that differ in their form only, and that an answer equal to the right one is not the worse side."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.data.records import PROMPTS, SAMPLES, Tier
from ratchet.contracts.loop import SnapshotSettings
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.training_sets.pairs import Pairs, make_pairs
from tests.unit.materializer.small_datasets import VERSIONS

RIGHT, FORM, WRONG = '{"name": "Ada", "qty": 1}', '{"qty": 1, "name": "Ada"}', '{"name": "Ada", "qty": 2}'


def sample(answer: str, reward: float, tier: Tier = Tier.VERIFIABLE) -> dict[str, Any]:
    none = dict.fromkeys(("user", "model_version", "slice", "tools", "trace"))
    scorer = "v" if tier is Tier.VERIFIABLE else "f"
    told = {
        "answer": answer,
        "reward": reward,
        "tier": tier.value,
        "votes": int(tier is Tier.FEEDBACK),
        "parts": json.dumps({scorer: reward}),
    }
    return {"prompt_id": "p", "prompt": "[]", "repeats": 1, "origin": "traffic", **none, **told}


def made(*rows: dict[str, Any], reference: str | None = RIGHT, given: bool = True) -> Pairs:
    prompt = {"prompt_id": "p", "prompt": "[]", "slice": None, "tools": None, "reference": reference, "reference_kind": "logged"}
    settings = SnapshotSettings(references_are_answers=given)
    return make_pairs(frame_of(list(rows), SAMPLES), settings, VERSIONS, None, "salt", prompts=frame_of([prompt], PROMPTS))


def sides(pairs: Pairs) -> list[tuple[str, str]]:
    return pairs.frame.select("chosen", "rejected").rows()


@pytest.mark.parametrize("given", [True, False])
def test_an_answer_in_another_form_than_the_right_one_is_not_the_worse_side(given: bool) -> None:
    pairs = made(sample(RIGHT, 1.0), sample(FORM, 0.0), sample(WRONG, 0.0), given=given)
    assert sides(pairs) == [(RIGHT, WRONG)]
    assert pairs.dropped == {"same_answer": 1}
    assert pairs.causes == {("p", FORM): "same_answer"}


def test_a_given_answer_makes_no_pair_with_itself_in_another_form() -> None:
    pairs = made(sample("select name from t;", 0.0), sample("SELECT age FROM t", 0.0), reference="SELECT name FROM t")
    assert sides(pairs) == [("SELECT name FROM t", "SELECT age FROM t")]
    assert pairs.dropped == {"same_answer": 1}


def test_nor_is_it_the_worse_side_of_another_right_answer() -> None:
    pairs = made(sample("Either way", 1.0), sample(FORM, 0.0), given=False)
    assert (sides(pairs), pairs.dropped) == ([], {"same_answer": 1})


def test_ratings_decide_against_a_reference_but_not_between_two_forms_of_an_answer() -> None:
    rated = [sample(text, reward, Tier.FEEDBACK) for text, reward in (("Good day", 1.0), (FORM, 0.0), ("good day.", 0.0))]
    pairs = made(*rated, given=False)
    assert sides(pairs) == [("Good day", FORM)]
    assert pairs.dropped == {"same_answer": 1}


def test_a_form_that_another_scorer_asks_for_is_learned_although_a_right_answer_is_known() -> None:
    rows, settings = frame_of([sample("YES", 1.0), sample("yes.", 0.0)], SAMPLES), SnapshotSettings()
    prompt = {"prompt_id": "p", "prompt": "[]", "slice": None, "tools": None, "reference": "YES", "reference_kind": "logged"}
    prompts = frame_of([prompt], PROMPTS)
    kept = make_pairs(rows, settings, VERSIONS, None, "salt", prompts=prompts, comparing=["exact_match"])
    assert sides(kept) == [("YES", "yes.")], "the score v did not compare it"
    assert sides(make_pairs(rows, settings, VERSIONS, None, "salt", prompts=prompts, comparing=["v"])) == []


def test_a_scorer_without_a_reference_may_ask_for_a_form() -> None:
    pairs = make_pairs(frame_of([sample("Yes", 1.0), sample("yes.", 0.0)], SAMPLES), SnapshotSettings(), VERSIONS, None, "salt")
    assert (sides(pairs), pairs.dropped) == ([("Yes", "yes.")], {})
