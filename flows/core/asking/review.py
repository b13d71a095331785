"""Chooses the questions whose right answer would teach a line most, and compares the answers of reviewers. Pure.

A right answer teaches something where the model answers wrong, nobody has given a right answer yet, and users ask often. The expected gain
of an answer is the share of all requests that ask its question and are answered wrong: the accuracy that the line gains if the model learns
it and nothing else. The line never trains on a development prompt, so the answer to one has no gain: it only measures how long to train.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ratchet.contracts.data.datasets import TrainingSides
from ratchet.contracts.data.records import Tier
from ratchet.contracts.ids import content_text

UNKNOWN = 0.5
"""Share of wrong answers where nothing was judged."""
ENOUGH_MEASURED = 100
"""Development prompts with a right answer from which on the others come last: more would hardly change how long a run trains
(docs/trainers.md)."""
PRIOR = 10
"""Requests for which the share of all judged answers counts in the share of a slice, and UNKNOWN in that of all: a few judged answers say
little."""
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
    """Share of the answers that are wrong, by their mean reward. If no answer was judged: that of the slice."""
    slice: str | None
    fell: bool
    """Whether the newest evaluation estimated a loss in the slice."""
    expected_gain: float
    """Accuracy over all requests that the right answer can add. 0 for a development prompt."""
    measures: bool = False
    """Whether it is a development prompt, whose right answer measures how long to train."""


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
    samples: Iterable[Mapping[str, Any]], answered: frozenset[str], fallen: frozenset[str], count: int, sides: TrainingSides
) -> tuple[list[ReviewQuestion], int]:
    """Return the questions whose answers would teach most, and the number of requests of all questions.

    The share of the requests that are answered wrong decides, divided by one more than the number of near-duplicates that have a right
    answer or come earlier: they teach a part of the same. Development prompts come last once ENOUGH_MEASURED of them have a right answer.

    Args:
        samples: Rows with the columns of records.SAMPLES, whose prompts are lists of messages.
        answered: prompt_id of the questions with a known right answer.
        fallen: Slices in which the newest evaluation estimated a loss. Their questions count twice in the order.
        count: Maximum number of questions.
        sides: The development prompts and the clusters of near-duplicates.
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
    known = {key for key, one in asked.items() if key in answered or _is_known(one)}
    usual, measures, out = _wrong_by_slice(asked.values()), frozenset(sides.development), known.union(sides.neither)
    found = [_question(key, one, total, fallen, usual[one.slice], key in measures) for key, one in asked.items() if key not in out]
    return _ordered([one for one in found if one.wrong > 0], known, sides)[:count], total


def _ordered(questions: Sequence[ReviewQuestion], known: Set[str], sides: TrainingSides) -> list[ReviewQuestion]:
    """Return the questions by what their answers teach or measure. `known` are the prompts with a right answer."""

    def value(one: ReviewQuestion) -> float:
        return one.requests * one.wrong * (2 if one.fell else 1)

    taught = Counter(sides.clusters.get(key, key) for key in known)
    missing = ENOUGH_MEASURED - len(known & frozenset(sides.development))
    worth, last = dict[str, float](), set[str]()
    for one in sorted(questions, key=lambda one: (-value(one), one.prompt_id)):
        cluster = sides.clusters.get(one.prompt_id, one.prompt_id)
        worth[one.prompt_id] = value(one) / (1 + taught[cluster])
        taught[cluster] += 1
        missing -= one.measures
        if one.measures and missing < 0:
            last.add(one.prompt_id)
    return sorted(questions, key=lambda one: (one.prompt_id in last, -worth[one.prompt_id], -one.requests * one.wrong, one.prompt_id))


def _wrong_by_slice(asked: Iterable[_Asked]) -> dict[str | None, float]:
    """Return the share of wrong answers of each slice, by its judged answers."""
    pairs: dict[str | None, list[tuple[float | None, int]]] = defaultdict(list)
    for one in asked:
        pairs[one.slice] += [pair for rewards in one.answers.values() for pair in rewards]
    overall = _shrunk([pair for group in pairs.values() for pair in group], UNKNOWN)
    return {name: _shrunk(group, overall) for name, group in pairs.items()}


def _shrunk(rewards: Sequence[tuple[float | None, int]], before: float) -> float:
    """Return the share of wrong answers, to which `before` contributes like PRIOR requests."""
    known = [(reward, n) for reward, n in rewards if reward is not None]
    return (sum((1.0 - reward) * n for reward, n in known) + before * PRIOR) / (sum(n for _, n in known) + PRIOR)


def _is_known(one: _Asked) -> bool:
    """Return whether the model has given a right answer, by more than one rating."""
    return one.is_verified or any(_mean(rewards) == RIGHT and one.votes[text] >= VOTES for text, rewards in one.answers.items())


def _question(key: str, one: _Asked, total: int, fallen: frozenset[str], usual: float, measures: bool) -> ReviewQuestion:
    """Return a question. `usual` is the share of wrong answers of its slice."""
    answers = {text: _mean(rewards) for text, rewards in one.answers.items()}
    often = sorted(answers, key=lambda text: (-sum(n for _, n in one.answers[text]), text))
    mean = _mean([pair for rewards in one.answers.values() for pair in rewards])
    wrong = usual if mean is None else 1.0 - mean
    return ReviewQuestion(
        prompt_id=key,
        trace=one.trace,
        messages=one.prompt,
        answers=tuple((text, answers[text]) for text in often[:SHOWN]),
        requests=one.requests,
        wrong=wrong,
        slice=one.slice,
        fell=one.slice in fallen,
        expected_gain=0.0 if measures else one.requests / total * wrong,
        measures=measures,
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
