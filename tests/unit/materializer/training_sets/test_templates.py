"""Tests of prompts that share texts which are no question: few-shot examples, an instruction, and a template in each user message.

Each prompt has a question of its own, so each must count as a conversation of its own, as it does without these texts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.contracts.data.datasets import TrainingSet
from ratchet.contracts.errors import ConfigError, Inconclusive, Permanent
from ratchet.contracts.ids import normalise
from ratchet.contracts.loop.datasets import HoldoutSettings
from ratchet.flows.core.data_notes import prompt_warnings
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.training_sets.near_duplicates import THRESHOLD, WHOLE, Shingler, jaccard, shingles
from ratchet.materializer.training_sets.questions import Question, template_in
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, span, spans
from tests.unit.materializer.small_datasets import LATER, rows

pytestmark = pytest.mark.slow


def sentence(n: int, words: int = 30) -> str:
    """A text of made-up words without numbers."""
    draw = random.Random(n)
    return " ".join("".join(draw.choice("aabcdeefghiiklmnoorstuvw") for _ in range(draw.randint(3, 9))) for _ in range(words))


EXAMPLES = [("My card was charged twice.", "billing"), ("The parcel is late.", "shipping")]
SKIPPED = ["My card was", "THE parcel  is late."]
TEMPLATE = sentence(77, 250)
COUNT = 120


def asked(n: int, question: str, before: list[tuple[str, str]], instruction: str | None = None, right: int = 2) -> dict[str, Any]:
    """A span with a question after examples and an instruction, and with its right answer."""
    texts = [(role, text) for example in before for role, text in zip(("user", "assistant"), example, strict=True)]
    texts = [*([("system", instruction)] if instruction else []), *texts, ("user", question)]
    written = [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in texts]
    return span(n, answer=f"A: {right}", metadata__reference=str(right), **{"gen_ai.input.messages": json.dumps(written)})


def line(folder: Path, **holdout: Any) -> LakeDatasets:
    return make_datasets(folder, make_loop(holdout={"development": 0, "similarity": "auto", **holdout}))


def trained(datasets: LakeDatasets) -> TrainingSet:
    return datasets.assemble("t", datasets.freeze("s", LATER, datasets.edition(1)), None)


def last_texts(datasets: LakeDatasets, key: str) -> set[str]:
    return {json.loads(row["prompt"])[-1]["content"] for row in rows(datasets, key)}


def test_prompts_with_the_same_examples_are_one_conversation_until_these_are_skipped(tmp_path: Path) -> None:
    records = batch(spans(*(asked(n, sentence(n), EXAMPLES) for n in range(1, COUNT))))
    blind = line(tmp_path / "blind")
    blind.ingest(records)
    with pytest.raises(Inconclusive, match=rf"the {COUNT - 1} prompts count as 1 conversation:.*holdout\.skip_messages"):
        blind.edition(1)
    told = line(tmp_path / "blind", skip_messages=SKIPPED)
    training = trained(told)
    assert training.cross_validated_prompts == training.facts.prompts
    plain = line(tmp_path / "plain")
    plain.ingest(batch(spans(*(asked(n, sentence(n), []) for n in range(1, COUNT)))))
    assert last_texts(told, told.edition(1).prompts) == last_texts(plain, plain.edition(1).prompts), "the questions decide"
    assert training.facts.prompts == trained(plain).facts.prompts


def test_turns_after_the_examples_are_one_conversation_and_a_prompt_without_examples_is_known(tmp_path: Path) -> None:
    datasets = line(tmp_path, skip_messages=SKIPPED)
    first = [asked(n, sentence(n), EXAMPLES) for n in range(1, 60)]
    second = [asked(100 + n, "And now?", [*EXAMPLES, (sentence(n), "A: 2")]) for n in range(1, 60)]
    alone = [asked(200 + n, sentence(n), []) for n in range(1, 60)]
    datasets.ingest(batch(spans(*first, *second, *alone)))
    snapshot = datasets.freeze("s", LATER, datasets.edition(1))

    def questions(key: str) -> list[str]:
        found = [[one["content"] for one in json.loads(row["prompt"]) if one["role"] == "user"] for row in rows(datasets, key)]
        return [texts[min(2, len(texts) - 1)] for texts in found]

    used = questions(snapshot.prompts)
    assert {used.count(question) for question in used} == {3}, "all three prompts of a question are on its side"
    assert 0 < len(used) < 3 * 59


def test_examples_cannot_be_skipped_later(tmp_path: Path) -> None:
    datasets = line(tmp_path)
    datasets.ingest(batch(spans(*(asked(n, sentence(n), []) for n in range(1, 60)))))
    edition = datasets.edition(1)
    changed = line(tmp_path, skip_messages=["Late"])
    with pytest.raises(ConfigError, match=r"skip_messages = \[\]"):
        changed.edition(2)
    with pytest.raises((ConfigError, Permanent), match=r"skip_messages = \[\]"):
        changed.freeze("s", LATER, edition)


def test_a_golden_question_without_the_examples_keeps_its_traffic_out_of_training(tmp_path: Path) -> None:
    (tmp_path / "golden.jsonl").write_text("".join(json.dumps({"question": sentence(n), "reference": "2"}) + "\n" for n in range(1, 20)))
    datasets = line(tmp_path, skip_messages=SKIPPED, golden="golden.jsonl")
    datasets.ingest(batch(spans(*(asked(n, sentence(n), EXAMPLES) for n in range(1, 60)))))
    snapshot = datasets.freeze("s", LATER, datasets.edition(1))
    assert not last_texts(datasets, snapshot.prompts) & {sentence(n) for n in range(1, 20)}


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_long_instruction_leaves_each_question_its_own_conversation(tmp_path: Path, role: str) -> None:
    datasets = line(tmp_path)
    questions = [sentence(n, 10) for n in range(1, COUNT)]
    inside = role == "user"
    texts = [f"{TEMPLATE} {text}" if inside else text for text in questions]
    datasets.ingest(batch(spans(*(asked(n, text, [], None if inside else TEMPLATE, right=n % 4) for n, text in enumerate(texts, 1)))))
    edition = datasets.edition(1)
    snapshot = datasets.freeze("s", LATER, edition)
    training = datasets.assemble("t", snapshot, None)
    assert edition.size + training.facts.prompts == len(questions)
    assert 0.1 < edition.size / len(questions) < 0.3
    assert training.cross_validated_prompts == training.facts.prompts, "each prompt is a cluster"
    assert snapshot.near is not None
    assert (snapshot.near.template > 1000) == inside


def test_in_a_template_variants_of_a_question_are_still_on_one_side(tmp_path: Path) -> None:
    datasets = line(tmp_path)
    questions = [sentence(n, 12) for n in range(1, 60)]
    variants = [f"please {question}" for question in questions]
    items = (asked(n, f"{TEMPLATE} {text}", [], right=n % 59 % 4) for n, text in enumerate([*questions, *variants], 1))
    datasets.ingest(batch(spans(*items)))
    snapshot = datasets.freeze("s", LATER, datasets.edition(1))
    used = {text.removeprefix(f"{TEMPLATE} ").removeprefix("please ") for text in last_texts(datasets, snapshot.prompts)}
    sizes = [sum(question in text for text in last_texts(datasets, snapshot.prompts)) for question in used]
    assert set(sizes) == {2}, "a question and its variant"


def questions(texts: list[str], labels: int = 4) -> list[Question]:
    """Questions with these texts and right answers in turns."""
    return [Question(normalise(text), [{"role": "user", "content": text}], None, f"label {n % labels}") for n, text in enumerate(texts)]


def compare(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, float | None]]:
    return [{"exact": float(one["answer"] == one["reference"])} for one in samples]


def template_of(found: list[Question], before: Shingler = WHOLE) -> Shingler | None:
    return template_in(found, compare, THRESHOLD, before)


ALONE = [sentence(n) for n in range(60)]


def test_similar_questions_with_different_right_answers_share_a_template() -> None:
    assert template_of(questions(ALONE)) is None
    inside = questions([f"{TEMPLATE} {text}" for text in ALONE])
    found = template_of(inside)
    assert found is not None
    assert set(shingles(normalise(TEMPLATE)).tolist()) <= set(np.frombuffer(found.template, dtype=np.uint32).tolist())
    assert max(jaccard(found(one.text), found(other.text)) for one, other in combinations(inside, 2)) < 0.3
    assert len(found(normalise(TEMPLATE))) > 0, "a text that is the template has its shingles"
    assert template_of(inside, found) is None, "what is known is not found again"
    assert template_of(inside[:9]) is None, "too few to tell"
    assert template_of([one._replace(reference="no") for one in inside]) is None, "one right answer: they may be variants"
    assert template_of([one._replace(reference="yes" if n % 5 == 0 else "no") for n, one in enumerate(inside)]) is not None


def test_without_a_scorer_that_compares_answers_only_bare_results_show_a_template() -> None:
    inside = questions([f"{TEMPLATE} {text}" for text in ALONE])
    worded = [one._replace(reference=f"It is {one.reference}, as far as I know.") for one in inside]
    assert template_in(worded, lambda samples: [{} for _ in samples], THRESHOLD, WHOLE) is None
    assert template_in(inside, lambda samples: [{} for _ in samples], THRESHOLD, WHOLE) is not None, "bare results"


def test_several_templates_are_found_also_later() -> None:
    others = [sentence(n, 250) for n in (201, 202, 203, 204)]
    both = questions([f"{others[n % 2]} {text}" for n, text in enumerate(ALONE)])
    first = template_of(both)
    assert first is not None
    more = questions([f"{others[2 + n % 2]} {sentence(300 + n)}" for n in range(60)])
    second = template_of([*both, *more], first)
    assert second is not None
    assert (first.recipe, second.recipe) == (1002, 2002)
    assert max(jaccard(second(one.text), second(other.text)) for one, other in combinations([*both[:30], *more[:30]], 2)) < 0.5


@pytest.mark.parametrize("tail", ["please please", "0f8fad5b-d9cb-469f-a165-70867728950e 2026-11-30T12:00:00Z", "again"])
def test_variants_of_one_question_are_no_template(tail: str) -> None:
    draw = random.Random(1)
    one = sentence(1, 40)
    assert template_of(questions([f"{one} {draw.getrandbits(64):016x} {tail} {n}" for n in range(60)])) is None, "words with digits"
    reworded = questions([f"{sentence(n, 5)} {one} {sentence(n, 40)}"[:400] for n in range(60)], labels=1)
    assert template_of(reworded) is None, "one right answer"


def test_texts_without_a_common_part_are_no_template() -> None:
    words = sentence(5, 1800).split()
    sliding = questions([" ".join(words[n : n + 200]) for n in range(0, 1600, 16)])
    assert template_of(sliding) is None


def test_odd_questions_are_no_template() -> None:
    for texts in ([], [""] * 30, ["a"] * 30, ["あ" * 40] * 30, [str(n) for n in range(30)]):
        assert template_of(questions(texts)) is None
    assert template_of(questions([f"{'word ' * 200_000} {sentence(n)}" for n in range(12)])) is None, "only the beginnings are looked at"


def test_beginnings_of_messages_are_compared_as_normalised_and_have_no_order() -> None:
    assert HoldoutSettings(skip_messages=("  Late\tPARCEL", "card")).skipped == ("card", "late parcel")
    assert HoldoutSettings(skip_messages=("card", "late parcel", "Card")).skipped == ("card", "late parcel")
    for text in ("    ", "a ", ""):
        with pytest.raises(ValueError, match="at least three characters"):
            HoldoutSettings(skip_messages=(text,))


def test_greetings_are_whole_messages_of_any_length_without_punctuation_at_their_ends() -> None:
    both = HoldoutSettings(skip_greetings=(" Hi! ", "hi", "Good  morning"), skip_messages=("card",))
    assert both.skipped == ("card", "good morning\n", "hi\n")
    for text in ("", "?!"):
        with pytest.raises(ValueError, match="a letter or a digit"):
            HoldoutSettings(skip_greetings=(text,))
    with pytest.raises(ValueError, match="skip_greetings"):
        HoldoutSettings(skip_messages=("hi",))


def test_conversations_that_begin_with_a_greeting_are_told_and_are_divided_once_it_is_named(tmp_path: Path) -> None:
    turns = [asked(n, sentence(n), [("Hi!", "A: 0")]) for n in range(1, 60)]
    records = batch(spans(*turns, *(asked(100 + n, f"Hire {sentence(100 + n)}", []) for n in range(40))))
    blind, named = line(tmp_path / "blind"), line(tmp_path / "named", skip_greetings=["hi"])
    blind.ingest(records)
    snapshot = blind.freeze("s", LATER, blind.edition(1))
    [said] = prompt_warnings(snapshot)
    assert said.startswith("59 of 99 prompts (60%) begin with the same user message")
    named.ingest(records)
    snapshot = named.freeze("s", LATER, named.edition(1))
    assert prompt_warnings(snapshot) == []
    greeted = [json.loads(row["prompt"])[0]["content"] == "Hi!" for row in rows(named, snapshot.prompts)]
    assert 30 < sum(greeted) < 59
    other = line(tmp_path / "named", skip_greetings=["hi", "hire"])
    with pytest.raises(ConfigError, match=r"was split with holdout\.skip_greetings = \['hi'\], and"):
        other.freeze("t", LATER, named.edition(1))
