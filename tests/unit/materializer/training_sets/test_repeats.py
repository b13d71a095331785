"""Tests of the weights of demonstrations of near-duplicate prompts: those of one question together count as one prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.data.records import DEMONSTRATIONS
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.training_sets.demonstrations import weigh_repeats
from ratchet.materializer.training_sets.near_duplicates import prompt_clusters
from tests.unit.materializer.training_sets.test_near_duplicates import sentence, varied


def row(text: str, answer: str, weight: float = 1.0, source: str = "feedback") -> dict[str, Any]:
    prompt = json.dumps([{"role": "user", "content": text}])
    return {"prompt_id": text, "prompt": prompt, "answer": answer, "source": source, "weight": weight, "slice": None, "tools": None}


def weighed(rows: list[dict[str, Any]]) -> tuple[dict[str, float], int]:
    """The weights by prompt, and the number of lower ones."""
    frame, less = weigh_repeats(frame_of(rows, DEMONSTRATIONS), prompt_clusters, 2)
    assert frame.drop("weight").equals(frame_of(rows, DEMONSTRATIONS).drop("weight")), "only weights change"
    return dict(frame.select("prompt_id", "weight").iter_rows()), less


VARIANTS = [varied(sentence(1, 60), n) for n in range(40)]
OTHERS = [sentence(n, 60) for n in range(2, 8)]


def test_variants_of_one_question_weigh_as_much_as_one_prompt() -> None:
    weights, less = weighed([*(row(text, "Paris", 0.8) for text in VARIANTS), *(row(text, "other") for text in OTHERS)])
    assert sum(weights[text] for text in VARIANTS) == pytest.approx(2 * 0.8)
    assert all(weights[text] == 1.0 for text in OTHERS)
    assert less == len(VARIANTS)


def test_a_few_wrong_labels_and_other_spellings_leave_it_one_question() -> None:
    answers = ["Rome"] * 4 + [" paris\n"] * 10 + ["Paris"] * 26
    weights, less = weighed([row(text, answer) for text, answer in zip(VARIANTS, answers, strict=True)])
    assert sum(weights.values()) == pytest.approx(2)
    assert less == 40
    assert len(set(weights.values())) == 1, "no answer gains weight against another one"


def test_questions_of_one_form_with_answers_of_their_own_keep_their_weights() -> None:
    different = [row(text, f"{n}") for n, text in enumerate(VARIANTS)]
    assert weighed(different) == (dict.fromkeys(VARIANTS, 1.0), 0)
    labels = [row(text, "yes" if n % 5 else "no") for n, text in enumerate(VARIANTS)]
    assert weighed(labels) == (dict.fromkeys(VARIANTS, 1.0), 0)


def test_answers_of_teachers_keep_their_weights_and_do_not_count() -> None:
    """A training job reads from the weight how often a teacher is wrong."""
    weights, less = weighed([*(row(text, "Paris", 0.6, "teacher") for text in VARIANTS[:20]), *(row(t, "Paris") for t in VARIANTS[20:23])])
    assert {weights[text] for text in VARIANTS[:20]} == {0.6}
    assert sum(weights[text] for text in VARIANTS[20:23]) == pytest.approx(2)
    assert less == 3


def test_one_or_two_prompts_and_no_demonstrations_are_left_as_they_are() -> None:
    assert weighed([row(text, "Paris", 0.5) for text in VARIANTS[:2]]) == (dict.fromkeys(VARIANTS[:2], 0.5), 0)
    assert weighed([]) == ({}, 0)
