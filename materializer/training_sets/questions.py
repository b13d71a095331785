"""Measures whether near-duplicate prompts of a line are one question or different ones, by their known right answers.

Prompts of a template differ in a number or a name, and each has a right answer of its own. If they counted as near-duplicates, a line would
have few questions to learn from: most would be on the side of a held-out prompt. Reworded prompts have the same right answer, and a model
that was trained on one of them would have an unfair advantage with the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import polars as pl

from ratchet.contracts.data.datasets import NearRung
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.ids import root_text
from ratchet.materializer.labels.scores import references
from ratchet.materializer.partitioned.partitions import Partitions
from ratchet.materializer.texts import PLACE, Texts
from ratchet.materializer.training_sets.near_duplicates import THRESHOLD, NearIndex, jaccard, shingles, signature

RUNGS = (THRESHOLD, 0.9, 0.95, 1.0)
"""Similarities from which prompts may count as near-duplicates, from the first one."""
MEASURED = 2_000
"""Prompts with a known right answer that are compared: those with the least ids, which are hashes."""
LEAST_PAIRS = 30
"""Pairs of a rung below which it shows nothing."""
LEAST_SHARE = 0.9
"""Share of different questions among the pairs of a rung from which the prompts of this rung are no near-duplicates."""
_ALIKE = 8
"""Near-duplicates of a prompt that are looked at, the most similar ones first."""
_RIGHT = 0.5
"""Score from which an answer is right."""


class Question(NamedTuple):
    """A prompt with one user message and a known right answer."""

    text: str
    """Its normalised text."""
    messages: Sequence[Mapping[str, Any]]
    reference: str


Score = Callable[[Sequence[Mapping[str, Any]]], Sequence[float | None]]
"""Returns the scores of answers by the scorers that compare with the right answer."""


def known_questions(asked: Partitions, feedback: Partitions, texts: Texts) -> list[Question]:
    """Return up to MEASURED prompts with a right answer that the application has logged or a reviewer has given.

    A user's correction is none of them: otherwise a user could separate prompts by wrong corrections. `asked` and `feedback` are those of
    `Usable.rows`.
    """
    columns = ["root_id", "prompt_id", "messages", PLACE]
    found = list[pl.DataFrame]()
    for number in range(asked.count):
        rows, said = asked.read(number), feedback.read(number)
        known = references(rows, said.filter(pl.col("kind") == FeedbackKind.REFERENCE.value)).select("prompt_id", "reference")
        first = rows.select(columns).sort("prompt_id", PLACE).unique("prompt_id", keep="first", maintain_order=True)
        found = [pl.concat([*found, first.join(known, on="prompt_id")]).sort("root_id", "prompt_id").head(MEASURED)]
    filled = texts.filled(found[0]).unique("root_id", keep="first", maintain_order=True)
    return _questions(filled.select("messages", "reference"))


def golden_questions(golden: pl.DataFrame) -> list[Question]:
    """Return up to MEASURED golden prompts (records.PROMPTS) with a right answer, the first ones of their file."""
    return _questions(golden.filter(pl.col("reference").is_not_null()).select("prompt", "reference").head(MEASURED))


def _questions(known: pl.DataFrame) -> list[Question]:
    """Return the questions among the rows, which have messages and a right answer."""
    every = ((orjson.loads(messages), reference) for messages, reference in known.iter_rows())
    return [
        Question(root_text(messages), messages, reference)
        for messages, reference in every
        if [message["role"] for message in messages if message["role"] != "system"] == ["user"]
    ]


def compared(questions: Sequence[Question], score: Score) -> tuple[NearRung, ...]:
    """Compare near-duplicates, and return for each rung how many pairs were found and how many of them are different questions.

    Two questions are different if the right answer of each would be a wrong answer to the other. A pair counts only if the scorers accept
    the right answer of each as an answer to itself. A question begins one pair of a rung.
    """
    index, pairs = NearIndex(RUNGS[0]), list[tuple[int, Question, Question]]()
    for number, one in enumerate(questions):
        found = shingles(one.text)
        signed = signature(found)
        rungs = dict[int, Question]()
        for key in index.near(one.text, signed)[:_ALIKE]:
            other = questions[int(key)]
            rungs.setdefault(_rung(jaccard(found, shingles(other.text))), other)
        pairs += [(rung, one, other) for rung, other in sorted(rungs.items()) if rung < len(RUNGS) - 1]
        index.add(str(number), signed, one.text)
    tried = [(one, answer) for _, *pair in pairs for one in pair for answer in pair]
    scores = score(
        [{"prompt": one.messages, "answer": answer.reference, "reference": one.reference, "feedback": []} for one, answer in tried]
    )
    counts = [[0, 0] for _ in RUNGS[1:]]
    for at, (rung, _, _) in enumerate(pairs):
        own, there, back, own_too = (value is not None and value >= _RIGHT for value in scores[4 * at : 4 * at + 4])
        if own and own_too:
            counts[rung][0] += 1
            counts[rung][1] += not (there or back)
    return tuple(
        NearRung(least=least, below=below, pairs=n, different=different)
        for least, below, (n, different) in zip(RUNGS, RUNGS[1:], counts, strict=False)
    )


def _rung(similarity: float) -> int:
    return sum(similarity >= rung for rung in RUNGS) - 1


def least_similarity(rungs: Sequence[NearRung]) -> float:
    """Return the similarity from which prompts are near-duplicates.

    It rises over a rung whose pairs are shown to be different questions, and stays below one whose pairs are not.
    """
    least = RUNGS[0]
    for rung in rungs:
        if rung.pairs >= LEAST_PAIRS:
            if rung.different < LEAST_SHARE * rung.pairs:
                break
            least = rung.below
    return least
