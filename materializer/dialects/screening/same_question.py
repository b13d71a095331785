"""Finds questions that several prompts ask inside different other text, for example behind retrieved documents.

Such prompts count as different ones, so that the same question can be on both sides of the holdout.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ratchet.contracts.ids import normalise

_EDGE = 6
"""Sentences at the start of a message, and at its end, among which a question is looked for."""
_READ = 4_000
"""Characters at each end of a message that are read."""
_LEAST_LENGTH, _LONGEST = 12, 300
"""Bytes that a sentence has at least, and characters of it that are compared."""
_MOST_PROMPTS = 0.2
"""Share of the messages from which a sentence belongs to the application's template."""
_LEAST_PROMPTS, _LEAST_SHARE, _LEAST_QUESTIONS = 10, 0.1, 5
"""Messages with a repeated question, their share of all, and different questions, from which they are a finding."""
_MOST_LABELLED = 0.8
"""Share of these messages from which their label is named."""
_SHOWN = 60
_SENTENCE = re.compile(r"[\r\n]+|(?<=[.!?])\s+|(?<=[。！？])|(?=</?\w[^<>]{0,40}>)")
_ASKS = r"ask|asks|consulta|demande|domanda|frage|pregunta|q|query|question|request|质问|質問|問題|问题|問|질문"
_LABEL = re.compile(rf"\W*(?:\w+ ){{0,2}}(?:{_ASKS})\b[^:：>】]{{0,20}}(?:[:：>】]|$)")
"""A short heading or label of a question at the start of a sentence."""


def cut_short(text: str) -> str:
    """Return the first _SHOWN characters of a text for a finding."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class Edges(NamedTuple):
    """The first and the last sentences of a message, normalised."""

    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    """In the order of the message."""


def edges_of(text: str, least: int = 3) -> Edges:
    """Return the edges of a message. One of fewer than `least` sentences has none: it has no room for a question inside other text."""
    parts = [text] if len(text) <= 2 * _READ else [text[:_READ], text[-_READ:]]
    sentences = [[found for one in _SENTENCE.split(part) if (found := normalise(one))] for part in parts]
    if sum(map(len, sentences)) < least:
        return Edges()
    return Edges(tuple(one[:_LONGEST] for one in sentences[0][:_EDGE]), tuple(one[:_LONGEST] for one in sentences[-1][-_EDGE:]))


@dataclass(frozen=True)
class SameQuestion:
    """Messages that share a question, and differ in the rest."""

    question: str
    """The sentence that most of them share, normalised."""
    mark: str | None
    """What stands before the question in most of these messages; None if they have no label or heading in common."""
    messages: int
    """Number of these messages."""
    of: int
    """Number of different messages."""

    @property
    def sentence(self) -> str:
        """The finding for an operator."""
        shown = json.dumps(cut_short(self.question), ensure_ascii=False)
        mark = f" (for example {json.dumps([self.mark], ensure_ascii=False)})" if self.mark else ""
        return (
            f"{self.messages:,} of {self.of:,} different prompts share a question, such as {shown}, with another prompt that has different "
            "other text; if that text was retrieved for the question, or has a time or a name, the same question stands on both sides of "
            f"the holdout: name what stands before the question in holdout.question_after{mark}, and what follows it in "
            "holdout.question_until"
        )


def same_question(messages: Iterable[Edges]) -> SameQuestion | None:
    """Return the messages that share a question inside different other text, if they are at least 10, and a tenth of all; else None.

    `messages` are the different user messages of a source, each once; those without edges count only in the total. A question has a label
    such as "Question:", or ends with a question mark. Sentences of the application's template, which a fifth of the messages have, are no
    questions.
    """
    every = list(messages)
    inside = [edges for edges in every if edges.last]
    counts = Counter(sentence for edges in inside for sentence in {*edges.first, *edges.last})
    template = {sentence for sentence, count in counts.items() if count > _MOST_PROMPTS * len(every)}
    rests: defaultdict[str, list[frozenset[str]]] = defaultdict(list)
    marks: defaultdict[str, list[str | None]] = defaultdict(list)
    for edges in inside:
        if (asked := _asked(edges, template)) is not None:
            question, mark = asked
            rests[question].append(frozenset({*edges.first, *edges.last} - template - {question}))
            marks[question].append(mark)
    repeated = {question: len(rest) for question, rest in rests.items() if len(set(rest)) > 1}
    shared = sum(repeated.values())
    if len(repeated) < _LEAST_QUESTIONS or shared < max(_LEAST_PROMPTS, _LEAST_SHARE * len(every)):
        return None
    mark, count = Counter(mark for question in repeated for mark in marks[question]).most_common(1)[0]
    most = max(repeated, key=lambda question: repeated[question])
    return SameQuestion(most, mark if count >= _MOST_LABELLED * shared else None, shared, len(every))


def _asked(edges: Edges, template: Collection[str]) -> tuple[str, str | None] | None:
    """Return the question of a message and its label or heading: the last one with a label, or else the last one; None without any."""
    plain: str | None = None
    for sentences in (edges.last, edges.first):
        for at in reversed(range(len(sentences))):
            one = sentences[at]
            if one in template or len(one.encode()) < _LEAST_LENGTH:
                continue
            if (mark := _mark(sentences, at, template)) is not None:
                return one, mark
            if plain is None and one.endswith(("?", "？", "؟")):
                plain = one
    return None if plain is None else (plain, None)


def _mark(sentences: Sequence[str], at: int, template: Collection[str]) -> str | None:
    """Return the label at the start of a sentence, or of the one before it, or the heading before it; None without any."""
    if (label := _LABEL.match(sentences[at])) is not None and label.end() < len(sentences[at]):
        return label.group()
    if at and (label := _LABEL.match(sentences[at - 1])) is not None:
        is_heading = label.end() == len(sentences[at - 1])
        return label.group() if is_heading == (sentences[at - 1] in template) else None
    return None
