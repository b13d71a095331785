"""Tests of the recognition of questions that stand inside different other text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pytest

from ratchet.materializer.dialects.screening.same_question import Edges, edges_of, same_question
from ratchet.materializer.dialects.screening.sample import asked_in, opening_sentence

SUBJECTS = ("refund", "parcel", "upgrade", "roaming", "invoice", "deposit", "courier", "storage", "import", "repair")
DOCUMENTS = [f"The {name} rule {n} costs {n * 3} euros.\nIt applies to tier {n % 7} from day {n}." for n, name in enumerate(SUBJECTS * 6)]
QUESTIONS = [f"What is the {name} fee in my {place}?" for name in SUBJECTS for place in ("country", "contract")]
SHAPES: dict[str, Callable[[str, str], str]] = {
    "label": lambda documents, question: f"Use only the context.\n\nContext:\n{documents}\n\nQuestion: {question}\nAnswer:",
    "heading": lambda documents, question: f"## Documents\n{documents}\n\n## User question\n{question}\n\nAnswer in one sentence.",
    "one line": lambda documents, question: f"Context: {documents} Question: {question}".replace("\n", " "),
    "first": lambda documents, question: f"Question: {question}\n\nContext:\n{documents}",
    "after context": lambda documents, question: f"Context:\n{documents}\n\n{question}",
    "bare": lambda documents, question: f"{documents}\n\n{question}",
}
MARKS = {"label": "question:", "heading": "## user question", "one line": "question:", "first": "question:"}


def prompts(shape: str, questions: Sequence[str], seed: int = 0) -> list[str]:
    """Return prompts, as JSON, of 100 questions behind 3 documents each."""
    chance = random.Random(seed)
    texts = [SHAPES[shape]("\n".join(chance.sample(DOCUMENTS, 3)), questions[n % len(questions)]) for n in range(100)]
    return [json.dumps([{"role": "user", "content": text}]) for text in texts]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_question_behind_other_documents_is_told_with_its_mark(shape: str) -> None:
    said = opening_sentence([asked_in(prompt) for prompt in prompts(shape, QUESTIONS)])
    assert said is not None
    assert said.startswith("100 of 100 different prompts share a question")
    assert ("holdout.question_after" + (f' (for example ["{MARKS[shape]}"])' if shape in MARKS else ", and")) in said


@pytest.mark.parametrize(
    ("shape", "skipped"),
    [
        ("label", ("question:\r",)),
        ("heading", ("## user question\r",)),
        ("one line", ("question:\r",)),
        ("first", ("context:\f", "question:\r")),
    ],
)
def test_nothing_is_told_once_the_mark_is_set(shape: str, skipped: tuple[str, ...]) -> None:
    assert opening_sentence([asked_in(prompt, skipped) for prompt in prompts(shape, QUESTIONS)]) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_questions_that_are_asked_once_are_not_told(shape: str) -> None:
    different = [f"How many {name} cases did branch {n} have?" for n in range(10) for name in SUBJECTS]
    assert opening_sentence([asked_in(prompt) for prompt in prompts(shape, different)]) is None


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("Kontext: {documents}\n\nFrage: {question}", "frage:"),
        ("已知信息:{documents}。问题：{question}？", "问题:"),
        ("<context>{documents}</context><question>{question}</question>", "<question>"),
        ("{documents}\r\r{question}?\rCurrent time: {n}", None),
        ("Context: {documents}\nQuestion: I looked at page {n}. {question}?", "question:"),
        ("Question: {question}\n\nContext:\n{documents}\nUser locale: {n}", "question:"),
    ],
)
def test_questions_of_other_languages_and_layouts_are_told(text: str, mark: str | None) -> None:
    chance = random.Random(1)
    written = [
        text.format(documents=" ".join(chance.sample(DOCUMENTS, 2)), question=QUESTIONS[n % len(QUESTIONS)].rstrip("?"), n=n)
        for n in range(100)
    ]
    found = same_question(map(edges_of, written))
    assert found is not None
    assert (found.messages, found.mark) == (100, mark)


@pytest.mark.parametrize(
    "text",
    [
        "Dear team,\nmy order {n} is late.\nThank you for your help.\nBest regards, agent {few}",
        "Review this change:\n+++ b/src/module_{few}.py\n+import numpy as np\n+value = {n}",
        "Classify the review.\nReview {n} is from shop {few}.\nIt was great number {few}.",
        '{{"context": "page {n}", "user": "person {few}"}}\n{{"limit": {few}}}\n{{"more": {n}}}',
    ],
)
def test_repeated_sentences_that_ask_nothing_are_not_told(text: str) -> None:
    assert same_question(edges_of(text.format(n=n, few=n % 8)) for n in range(100)) is None


def test_a_mark_that_leaves_what_is_no_question_is_told() -> None:
    texts = [f"Question: who runs branch {n}?\nAnswer in JSON" for n in range(40)]
    asked = [asked_in(json.dumps([{"role": "user", "content": text}]), ("answer\r",)) for text in texts]
    said = opening_sentence(asked)
    assert said is not None
    assert said.startswith('with holdout.question_after and holdout.question_until, 40 of 40 different prompts have the question "in json"')
    assert opening_sentence([asked_in(json.dumps([{"role": "user", "content": text}]), ("question:\r",)) for text in texts]) is None


def test_a_varying_text_behind_the_question_is_told_once_the_mark_before_it_is_set() -> None:
    texts = [f"Documents {n}.\nQuestion: who runs branch {n % 10}?\nCurrent time: {n}" for n in range(40)]
    said = opening_sentence([asked_in(json.dumps([{"role": "user", "content": text}]), ("question:\r",)) for text in texts])
    assert said is not None
    assert "what follows it in holdout.question_until" in said
    marks = ("current time:\f", "question:\r")
    assert opening_sentence([asked_in(json.dumps([{"role": "user", "content": text}]), marks) for text in texts]) is None


def test_a_template_and_a_few_repeated_closings_are_no_questions() -> None:
    closings = [f"Best regards, customer number {n}" for n in range(4)]
    mails = [f"Dear team,\nmy order {n} of {SUBJECTS[n % 10]} is late.\nIt was due on day {n}.\n{closings[n % 4]}" for n in range(100)]
    assert same_question(map(edges_of, mails)) is None


def test_a_message_without_other_text_has_no_edges() -> None:
    assert edges_of("What is the fee?") == Edges()
    assert edges_of("I have a contract. What is the fee?") == Edges()
    assert edges_of("One.\nTwo.\n\nThree?") == Edges(("one.", "two.", "three?"), ("one.", "two.", "three?"))


def test_both_ends_of_a_long_message_are_read() -> None:
    found = edges_of("First of all.\n" + "x" * 10_000_000 + "\nLast of all?")
    assert found.first[0] == "first of all."
    assert found.last[-1] == "last of all?"
    assert max(map(len, (*found.first, *found.last))) <= 300
