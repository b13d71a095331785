"""Measures whether near-duplicate prompts of a line are one question or different ones, by their known right answers.

Prompts of a template differ in a number or a name, and each has a right answer of its own. If they counted as near-duplicates, a line would
have few questions to learn from: most would be on the side of a held-out prompt. Reworded prompts have the same right answer, and a model
that was trained on one of them would have an unfair advantage with the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import orjson
import polars as pl

from ratchet.contracts.conversation import person_answer
from ratchet.contracts.data.datasets import NearRung
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.ids import INSTRUCTIONS, SkippedTexts, content_text, hash_share, normalise, root_text, without_opening
from ratchet.materializer.labels.scores import references
from ratchet.materializer.partitioned.partitions import Partitions
from ratchet.materializer.texts import PLACE, Texts
from ratchet.materializer.training_sets.near_duplicates import (
    THRESHOLD,
    WHOLE,
    NearIndex,
    Shingler,
    jaccard,
    may_share_a_template,
    signature,
    with_templates,
)

RUNGS = (THRESHOLD, 0.9, 0.95, 1.0)
"""Similarities from which prompts may count as near-duplicates, from the first one."""
MEASURED = 2_000
"""Golden prompts, and prompts of the traffic, that are compared at most."""
LEAST_SHARE, LEVEL = 0.8, 0.95
"""The prompts of a rung are no near-duplicates if the share of different questions is shown, at this level, to be at least this high: for
example by 14 of 14 pairs, or by 28 of 30."""
LEAST_PAIRS, LEAST_DIFFERENT = 5, 0.1
"""Pairs of similar questions that show a template, and the least share of different questions among them. Labels may be rare."""
_RESULT = 20
"""Characters of a bare result, such as a number or a label. Longer right answers may say the same in other words."""
_MOST_PAIRS = 100
"""Pairs of a rung that are scored: a scorer may take a second for an answer."""
_PER_USER = 3
"""Prompts of one user that are compared, so that no user decides alone."""
_ALIKE = 8
"""Near-duplicates of a prompt that are looked at, the most similar ones first."""
_RIGHT = 0.5
"""Score from which an answer is right."""


class Question(NamedTuple):
    """A prompt with one question and a known right answer."""

    text: str
    """Its normalised text."""
    messages: Sequence[Mapping[str, Any]]
    tools: str | None
    reference: str

    def sample(self, answer: Question) -> dict[str, Any]:
        """Return the right answer of a question as an answer to this one, for scorers."""
        written = person_answer(answer.reference, self.tools)
        return {"prompt": self.messages, "answer": written, "reference": self.reference, "tools": self.tools, "feedback": []}

    def context(self) -> tuple[str, str, str | None]:
        """Return what the prompt has besides the question. Documents, for example, decide what is right."""
        message = normalise(content_text([message["content"] for message in self.messages if message["role"] == "user"][-1]))
        others = json.dumps([message for message in self.messages if message["role"] != "user"], sort_keys=True)
        return others, message.replace(self.text, "", 1), self.tools


Compare = Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, float | None]]]
"""Returns the scores of each answer, by the names of the scorers that compare with the right answer. None: the scorer abstains."""


def known_questions(asked: Partitions, feedback: Partitions, texts: Texts, salt: str, skipped: SkippedTexts = ()) -> list[Question]:
    """Return up to MEASURED prompts with a right answer that the application has logged or a reviewer has given, chosen by salted hashes.

    A user's correction is no such answer: otherwise a user could separate prompts by wrong corrections. Of a conversation, only its first
    call counts. `asked` and `feedback` are those of `Usable.rows`. `skipped` is that of `root_text`.
    """
    found = list[pl.DataFrame]()
    for number in range(asked.count):
        rows, said = asked.read(number), feedback.read(number)
        known = references(rows, said.filter(pl.col("kind") == FeedbackKind.REFERENCE.value)).select("prompt_id", "reference")
        answered = rows.drop("reference").join(known, on="prompt_id").sort("time", "source", "id").unique("root_id", keep="first")
        ranks = [hash_share("questions", salt, root) for root in answered["root_id"].to_list()]
        ranked = answered.select("root_id", "time", "user", "messages", "tools", PLACE, "reference").with_columns(pl.Series("rank", ranks))
        both = pl.concat([*found, ranked]).sort("rank", "time").unique("root_id", keep="first", maintain_order=True)
        few = pl.col("user").is_null() | (pl.int_range(pl.len()).over("user") < _PER_USER)
        found = [both.filter(few).head(MEASURED)]
    return _questions(texts.filled(found[0]).select("messages", "tools", "reference"), skipped)


def questions_of(golden: pl.DataFrame | None, skipped: SkippedTexts = ()) -> list[Question]:
    """Return up to MEASURED prompts of a golden set (records.PROMPTS) with a right answer, those with the least ids; none without a set.

    `skipped` is that of `root_text`.
    """
    if golden is None:
        return []
    known = golden.filter(pl.col("reference").is_not_null()).sort("prompt_id").head(MEASURED)
    return _questions(known.select("prompt", "tools", "reference"), skipped)


def _questions(known: pl.DataFrame, skipped: SkippedTexts) -> list[Question]:
    """Return the questions among the rows, which have messages, tools and a right answer."""
    every = ((orjson.loads(messages), tools, reference) for messages, tools, reference in known.iter_rows())
    return [
        Question(root_text(messages, skipped), messages, tools, reference)
        for messages, tools, reference in every
        if [message["role"] for message in without_opening(messages, skipped) if message["role"] not in INSTRUCTIONS] == ["user"]
    ]


def compared(questions: Sequence[Question], compare: Compare, make: Shingler = WHOLE) -> tuple[NearRung, ...]:
    """Compare near-duplicates, and return for each rung how many pairs were found and how many of them are different questions.

    Two questions are different if the right answer of each would be a wrong answer to the other. A pair counts only if a scorer accepts the
    right answer of each as an answer to itself, and if no such scorer abstains on the answer of the other. Both have the same context. A
    question begins one pair of a rung. `make` is that of `NearIndex`.
    """
    pairs = _pairs(questions, make)
    members = sorted({place for rung in pairs for pair in rung for place in pair})
    own = dict(zip(members, compare([questions[place].sample(questions[place]) for place in members]), strict=True))

    def accepting(place: int) -> set[str]:
        return {name for name, score in own[place].items() if score is not None and score >= _RIGHT}

    able = [[pair for pair in rung if accepting(pair[0]) & accepting(pair[1])] for rung in pairs]
    tried = [(of, by) for rung in able for one, other in rung for of, by in ((one, other), (other, one))]
    scores = iter(compare([questions[of].sample(questions[by]) for of, by in tried]))
    found = []
    for least, below, rung in zip(RUNGS, RUNGS[1:], able, strict=False):
        counted = different = 0
        for one, other in rung:
            names, (there, back) = accepting(one) & accepting(other), (next(scores), next(scores))
            both = [score[name] for score in (there, back) for name in names]
            if None not in both:
                counted += 1
                different += all(score is not None and score < _RIGHT for score in both)
        found.append(NearRung(least=least, below=below, pairs=counted, different=different))
    return tuple(found)


def template_in(questions: Sequence[Question], compare: Compare, least: float, before: Shingler) -> Shingler | None:
    """Return what makes the shingles of texts without those of templates in the questions; None if no further template is found.

    Similar questions share a template if they are shown to be different ones: at least LEAST_DIFFERENT of LEAST_PAIRS pairs or more, as
    `compared` counts them. Variants of one question have one right answer. If no scorer accepts the right answers as answers, because they
    are bare results, those of at most _RESULT characters are compared as texts. `least` and `before` are the least similarity of
    near-duplicates and what makes their shingles at present.
    """
    texts = [one.text for one in questions]
    found = list[list[str]]()
    for members in may_share_a_template(texts, least, before):
        inside = [questions[at] for at in members]
        rungs = compared(inside, compare, before)
        pairs, different = sum(rung.pairs for rung in rungs), sum(rung.different for rung in rungs)
        if not pairs:
            results = [normalise(one.reference) for one in inside if len(one.reference) <= _RESULT]
            pairs, different = len(results) - 1, sum(one != other for one, other in pairwise(results))
        if pairs >= LEAST_PAIRS and different >= LEAST_DIFFERENT * pairs:
            found.append([texts[at] for at in members])
    return with_templates(found, before)


def _pairs(questions: Sequence[Question], make: Shingler) -> list[list[tuple[int, int]]]:
    """Return for each rung the places of near-duplicates with the same context, at most _MOST_PAIRS."""
    index, pairs = NearIndex(RUNGS[0], make), [list[tuple[int, int]]() for _ in RUNGS[1:]]
    for place, one in enumerate(questions):
        found = make(one.text)
        signed, seen = signature(found), {len(pairs)}
        for key in index.near(one.text, signed)[:_ALIKE]:
            other = questions[int(key)]
            rung = sum(jaccard(found, make(other.text)) >= least for least in RUNGS) - 1
            if rung not in seen and len(pairs[rung]) < _MOST_PAIRS and one.context() == other.context():
                pairs[rung].append((place, int(key)))
                seen.add(rung)
        index.add(str(place), signed, one.text)
    return pairs


def least_similarity(rungs: Sequence[NearRung]) -> float:
    """Return the similarity from which prompts are near-duplicates.

    It rises over a rung that is shown to have different questions, and not beyond one with fewer of them than LEAST_SHARE, be its pairs
    few. The bound is exact (Clopper and Pearson, Biometrika 1934).
    """
    from scipy import special  # its import takes 15 MB, which only this setting needs

    least = RUNGS[0]
    for rung in rungs:
        if rung.different < LEAST_SHARE * rung.pairs:
            break
        if rung.different and special.betaincinv(rung.different, rung.pairs - rung.different + 1, 1 - LEVEL) >= LEAST_SHARE:
            least = rung.below
    return least
