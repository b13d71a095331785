"""Tests of the requests of an evaluation and of the stored rows of earlier ones."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import HoldoutEdition
from ratchet.contracts.ids import digest
from ratchet.gates.evaluation.questions import Decoding, Question, by_prompt, requests_for, stored_answers


def edition(number: int = 1, line: str = "l") -> HoldoutEdition:
    return HoldoutEdition(line=line, number=number, prompts=digest("p"), size=1, golden=None, normaliser=1, fraction=0.2)


def question(text: str, name: str = "golden") -> Question:
    return Question(name, ({"role": "user", "content": text},), "yes", None)


def row(text: str, answer: str | None, **more: Any) -> bytes:
    prompt = [{"role": "user", "content": text}]
    return json.dumps({"set": "golden", "prompt": prompt, "reference": "yes", "champion": {"answer": answer}} | more).encode()


@given(st.lists(st.text(max_size=5), max_size=6), st.integers(1, 8), st.integers(1, 3))
def test_a_seed_depends_on_edition_prompt_and_draw_alone(texts: list[str], samples: int, number: int) -> None:
    questions = [question(text) for text in texts]
    requests = requests_for(questions, edition(number), Decoding(0.7, samples), 9)
    assert requests == requests_for(questions, edition(number), Decoding(0.7, samples), 9)
    groups = by_prompt(requests, samples)
    assert [len(group) for group in groups] == [samples] * len(texts)
    for one, group in zip(questions, groups, strict=True):
        assert all(request.messages == one.prompt for request in group)
        assert all(request.messages == one.prompt for request in group)
        assert list(group) == requests_for([one], edition(number), Decoding(0.7, samples), 9), "other prompts do not matter"
        assert list(group[:1]) == requests_for([one], edition(number), Decoding(0.7, 1), 9), "the number of draws does not matter"


def test_another_edition_or_line_has_other_seeds() -> None:
    ways = [edition(1), edition(2), edition(1, "other")]
    seeds = {request.seed for one in ways for request in requests_for([question("q")], one, Decoding(0.7, 2), 9)}
    assert len(seeds) == 6


def test_greedy_requests_have_no_seed() -> None:
    (request,) = requests_for([question("q")], edition(), Decoding(0.0, 1), 9)
    assert (request.temperature, request.seed, request.max_tokens) == (0.0, None, 9)


def test_rows_of_an_evaluation_with_one_answer_per_prompt_are_read() -> None:
    greedy = [row(text, answer, draw=0, temperature=0.0) for text, answer in (("a", "yes"), ("b", None), ("c", "no"))]
    found = stored_answers(b"\n".join(greedy))
    assert found.decoding == Decoding(0.0, 1)
    assert found.texts == {question("a").key: ("yes",), question("c").key: ("no",)}
    assert stored_answers(b"").texts == {}


def test_a_stored_prompt_has_all_its_draws_or_none() -> None:
    rows = [row(text, f"{text}{draw}", draw=draw, temperature=0.7) for text in "ab" for draw in (1, 0)]
    found = stored_answers(b"\n".join([*rows, row("c", "c0", draw=0, temperature=0.7), row("c", None, draw=1, temperature=0.7)]))
    assert found.decoding == Decoding(0.7, 2)
    assert found.texts == {question("a").key: ("a0", "a1"), question("b").key: ("b0", "b1")}


def test_questions_after_the_same_examples_are_conversations_of_their_own() -> None:
    def shots(text: str, skipped: tuple[str, ...]) -> Question:
        texts = [("user", "Late parcel"), ("assistant", "shipping"), ("user", text)]
        return Question("golden", tuple({"role": role, "content": one} for role, one in texts), "yes", None, skipped=skipped)

    assert shots("a", ()).cluster == shots("b", ()).cluster
    assert len({shots("a", ("late",)).cluster, shots("b", ("late",)).cluster}) == 2
    assert shots("a", ("late",)).cluster == question("a").cluster
