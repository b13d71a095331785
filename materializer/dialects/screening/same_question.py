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

_EDGE = 4
"""Sentences at the begin of a message, and at its end, among which a question is looked for."""
_READ = 20_000
"""Characters at each end of a message that are read."""
_LEAST_LENGTH, _LONGEST = 12, 300
"""Characters of a sentence that may be a question. Of a longer one, the rest is not compared."""
_MOST_PROMPTS = 0.2
"""Share of the messages from which a sentence belongs to the application's template."""
_LEAST_PROMPTS, _LEAST_SHARE, _LEAST_QUESTIONS = 10, 0.1, 5
"""Messages with a repeated question, their share of all, and different questions, from which they are a finding."""
_MOST_LABELLED = 0.8
_SENTENCE = re.compile(r"\n+|(?<=[.!?])\s+")
_LABEL = re.compile(r"^[^:]{1,40}:(?=.)")
_OF_DOCUMENTS = re.compile(
    r"\W*(?:\w+ ){0,3}(?:articles?|background|chunks?|contexte?|content|data|documents?|excerpts?|facts|information|knowledge|kontext|"
    r"passages?|references?|results?|snippets?|sources?|texts?)\W*"
)
"""Short headings of documents, which name no question."""


class Edges(NamedTuple):
    """The first and the last sentences of a message, normalised."""

    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    """In the order of the message."""


def edges_of(text: str) -> Edges:
    """Return the edges of a message. One of fewer than three sentences has none: it has no room for a question inside other text."""
    parts = [text] if len(text) <= 2 * _READ else [text[:_READ], text[-_READ:]]
    sentences = [[found for one in _SENTENCE.split(part) if (found := normalise(one))] for part in parts]
    if sum(map(len, sentences)) < 3:
        return Edges()
    return Edges(tuple(one[:_LONGEST] for one in sentences[0][:_EDGE]), tuple(one[:_LONGEST] for one in sentences[-1][-_EDGE:]))


@dataclass(frozen=True)
class SameQuestion:
    """Messages that share a sentence, which may be their question, and differ in the rest."""

    question: str
    """The sentence that most of them share, normalised."""
    mark: str | None
    """What stands before such sentences in most of these messages; None if they have nothing in common there."""
    is_last: bool
    """Whether the sentences are at the end of the messages, and not at the begin."""
    messages: int
    """Number of these messages."""
    of: int
    """Number of different messages."""

    @property
    def sentence(self) -> str:
        """The finding for an operator."""
        shown = json.dumps(self.question if len(self.question) <= 80 else self.question[:79] + "…", ensure_ascii=False)
        mark = f", for example {json.dumps([self.mark], ensure_ascii=False)}" if self.mark else ""
        rest = ", and what stands behind it in holdout.question_until" if not self.is_last else ""
        return (
            f"{self.messages:,} of {self.of:,} different prompts {'end' if self.is_last else 'begin'} with a sentence that others with "
            f"different other text share, such as {shown}; if this is the question, and the rest is what was retrieved for it, the same "
            "question stands on both sides of the holdout: name what stands before the question in "
            f"holdout.question_after{mark}{rest}"
        )


def same_question(messages: Iterable[Edges]) -> SameQuestion | None:
    """Return the messages that share a question inside different other text, if they are at least 10, and a tenth of all; else None.

    `messages` are the different user messages of a source, each once; those without edges count only in the total. Sentences of the
    application's template, which a fifth of the messages have, are no questions.
    """
    every = list(messages)
    inside = [edges for edges in every if edges.first]
    counts = Counter(sentence for edges in inside for sentence in {*edges.first, *edges.last})
    template = {sentence for sentence, count in counts.items() if count > _MOST_PROMPTS * len(every)}
    ends = [_End(inside, template, is_last) for is_last in (True, False)]
    ends = [end for end in ends if end.mark is None or not _OF_DOCUMENTS.fullmatch(end.mark)]
    marked = [end for end in ends if end.mark is not None]  # there, the application itself says where the question is
    found = [one for end in marked or ends if (one := end.finding(len(every))) is not None]
    return max(found, key=lambda one: one.messages, default=None)


class _End:
    """The sentences at one end of the messages, grouped: those that may be a question."""

    def __init__(self, inside: Sequence[Edges], template: Collection[str], is_last: bool) -> None:
        self._is_last = is_last
        self._rest: defaultdict[str, list[str]] = defaultdict(list)
        marks = Counter[str | None]()
        for edges in inside:
            own, other = _own(edges, is_last, template), _own(edges, not is_last, template)
            if own is not None and other is not None and own != other:
                self._rest[own].append(other)
                marks[_mark(own, edges, is_last, template)] += 1
        mark, count = marks.most_common(1)[0] if marks else (None, 0)
        self.mark = mark if count >= _MOST_LABELLED * marks.total() else None
        """What stands before the sentences of most messages."""

    def finding(self, of: int) -> SameQuestion | None:
        """Return the finding about the sentences that stand in different other text. `of` is the number of all messages."""
        repeated = {own: len(rest) for own, rest in self._rest.items() if len(set(rest)) > 1}
        messages = sum(repeated.values())
        if len(repeated) < _LEAST_QUESTIONS or messages < max(_LEAST_PROMPTS, _LEAST_SHARE * of):
            return None
        return SameQuestion(max(repeated, key=lambda own: repeated[own]), self.mark, self._is_last, messages, of)


def _own(edges: Edges, is_last: bool, template: Collection[str]) -> str | None:
    """Return the outermost sentence at an edge that may be a question."""
    sentences = reversed(edges.last) if is_last else iter(edges.first)
    return next((one for one in sentences if one not in template and len(one) >= _LEAST_LENGTH), None)


def _mark(own: str, edges: Edges, is_last: bool, template: Collection[str]) -> str | None:
    """Return what stands before a question: a label such as "question:", or the sentence of the template before it."""
    if (label := _LABEL.match(own)) is not None:
        return label.group()
    sentences = edges.last if is_last else edges.first
    at = sentences.index(own)
    return sentences[at - 1] if at and sentences[at - 1] in template else None
