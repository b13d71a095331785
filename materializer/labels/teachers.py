"""Answers of teachers: their agreement with people, and which of them become samples. Pure, except for the scorers.

A teacher can be right on one kind of question and confidently wrong on another, so its agreement is measured in each slice alone, and
nothing is borrowed from other slices. A case is a cluster of near-duplicate questions whose right answer is known: from a reviewer, the
application or a user's correction. It agrees if all answers of the teacher in it agree. Bounds are exact (Clopper and Pearson, 1934).

An answer counts
1. if a verifiable scorer of the line gives it the full score. The reward is that score. A scorer that knows no right answer, for example
   one of the form, does not suffice where the upper bound of the agreement is below `teacher.min_agreement`.
2. otherwise, if no verifiable scorer gives a score and the lower bound of the agreement is at least `teacher.min_agreement`. The reward is
   that bound, which the pairs and demonstrations made from it carry on as weight: an estimated share of errors is in the loss.
Every other answer becomes nothing. No answer becomes a reference, so none decides what other answers are worth, or what the gate compares.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import polars as pl

from ratchet.contracts.conversation import person_answer
from ratchet.contracts.data.beliefs import TeacherBelief
from ratchet.contracts.data.datasets import Label
from ratchet.contracts.data.records import SAMPLES, FeedbackKind, Tier
from ratchet.materializer.lake.schemas import frame_of
from ratchet.rewards.verifiable import ExactMatch

TEACHER = "teacher"
"""`origin` of the samples, and name of the part of a label that rests on the agreement."""
LEVEL = 0.975
"""Level of each bound. It fails in one slice of forty, of those whose true agreement is exactly the bound."""
_RIGHT = 1.0
_Key = tuple[str, str | None]
"""Version of the teacher, and slice."""


class Verifier(Protocol):
    """The part of the scorer set that is needed."""

    def verify(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Label answers by verifiable scorers alone."""
        ...


@dataclass(frozen=True)
class _Answer:
    """An answer of a teacher with what is known of it."""

    row: Mapping[str, Any]
    text: str
    label: Label
    agrees: bool | None
    """None: the right answer is not known."""

    @property
    def key(self) -> _Key:
        return (self.row["signal"] or "", self.row["slice"])


class TeacherLabels:
    """The answers of teachers to training prompts, as samples, and the beliefs in the teachers."""

    def __init__(self, answers: pl.DataFrame | None, scorers: Verifier, min_agreement: float | None) -> None:
        """Score and measure all answers.

        Args:
            answers: One row for each answer, with the columns of `prompt` rows (records.PROMPTS, texts filled in), `text`, `signal`
                (version), `trace` (source/id) and `cluster` of near-duplicates. None: there are none.
            scorers: The scorers of the line.
            min_agreement: `teacher.min_agreement`. None: the loop file names no teacher, and no answer counts.
        """
        given = answers if answers is not None and min_agreement is not None and len(answers) else None
        rows = given.sort("prompt_id", "signal", "trace", "text").to_dicts() if given is not None else []
        made = _answers(rows, scorers)
        cases: dict[_Key, dict[str, bool]] = defaultdict(dict)
        for one in made:
            known = cases[one.key]
            if one.agrees is not None:
                known[one.row["cluster"]] = known.get(one.row["cluster"], True) and one.agrees
        self._beliefs = {key: _belief(key, list(found.values()), min_agreement or 1.0) for key, found in cases.items()}
        self._samples: dict[str, list[dict[str, Any]]] = defaultdict(list)
        counts: dict[_Key, Counter[str]] = defaultdict(Counter)
        seen: set[tuple[str, str]] = set()
        for one in made:
            became, reward, tier = self._became(one)
            counts[one.key][became] += 1
            if tier is not None and (one.row["prompt_id"], one.text) not in seen:
                seen.add((one.row["prompt_id"], one.text))
                parts = {name: score for name, score in one.label.parts.items() if score is not None} | {TEACHER: reward}
                self._samples[one.row["prompt_id"]].append(_sample(one, reward, tier, parts))
        self.beliefs = tuple(self._beliefs[key].model_copy(update=dict(counts[key])) for key in sorted(cases, key=str))

    def _became(self, one: _Answer) -> tuple[str, float, Tier | None]:
        """Return the name of the count in the belief, the reward and the tier; None as tier: the answer becomes nothing."""
        belief, known = self._beliefs[one.key], one.row["reference"] is not None
        if one.label.tier is Tier.VERIFIABLE:
            full = (one.label.reward or 0.0) >= _RIGHT
            if full and (known or not belief.refuted):
                return "confirmed", _RIGHT, Tier.VERIFIABLE
            return "refused", 0.0, None
        if belief.used and not known:
            return "believed", belief.low, Tier.TEACHER
        return "refused", 0.0, None

    def added_to(self, samples: pl.DataFrame) -> pl.DataFrame:
        """Return the samples (records.SAMPLES), which are all of some prompts, with those of the teachers."""
        if not self._samples:
            return samples
        found = [row for prompt in samples["prompt_id"].unique().sort().to_list() for row in self._samples.get(prompt, ())]
        return pl.concat([samples, frame_of(found, SAMPLES)]) if found else samples


def teacher_answers(feedback: pl.DataFrame, asked: pl.DataFrame, prompts: pl.DataFrame) -> pl.DataFrame:
    """Return the answers of teachers for `TeacherLabels`, without those to prompts that are not trained on.

    `feedback` is the result of `attach`, `asked` has the columns source, id, prompt_id and, with near-duplicates, cluster of the training
    side. `prompts` are records.PROMPTS with texts.
    """
    named = asked.with_columns(pl.col("cluster" if "cluster" in asked.columns else "prompt_id").cast(pl.String).alias("cluster"))
    given = feedback.filter((pl.col("kind") == FeedbackKind.TEACHER.value) & pl.col("text").is_not_null())
    placed = given.join(named.select("source", "id", "prompt_id", "cluster"), on=["source", "id"], how="inner")
    traced = placed.with_columns(pl.concat_str("source", "id", separator="/").alias("trace"))
    return traced.select("prompt_id", "cluster", "trace", "text", "signal").join(prompts, on="prompt_id", how="inner")


def teacher_prompts(feedback: pl.DataFrame, asked: pl.DataFrame) -> list[str]:
    """Return the ids of the prompts of `asked` to which a teacher has answered."""
    given = feedback.filter(pl.col("kind") == FeedbackKind.TEACHER.value)
    return asked.join(given, on=["source", "id"], how="semi")["prompt_id"].unique().sort().to_list()


def _answers(rows: Sequence[Mapping[str, Any]], scorers: Verifier) -> list[_Answer]:
    texts = [person_answer(row["text"], row["tools"]) for row in rows]
    samples = [
        {"prompt": orjson.loads(row["prompt"]), "answer": text, "reference": row["reference"], "feedback": []}
        for row, text in zip(rows, texts, strict=True)
    ]
    labels = scorers.verify(samples) if samples else []
    same = ExactMatch(ignore_case=True).score(samples)
    return [
        _Answer(row, text, label, None if row["reference"] is None else _agrees(label, equal))
        for row, text, label, equal in zip(rows, texts, labels, same, strict=True)
    ]


def _agrees(label: Label, equal: float | None) -> bool:
    """Return whether an answer agrees with the known right one: by the verifiable scorers, or as text if none of them gives a score."""
    if label.tier is Tier.VERIFIABLE and label.reward is not None:
        return label.reward >= _RIGHT
    return equal == _RIGHT


def _belief(key: _Key, cases: Sequence[bool], least: float) -> TeacherBelief:
    version, group = key
    low, high = bounds(sum(cases), len(cases))
    figures = f"agrees in {sum(cases)} of {len(cases)} questions, {low:.2f} to {high:.2f} (level {LEVEL})"
    if not cases:
        reason = "its agreement with people is not measured"
    elif low >= least:
        reason = f"{figures}, and teacher.min_agreement is {least:g}"
    else:
        reason = f"{figures}; teacher.min_agreement = {least:g} needs a higher lower bound"
    return TeacherBelief(
        **{"version": version, "slice": group, "compared": len(cases), "agreeing": sum(cases), "low": low, "high": high},
        used=bool(cases) and low >= least,
        refuted=bool(cases) and high < least,
        reason=reason,
    )


def bounds(hits: int, cases: int) -> tuple[float, float]:
    """Return the exact lower and upper bound of a share, each at LEVEL. Without cases, 0 and 1."""
    if not cases:
        return 0.0, 1.0
    from scipy import special  # its import takes 15 MB, which only a freeze with a teacher needs

    low = float(special.betaincinv(hits, cases - hits + 1, 1 - LEVEL)) if hits else 0.0
    high = float(special.betaincinv(hits + 1, cases - hits, LEVEL)) if hits < cases else 1.0
    return low, high


def _sample(one: _Answer, reward: float, tier: Tier, parts: Mapping[str, float]) -> dict[str, Any]:
    row = one.row
    return {
        **{name: row[name] for name in ("prompt_id", "prompt", "trace", "slice", "tools")},
        **{"answer": one.text, "reward": reward, "tier": tier.value, "votes": 0, "repeats": 1, "origin": TEACHER},
        **{"user": None, "model_version": None, "parts": orjson.dumps(parts, option=orjson.OPT_SORT_KEYS).decode()},
    }
