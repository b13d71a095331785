"""`Evaluator` that sends a holdout edition and the golden set to both served models and compares the rewards per prompt."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from contracts.data.datasets import HoldoutEdition, Label
from contracts.data.records import Tier
from contracts.errors import Inconclusive
from contracts.evaluation import (
    UNLIKE,
    ChatAnswer,
    ChatRequest,
    Comparison,
    EarlierAnswers,
    EvalReport,
    Interval,
    PromptCount,
)
from contracts.ids import Digest, canonical, digest, root_id
from contracts.loop import GateSettings
from contracts.model import ModelRef
from contracts.ports import Artifacts, ModelClient, Progress, Rewards
from gates.earlier import Answers, Scored, best_earlier
from gates.statistics import length_adjusted_interval, paired_interval

GOLDEN = "golden"


@dataclass(frozen=True)
class _Question:
    set: str
    prompt: tuple[dict[str, Any], ...]
    reference: str | None
    slice: str | None
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the prompt set and of the slice that contain the prompt."""
        return (self.set, f"slice:{self.slice}") if self.slice else (self.set,)


@dataclass(frozen=True)
class _Outcome:
    """What became of one prompt."""

    question: _Question
    champion_failed: bool
    candidate_failed: bool
    answered: bool
    """Whether both answers were scored by the same scorers."""
    rewards: tuple[float, float] | None
    """Rewards of champion and candidate; None if the prompt is not part of the comparison."""
    longer: float | None
    """Length of the candidate's answer minus that of the champion's, in characters, if a judge scored both. Otherwise None."""

    @classmethod
    def of(cls, question: _Question, old: ChatAnswer, new: ChatAnswer, old_label: Label, new_label: Label) -> _Outcome:
        """Classify one prompt.

        A request that failed for the candidate alone has reward 0: otherwise a candidate could leave out the prompts that it cannot
        answer. Rewards from different scorers are not comparable; this happens if a scorer was unavailable for one of the answers.
        """
        champion, candidate = old_label.reward, new_label.reward
        alike = champion is not None and candidate is not None and old_label.deciding == new_label.deciding
        rewards = None
        if champion is not None and candidate is not None and alike:
            rewards = (champion, candidate)
        elif champion is not None and new.text is None:
            rewards = (champion, 0.0)
        failed = [answer.text is None or label.reward is None for answer, label in ((old, old_label), (new, new_label))]
        judged = alike and old_label.tier is new_label.tier is Tier.JUDGE
        longer = float(len(new.text or "") - len(old.text or "")) if judged else None
        return cls(question, failed[0], failed[1], alike, rewards, longer)


class PairedEvaluator:
    """`Evaluator` that compares greedy answers (temperature 0) of both models to the same prompts.

    The scorers for new answers score them.
    """

    def __init__(self, artifacts: Artifacts, rewards: Rewards, settings: GateSettings) -> None:
        self._artifacts = artifacts
        self._rewards = rewards
        self._settings = settings

    def evaluate(
        self,
        edition: HoldoutEdition,
        champion: tuple[ModelRef, ModelClient],
        candidate: tuple[ModelRef, ModelClient],
        progress: Progress,
        earlier: Sequence[EarlierAnswers] = (),
    ) -> EvalReport:
        """Query both models in parallel, score the answers and compare the rewards.

        Stored answers of `earlier` champions to the golden set are scored again, by the present scorers.
        Raises `Inconclusive` if the edition and the golden set contain no prompts.
        """
        questions = self._questions(edition)
        requests = [ChatRequest(messages=q.prompt, tools=q.tools, temperature=0.0, max_tokens=self._settings.max_tokens) for q in questions]
        with ThreadPoolExecutor(2) as pool:
            old, new = pool.map(lambda side: side[1].chat(requests, progress), (champion, candidate))
        labels = {"champion": self._label(questions, old), "candidate": self._label(questions, new)}
        golden = {_key(q): _scored(q, answer, label) for q, answer, label in zip(questions, new, labels["candidate"], strict=True)}
        self._prefer(questions, old, new, labels)
        failures = _failures("champion", old, labels["champion"]) + _failures("candidate", new, labels["candidate"])
        rows = list(zip(questions, old, new, labels["champion"], labels["candidate"], strict=True))
        outcomes = [_Outcome.of(*row) for row in rows]
        answered = sum(outcome.answered for outcome in outcomes)
        failures += Counter({UNLIKE: sum(not (o.answered or o.champion_failed or o.candidate_failed) for o in outcomes)})
        paired = [(o.question, *o.rewards) for o in outcomes if o.rewards is not None]
        return EvalReport(
            edition=edition.number,
            champion=champion[0].id,
            candidate=candidate[0].id,
            asked=len(questions),
            answered_by_both=answered,
            failures=dict(failures),
            comparisons=tuple(self._comparisons(paired)),
            counts=tuple(_counts(outcomes)),
            lengths={side: _mean_length(answers) for side, answers in (("champion", old), ("candidate", new))},
            length_adjusted=self._length_adjusted(outcomes),
            **self._earlier(questions, {key: one for key, one in golden.items() if one is not None}, earlier),
            latency_ms={side: _p95(answers) for side, answers in (("champion", old), ("candidate", new))},
            answers=self._artifacts.put(b"\n".join(_row(*row) for row in rows)),
        )

    def _questions(self, edition: HoldoutEdition) -> list[_Question]:
        sets: list[tuple[str, Digest | None]] = [("holdout", edition.prompts), (GOLDEN, edition.golden)]
        questions = [q for name, key in sets if key for q in _read(name, self._artifacts.get(key))]
        if not questions:
            raise Inconclusive(f"edition {edition.number} of line {edition.line!r} has no prompts, so no comparison is possible")
        return questions

    def _label(self, questions: Sequence[_Question], answers: Sequence[ChatAnswer]) -> list[Label]:
        known = [i for i, answer in enumerate(answers) if answer.text is not None]
        samples = [{"prompt": list(questions[i].prompt), "answer": answers[i].text, "reference": questions[i].reference} for i in known]
        labels = [Label(None, None, {}, 0)] * len(answers)
        for i, label in zip(known, self._rewards.label_unseen(samples), strict=True):
            labels[i] = label
        # Retry once if a scorer abstained: it may have been unavailable temporarily, and the prompt would not be comparable.
        again = [(i, sample) for i, sample in zip(known, samples, strict=True) if None in labels[i].parts.values()]
        for (i, _), label in zip(again, self._rewards.label_unseen([sample for _, sample in again]), strict=True):
            labels[i] = min(labels[i], label, key=lambda one: list(one.parts.values()).count(None))
        return labels

    def _prefer(
        self, questions: Sequence[_Question], old: Sequence[ChatAnswer], new: Sequence[ChatAnswer], labels: dict[str, list[Label]]
    ) -> None:
        """Where only judges decide, replace the rewards of both answers by the judges' preference between them.

        A judge that grades two answers apart gives equal grades too often. A pair without a preference keeps its grades.
        """
        pairs = list(zip(labels["champion"], labels["candidate"], strict=True))
        places = [place for place, (one, other) in enumerate(pairs) if one.tier is other.tier is Tier.JUDGE]
        samples = [
            {"prompt": list(questions[place].prompt), "answer": new[place].text, "reference": questions[place].reference}
            for place in places
        ]
        preferences = self._rewards.prefer(samples, [old[place].text or "" for place in places])
        for place, preference in zip(places, preferences, strict=True):
            if preference is not None:
                for side, reward in (("champion", 1 - preference), ("candidate", preference)):
                    labels[side][place] = replace(labels[side][place], reward=reward)

    def _earlier(self, questions: Sequence[_Question], candidate: Answers, earlier: Sequence[EarlierAnswers]) -> dict[str, Any]:
        """Compare the candidate's golden answers with those of earlier champions, scored alike. Judges grade each answer by itself.

        Returns the fields `earlier` and `earlier_common` of the report.
        """
        asked = {_key(question): question for question in questions if question.set == GOLDEN}
        scored, common = dict[str, Answers](), 0
        for champion in earlier:
            texts = _stored(self._artifacts.get(champion.answers))
            common = max(common, len({root_id(question.prompt) for key, question in asked.items() if key in texts}))
            both = [key for key in asked if key in texts and key in candidate]
            answers = [ChatAnswer(text=texts[key]) for key in both]
            labels = self._label([asked[key] for key in both], answers)
            rows = ((key, _scored(asked[key], answer, label)) for key, answer, label in zip(both, answers, labels, strict=True))
            scored[champion.version] = {key: one for key, one in rows if one is not None}
        compared = best_earlier(candidate, scored, self._settings.level, self._settings.min_slice)
        return {"earlier": tuple(compared), "earlier_common": common}

    def _comparisons(self, paired: Sequence[tuple[_Question, float, float]]) -> list[Comparison]:
        groups = {"overall": list(paired)}
        for name in _groups(q for q, _, _ in paired):
            groups[name] = [row for row in paired if name in row[0].groups]
        comparisons = (self._compare(name, rows) for name, rows in groups.items())
        return [comparison for comparison in comparisons if comparison is not None]

    def _compare(self, name: str, rows: Sequence[tuple[_Question, float, float]]) -> Comparison | None:
        """Compare the rewards, clustered by conversation as in the holdout split. Returns None for fewer than two clusters.

        Turns of one conversation and repeated prompts form one cluster, and their differences are averaged first.
        """
        clusters: dict[str, list[tuple[float, float]]] = {}
        for q, a, b in rows:
            clusters.setdefault(root_id(q.prompt), []).append((a, b))
        pairs = [np.mean(rewards, axis=0) for rewards in clusters.values()]
        interval = paired_interval([float(new - old) for old, new in pairs], self._settings.level)
        if interval is None:
            return None
        champion, candidate = np.mean(pairs, axis=0)
        return Comparison(name=name, n=len(clusters), champion=float(champion), candidate=float(candidate), difference=interval)

    def _length_adjusted(self, outcomes: Sequence[_Outcome]) -> Interval | None:
        """Return the difference at equal length of the answers that a judge scored, clustered by conversation as in `_compare`."""
        clusters: dict[str, list[_Outcome]] = {}
        for outcome in outcomes:
            if outcome.rewards is not None:
                clusters.setdefault(root_id(outcome.question.prompt), []).append(outcome)
        differences, longer = list[float](), list[float | None]()
        for cluster in clusters.values():
            lengths = [outcome.longer for outcome in cluster if outcome.longer is not None]
            differences.append(fmean(new - old for old, new in (outcome.rewards for outcome in cluster if outcome.rewards)))
            longer.append(fmean(lengths) if lengths else None)
        return length_adjusted_interval(differences, longer, self._settings.level)


def _key(question: _Question) -> str:
    """Return what identifies a question in stored answers."""
    return digest([question.set, list(question.prompt), question.reference])


def _scored(question: _Question, answer: ChatAnswer, label: Label) -> Scored | None:
    """Return the scored answer to a golden question. A failed request has reward 0, as in the comparison; None without a score."""
    if question.set != GOLDEN or (answer.text is not None and label.reward is None):
        return None
    return Scored(root_id(question.prompt), question.groups, label.reward or 0.0, None if answer.text is None else label.deciding)


def _stored(rows: bytes) -> dict[str, str]:
    """Return key -> text of the champion's answers in the rows of a report."""
    found = {}
    for row in map(json.loads, rows.splitlines()):
        if row["champion"]["answer"] is not None:
            found[digest([row["set"], row["prompt"], row["reference"]])] = row["champion"]["answer"]
    return found


def _read(name: str, parquet: bytes) -> list[_Question]:
    rows = pq.read_table(io.BytesIO(parquet)).to_pylist()
    return [
        _Question(name, tuple(json.loads(row["prompt"])), row["reference"], row["slice"], tuple(json.loads(row.get("tools") or "[]")))
        for row in rows
    ]


def _groups(questions: Iterable[_Question]) -> list[str]:
    """Return the names of all prompt sets, then of all slices."""
    names = {name for question in questions for name in question.groups}
    return sorted(names, key=lambda name: (name.startswith("slice:"), name != "holdout", name))


def _counts(outcomes: Sequence[_Outcome]) -> Iterator[PromptCount]:
    """Yield the count of each prompt set and slice that was asked."""
    for name in _groups(outcome.question for outcome in outcomes):
        inside = [outcome for outcome in outcomes if name in outcome.question.groups]
        yield PromptCount(
            name=name,
            asked=len(inside),
            clusters=len({root_id(outcome.question.prompt) for outcome in inside}),
            answered_by_both=sum(outcome.answered for outcome in inside),
            champion_failed=sum(outcome.champion_failed for outcome in inside),
            candidate_failed=sum(outcome.candidate_failed for outcome in inside),
        )


def _failures(side: str, answers: Sequence[ChatAnswer], labels: Sequence[Label]) -> Counter[str]:
    failed = Counter(f"{side}:{(answer.error or 'no answer').split(':')[0]}" for answer in answers if answer.text is None)
    unscored = sum(1 for answer, label in zip(answers, labels, strict=True) if answer.text is not None and label.reward is None)
    return failed + Counter({f"{side}:unscored": unscored})


def _mean_length(answers: Sequence[ChatAnswer]) -> float:
    lengths = [len(answer.text) for answer in answers if answer.text is not None]
    return float(np.mean(lengths)) if lengths else 0.0


def _p95(answers: Sequence[ChatAnswer]) -> float:
    values = [answer.latency_ms for answer in answers if answer.text is not None]
    return float(np.percentile(values, 95)) if values else 0.0


def _row(question: _Question, old: ChatAnswer, new: ChatAnswer, old_label: Label, new_label: Label) -> bytes:
    return canonical(
        {
            "set": question.set,
            "slice": question.slice,
            "prompt": list(question.prompt),
            "reference": question.reference,
            "champion": {"answer": old.text, "reward": old_label.reward, "parts": dict(old_label.parts), "error": old.error},
            "candidate": {"answer": new.text, "reward": new_label.reward, "parts": dict(new_label.parts), "error": new.error},
        }
    )
