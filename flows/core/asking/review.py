"""Chooses the questions whose right answer would teach a line most, and compares the answers of reviewers. Pure.

A right answer teaches something where the model answers wrong, nobody has given a right answer yet, and users ask often. The expected gain
of an answer is the share of all requests that ask its question and are answered wrong: the accuracy that the line gains if the model learns
it and nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ratchet.contracts.data.records import Tier
from ratchet.contracts.ids import content_text

UNKNOWN = 0.5
"""Share of wrong answers of a question whose answers no scorer could judge."""
SHOWN = 3
"""Maximum number of the model's answers that a reviewer sees."""
RIGHT = 1.0
"""Reward of an answer that is right: its question is not asked."""
VOTES = 2
"""Number of ratings from which a reward of ratings alone shows that an answer is right. Of the answers with one, too many are rated by
mistake."""


@dataclass(frozen=True)
class ReviewQuestion:
    """A question for reviewers."""

    prompt_id: str
    trace: str
    """source/id of the newest trace that asked it."""
    messages: tuple[dict[str, Any], ...]
    answers: tuple[tuple[str, float | None], ...]
    """Different answers of the model with their mean rewards, the most frequent first."""
    requests: int
    wrong: float
    """Share of the answers that are wrong, by their mean reward."""
    slice: str | None
    fell: bool
    """Whether the newest evaluation estimated a loss in the slice."""
    expected_gain: float
    """Accuracy over all requests that the right answer can add."""


@dataclass
class _Asked:
    prompt: tuple[dict[str, Any], ...]
    slice: str | None
    trace: str = ""
    requests: int = 0
    is_verified: bool = False
    """Whether more than ratings shows that one of the answers is right."""
    votes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Answer -> number of its ratings."""
    answers: dict[str, list[tuple[float | None, int]]] = field(default_factory=lambda: defaultdict(list))


def choose_questions(
    samples: Iterable[Mapping[str, Any]], answered: frozenset[str], fallen: frozenset[str], count: int
) -> tuple[list[ReviewQuestion], int]:
    """Return the questions with the highest expected gain, and the number of requests of all questions.

    Args:
        samples: Rows with the columns of records.SAMPLES, whose prompts are lists of messages.
        answered: prompt_id of the questions with a known right answer.
        fallen: Slices in which the newest evaluation estimated a loss. Their questions count twice in the order.
        count: Maximum number of questions.
    """
    asked: dict[str, _Asked] = {}
    total = 0
    for row in samples:
        if row["origin"] != "traffic" or row["trace"] is None:
            continue
        total += row["repeats"]
        one = asked.setdefault(row["prompt_id"], _Asked(tuple(row["prompt"]), row["slice"]))
        one.requests += row["repeats"]
        one.trace = max(one.trace, row["trace"])
        one.answers[row["answer"]].append((row["reward"], row["repeats"]))
        one.is_verified |= row["reward"] == RIGHT and row["tier"] != Tier.FEEDBACK
        one.votes[row["answer"]] += row["votes"]
    found = [_question(key, one, total, fallen) for key, one in asked.items() if key not in answered and not _is_known(one)]
    usable = [one for one in found if one.wrong > 0]
    usable.sort(key=lambda one: (-one.expected_gain * (2 if one.fell else 1), one.prompt_id))
    return usable[:count], total


def _is_known(one: _Asked) -> bool:
    """Return whether the model has given a right answer, by more than one rating."""
    return one.is_verified or any(_mean(rewards) == RIGHT and one.votes[text] >= VOTES for text, rewards in one.answers.items())


def _question(key: str, one: _Asked, total: int, fallen: frozenset[str]) -> ReviewQuestion:
    answers = {text: _mean(rewards) for text, rewards in one.answers.items()}
    often = sorted(answers, key=lambda text: (-sum(n for _, n in one.answers[text]), text))
    mean = _mean([pair for rewards in one.answers.values() for pair in rewards])
    wrong = UNKNOWN if mean is None else 1.0 - mean
    return ReviewQuestion(
        prompt_id=key,
        trace=one.trace,
        messages=one.prompt,
        answers=tuple((text, answers[text]) for text in often[:SHOWN]),
        requests=one.requests,
        wrong=wrong,
        slice=one.slice,
        fell=one.slice in fallen,
        expected_gain=one.requests / total * wrong,
    )


def _mean(rewards: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(reward, n) for reward, n in rewards if reward is not None]
    return sum(reward * n for reward, n in known) / sum(n for _, n in known) if known else None


@dataclass(frozen=True)
class ReviewAnswer:
    """The answer of one reviewer to a question."""

    prompt_id: str
    trace: str
    answer: str
    reviewer: str
    time: str
    """When it was given, ISO 8601."""


def agreement(answers: Iterable[ReviewAnswer]) -> tuple[int, int]:
    """Return how many pairs of reviewers of one question gave the same answer, and the number of such pairs.

    Answers are the same if they differ in letter case and white space alone.
    """
    by_question: dict[str, dict[str, str]] = defaultdict(dict)
    for one in answers:
        by_question[one.prompt_id][one.reviewer] = " ".join(content_text(one.answer).casefold().split())
    pairs = [first == second for given in by_question.values() for first, second in combinations(given.values(), 2)]
    return sum(pairs), len(pairs)
