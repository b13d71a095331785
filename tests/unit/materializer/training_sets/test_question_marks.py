"""Tests of prompts whose question stands inside other text, for example behind retrieved documents."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import question_in, root_text, without_opening
from ratchet.contracts.loop.datasets import HoldoutSettings
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.training_sets.near_duplicates import prompt_clusters
from ratchet.materializer.training_sets.questions import Question
from ratchet.materializer.training_sets.split import forbidden_changes
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, span, spans
from tests.unit.materializer.small_datasets import LATER, rows

MARKS = {"question_after": ["Question:"], "question_until": ["Answer:"]}
THINGS = ("axe", "boat", "cup", "drum", "egg", "fan")
QUESTIONS = [f"{word} {thing}?" for word in ("Who sells the", "Where is the", "What is in the") for thing in THINGS]


def documents(n: int) -> str:
    """Made-up documents."""
    draw = random.Random(n)
    return "\n".join(" ".join("".join(draw.choices("abdefiklmnorstu", k=6)) for _ in range(12)) for _ in range(3))


def line(folder: Path, **holdout: Any) -> LakeDatasets:
    return make_datasets(folder, make_loop(holdout={"development": 0, "fraction": 0.4, **holdout}))


def filled(datasets: LakeDatasets) -> LakeDatasets:
    """The line after each question was asked behind six different contexts."""
    texts = [(at, f"Context:\n{documents(10 * at + n)}\n\nQUESTION: {one}\nAnswer:") for at, one in enumerate(QUESTIONS) for n in range(6)]
    calls = [
        span(n, answer="A", metadata__reference=f"r{at}", **{"gen_ai.input.messages": json.dumps([said(text)])})
        for n, (at, text) in enumerate(texts)
    ]
    datasets.ingest(batch(spans(*calls)))
    return datasets


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"type": "text", "content": text}]}


def asked(found: list[dict[str, Any]]) -> set[str]:
    """The questions of rows with prompts."""
    return {json.loads(row["prompt"])[0]["content"].split("QUESTION: ")[1] for row in found}


def sides(datasets: LakeDatasets) -> tuple[set[str], set[str]]:
    """The questions of the edition, and those of the training prompts."""
    edition = datasets.edition(1)
    snapshot = datasets.freeze("s", LATER, edition)
    held = datasets.artifacts.get(datasets.artifacts.resolve(f"edition/{datasets.loop.line.name}/1") or "")
    return asked(rows(datasets, json.loads(held)["prompts"])), asked(rows(datasets, snapshot.prompts))


def test_a_question_behind_other_documents_is_on_one_side_once_its_mark_is_set(tmp_path: Path) -> None:
    held, trained = sides(filled(line(tmp_path / "blind")))
    assert held & trained, "without a mark, prompts count as wholes"
    marked = filled(line(tmp_path / "marked", **MARKS))
    held, trained = sides(marked)
    assert held
    assert trained
    assert held | trained == {f"{one}\nAnswer:" for one in QUESTIONS}
    assert not held & trained


def test_marks_cannot_be_changed_later(tmp_path: Path) -> None:
    datasets = filled(line(tmp_path, **MARKS))
    edition = datasets.edition(1)
    other = line(tmp_path, question_until=["answer:"])
    message = r"was split with holdout\.question_after = \['question:'\], and prompts would change"
    [found] = forbidden_changes(other.loop, other.artifacts)
    with pytest.raises(ConfigError, match=message):
        other.freeze("t", LATER, edition)
    assert "question_after = ['question:'], and" in found
    assert forbidden_changes(line(tmp_path, question_after=[" QUESTION: "], question_until=["Answer:"]).loop, datasets.artifacts) == []


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("context: a b question: who?", "who?"),
        ("context: a question: old? question: who?", "who?"),
        ("question: who? context: a b", "who?"),
        ("## ask who? context: a question later", "who?"),
        ("who?", "who?"),
        ("who? context: a", "who?"),
        ("a question:", "a question:"),
        ("context: a", "context: a"),
        ("question: who? context: question: old? it is a", "who?"),
        ("subquestion: a question: who?", "who?"),
        ("who? in the sub-question: a", "a"),
        ("my-context: a question: who? context:", "who?"),
        ("question: who? question:", "who? question:"),
    ],
)
def test_the_question_is_the_text_between_the_marks(text: str, question: str) -> None:
    settings = HoldoutSettings(question_after=("Question:", "## ASK"), question_until=("Context:",))
    assert question_in(text, settings.skipped) == question
    assert root_text([{"role": "user", "content": text.upper()}], settings.skipped) == question
    assert question_in(text, ()) == text


def test_a_greeting_is_skipped_before_the_question_is_looked_for() -> None:
    settings = HoldoutSettings(question_after=("Question:",), skip_greetings=("hi",))
    messages = [{"role": "user", "content": text} for text in ("Hi!", "Docs. Question: Who?")]
    assert root_text(messages, settings.skipped) == "who?"


def test_a_greeting_inside_a_template_is_skipped() -> None:
    settings = HoldoutSettings(question_after=("Question:",), skip_greetings=("hi",))
    messages = [{"role": "user", "content": f"Docs {text}. Question: {text}"} for text in ("Hi!", "Who?")]
    assert root_text(messages, settings.skipped) == "who?"
    assert without_opening(messages, settings.skipped) == messages[1:]


def test_questions_with_other_documents_have_another_context() -> None:
    one, other = (Question("who?", [{"role": "user", "content": f"{docs} Question: Who?"}], None, "A") for docs in ("Page 1.", "Page 2."))
    assert one.context() != other.context()
    bare = [Question("who?", [{"role": "user", "content": text}], None, "A").context() for text in ("Who?", " WHO? ")]
    assert bare[0] == bare[1]


def test_long_documents_that_questions_share_do_not_make_them_near_duplicates() -> None:
    shared = documents(1) * 20
    prompts = {str(n): json.dumps([{"role": "user", "content": f"{shared}\nQuestion: {one}"}]) for n, one in enumerate(QUESTIONS)}
    assert len(set(prompt_clusters(prompts).values())) == 1
    assert len(set(prompt_clusters(prompts, skipped=HoldoutSettings(question_after=("Question:",)).skipped).values())) == len(QUESTIONS)


@pytest.mark.parametrize("mark", ["", " ", "?", "\n:"])
def test_a_mark_of_one_character_is_refused(mark: str) -> None:
    with pytest.raises(ValueError, match="at least two characters"):
        HoldoutSettings(question_after=(mark,))
