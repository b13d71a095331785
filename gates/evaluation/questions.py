"""The prompts of an evaluation, how each of them is asked, and how the stored rows of earlier evaluations are read.

A prompt is the unit of every test. With several answers per prompt, an answer is a draw: number 0 to `samples` - 1.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pyarrow.parquet as pq

from ratchet.contracts.data.datasets import HoldoutEdition
from ratchet.contracts.evaluation import ChatRequest
from ratchet.contracts.ids import SkippedTexts, digest, root_id

GOLDEN = "golden"
_T = TypeVar("_T")


@dataclass(frozen=True, order=True)
class Decoding:
    """How answers are generated. Rewards of answers that were decoded otherwise are not comparable."""

    temperature: float
    """Sampling temperature. 0: greedy."""
    samples: int
    """Number of answers per prompt."""


@dataclass(frozen=True)
class Question:
    """One prompt of an evaluation."""

    set: str
    """golden | holdout"""
    prompt: tuple[dict[str, Any], ...]
    reference: str | None
    slice: str | None
    tools: tuple[dict[str, Any], ...] = ()
    skipped: SkippedTexts = ()
    """Beginnings of user messages that are no question (`HoldoutEdition.skipped`)."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the prompt set and of the slice that contain the prompt."""
        return (self.set, f"slice:{self.slice}") if self.slice else (self.set,)

    @cached_property
    def cluster(self) -> str:
        """Conversation of the prompt; its prompts are averaged first."""
        return root_id(self.prompt, self.skipped)

    @cached_property
    def key(self) -> str:
        """What identifies the question in the stored rows of an evaluation."""
        return _key(self.set, list(self.prompt), self.reference)


def read_questions(name: str, parquet: bytes, skipped: SkippedTexts = ()) -> list[Question]:
    """Return the prompts of a Parquet file with the schema records.PROMPTS, as questions of the prompt set `name`.

    `skipped` is that of the edition.
    """
    rows = pq.read_table(io.BytesIO(parquet)).to_pylist()
    read = ((json.loads(row["prompt"]), row["reference"], row["slice"], json.loads(row.get("tools") or "[]")) for row in rows)
    return [Question(name, tuple(prompt), reference, part, tuple(tools), skipped) for prompt, reference, part, tools in read]


def requests_for(questions: Iterable[Question], edition: HoldoutEdition, decoding: Decoding, max_tokens: int) -> list[ChatRequest]:
    """Return the requests of an evaluation: for each question its draws, one after the other.

    Champion and candidate get the same requests. A repeated evaluation sends them again. Greedy requests have no seed.
    """
    return [
        ChatRequest(
            messages=question.prompt,
            tools=question.tools,
            temperature=decoding.temperature,
            max_tokens=max_tokens,
            seed=_seed(edition, question, draw) if decoding.temperature > 0 else None,
        )
        for question in questions
        for draw in range(decoding.samples)
    ]


def _seed(edition: HoldoutEdition, question: Question, draw: int) -> int:
    """Return a seed of 31 bits that depends on the edition, the prompt and the draw, and not on the model."""
    return int(digest([edition.line, edition.number, list(question.prompt), draw])[:8], 16) >> 1


def by_prompt(draws: Sequence[_T], samples: int) -> list[Sequence[_T]]:
    """Split what belongs to the requests of `requests_for` into one sequence of `samples` elements per question."""
    return [draws[start : start + samples] for start in range(0, len(draws), samples)]


@dataclass(frozen=True)
class StoredAnswers:
    """The champion's answers in the stored rows of an evaluation."""

    decoding: Decoding
    texts: dict[str, tuple[str, ...]]
    """`Question.key` -> the texts of all draws. A question with a missing draw is left out."""


def stored_answers(rows: bytes) -> StoredAnswers:
    """Read the stored rows of an evaluation, one JSON object per line."""
    read = [json.loads(row) for row in rows.splitlines()]
    samples = 1 + max((row["draw"] for row in read), default=0)
    temperature = max((row["temperature"] for row in read), default=0.0)
    draws: dict[str, dict[int, str]] = {}
    for row in read:
        if row["champion"]["answer"] is not None:
            draws.setdefault(_key(row["set"], row["prompt"], row["reference"]), {})[row["draw"]] = row["champion"]["answer"]
    texts = {key: tuple(text for _, text in sorted(found.items())) for key, found in draws.items() if len(found) == samples}
    return StoredAnswers(Decoding(temperature, samples), texts)


def _key(name: str, prompt: list[dict[str, Any]], reference: str | None) -> str:
    return digest([name, prompt, reference])
