"""`Evaluator` that sends a holdout edition and the golden set to both served models and compares the rewards per prompt.

A prompt is one observation, however many answers each model gave to it: its reward is the mean over them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from contracts.data.datasets import HoldoutEdition, Label
from contracts.data.records import Tier
from contracts.errors import Inconclusive, Retryable
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
from contracts.ids import Digest, canonical, digest
from contracts.loop import GateSettings
from contracts.mirror import MirrorOutcome, MirrorPrompt
from contracts.model import ModelRef
from contracts.ports import Artifacts, ModelClient, Progress, Rewards
from gates.earlier import Answers, Earlier, Scored, best_earlier
from gates.questions import GOLDEN, Decoding, Question, by_prompt, read_questions, requests_for, stored_answers
from gates.statistics import length_adjusted_interval, paired_interval

_UNSCORED = "unscored"


@dataclass(frozen=True)
class _Outcome:
    """What became of one prompt, or of one draw of it."""

    question: Question
    champion_failed: bool
    candidate_failed: bool
    answered: bool
    """Whether all answers of both models were scored, each pair of them by the same scorers."""
    rewards: tuple[float, float] | None
    """Rewards of champion and candidate; None if the prompt is not part of the comparison."""
    longer: float | None
    """Length of the candidate's answer minus that of the champion's, in characters, if a judge scored both. Otherwise None."""

    @classmethod
    def of(cls, question: Question, old: ChatAnswer, new: ChatAnswer, old_label: Label, new_label: Label) -> _Outcome:
        """Classify one draw.

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
        failed = [_failure(answer, label) is not None for answer, label in ((old, old_label), (new, new_label))]
        judged = alike and old_label.tier is new_label.tier is Tier.JUDGE
        longer = float(len(new.text or "") - len(old.text or "")) if judged else None
        return cls(question, failed[0], failed[1], alike, rewards, longer)

    @classmethod
    def over(cls, draws: Sequence[_Outcome]) -> _Outcome:
        """Combine the draws of one prompt, in any order, to the outcome of the prompt.

        A draw without rewards leaves out the whole prompt. The mean of the other draws would favour a model that answers only sometimes.
        """
        rewards = [draw.rewards for draw in draws if draw.rewards is not None]
        lengths = [draw.longer for draw in draws if draw.longer is not None]
        return cls(
            draws[0].question,
            any(draw.champion_failed for draw in draws),
            any(draw.candidate_failed for draw in draws),
            all(draw.answered for draw in draws),
            (fmean(old for old, _ in rewards), fmean(new for _, new in rewards)) if len(rewards) == len(draws) else None,
            fmean(lengths) if lengths else None,
        )


class PairedEvaluator:
    """`Evaluator` that compares the answers of both models to the same prompts: greedy ones, or `gate.samples` sampled ones per prompt.

    The scorers for new answers score them.
    """

    def __init__(self, artifacts: Artifacts, rewards: Rewards, settings: GateSettings) -> None:
        self._artifacts = artifacts
        self._rewards = rewards
        self._settings = settings
        self._decoding = Decoding(settings.temperature, settings.samples)

    def evaluate(
        self,
        edition: HoldoutEdition,
        champion: tuple[ModelRef, ModelClient],
        candidate: tuple[ModelRef, ModelClient],
        progress: Progress,
        earlier: Sequence[EarlierAnswers] = (),
    ) -> EvalReport:
        """Query both models in parallel, score the answers and compare the rewards.

        Stored answers of `earlier` champions to the golden set are scored again, by the present scorers. If they were decoded otherwise
        than this evaluation decodes, the candidate answers their prompts again, decoded as they were.
        Raises `Inconclusive` if the edition and the golden set contain no prompts.
        """
        questions, samples = self._questions(edition), self._decoding.samples
        requests = requests_for(questions, edition, self._decoding, self._settings.max_tokens)
        with ThreadPoolExecutor(2) as pool:
            old, new = pool.map(lambda side: side[1].chat(requests, progress), (champion, candidate))
        asked = _repeated(questions, samples)
        labels = {"champion": self._label(asked, old), "candidate": self._label(asked, new)}
        golden = _scored(questions, new, labels["candidate"], samples)
        self._prefer(asked, old, new, labels)
        rows = list(zip(asked, old, new, labels["champion"], labels["candidate"], strict=True))
        outcomes = [_Outcome.over(draws) for draws in by_prompt([_Outcome.of(*row) for row in rows], samples)]
        failures = _failures("champion", old, labels["champion"], samples) + _failures("candidate", new, labels["candidate"], samples)
        failures += Counter({UNLIKE: sum(not (o.answered or o.champion_failed or o.candidate_failed) for o in outcomes)})
        paired = [(o.question, *o.rewards) for o in outcomes if o.rewards is not None]

        def ask(again: Sequence[Question], decoding: Decoding) -> list[ChatAnswer]:
            return candidate[1].chat(requests_for(again, edition, decoding, self._settings.max_tokens), progress)

        return EvalReport(
            edition=edition.number,
            champion=champion[0].id,
            candidate=candidate[0].id,
            samples=samples,
            temperature=self._decoding.temperature,
            asked=len(questions),
            answered_by_both=sum(outcome.answered for outcome in outcomes),
            failures=dict(failures),
            comparisons=tuple(self._comparisons(paired)),
            counts=tuple(_counts(outcomes)),
            lengths={side: _mean_length(answers) for side, answers in (("champion", old), ("candidate", new))},
            length_adjusted=self._length_adjusted(outcomes),
            **self._earlier(questions, golden, earlier, ask),
            latency_ms={side: _p95(answers) for side, answers in (("champion", old), ("candidate", new))},
            answers=self._artifacts.put(b"\n".join(_row(place % samples, self._decoding, *row) for place, row in enumerate(rows))),
        )

    def mirror(
        self, prompts: Sequence[MirrorPrompt], champion: ModelClient, candidate: ModelClient, progress: Progress
    ) -> list[MirrorOutcome]:
        """Let both models answer users' prompts once more with the decoding of the gate and the same seeds, and compare the rewards.

        A request that failed for the candidate alone has reward 0. Nothing is stored, and no text is part of the result. Raises `Retryable`
        if a model answers none of the prompts or no pair has rewards: a server or a scorer is not available, which says nothing about the
        models.
        """
        questions = [Question("mirrored", one.messages, one.reference, None, one.tools) for one in prompts]
        requests = [
            ChatRequest(
                messages=one.messages,
                tools=one.tools,
                temperature=self._settings.temperature,
                max_tokens=self._settings.max_tokens,
                seed=int(digest(one.key)[:8], 16) >> 1 if self._settings.temperature > 0 else None,
            )
            for one in prompts
        ]
        with ThreadPoolExecutor(2) as pool:
            old, new = pool.map(lambda client: client.chat(requests, progress), (champion, candidate))
        for side, answers in (("champion", old), ("candidate", new)):
            if answers and all(answer.text is None for answer in answers):
                raise Retryable(f"the {side} answers no mirrored prompt ({answers[0].error})")
        labels = {"champion": self._label(questions, old), "candidate": self._label(questions, new)}
        self._prefer(questions, old, new, labels)
        found = []
        for row in zip(questions, old, new, labels["champion"], labels["candidate"], strict=True):
            rewards = _Outcome.of(*row).rewards
            difference = None if rewards is None else rewards[1] - rewards[0]
            found.append(MirrorOutcome(difference=difference, failed=difference is None and row[1].text is None))
        if found and all(one.difference is None and not one.failed for one in found):
            raise Retryable("no pair of mirrored answers has comparable rewards; a scorer may be unavailable")
        return found

    def _questions(self, edition: HoldoutEdition) -> list[Question]:
        sets: list[tuple[str, Digest | None]] = [("holdout", edition.prompts), (GOLDEN, edition.golden)]
        questions = [q for name, key in sets if key for q in read_questions(name, self._artifacts.get(key))]
        if not questions:
            raise Inconclusive(f"edition {edition.number} of line {edition.line!r} has no prompts, so no comparison is possible")
        return questions

    def _label(self, questions: Sequence[Question], answers: Sequence[ChatAnswer]) -> list[Label]:
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
        self, questions: Sequence[Question], old: Sequence[ChatAnswer], new: Sequence[ChatAnswer], labels: dict[str, list[Label]]
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

    def _earlier(
        self,
        questions: Sequence[Question],
        golden: Answers,
        earlier: Sequence[EarlierAnswers],
        ask: Callable[[Sequence[Question], Decoding], list[ChatAnswer]],
    ) -> dict[str, Any]:
        """Compare the candidate's golden answers with those of earlier champions, scored alike. Judges grade each answer by itself.

        `golden` has the candidate's answers of this evaluation. The rewards of greedy and of sampled answers are not comparable, so `ask`
        gets the candidate's answers with the decoding of a stored evaluation. Returns the fields `earlier` and `earlier_common` of the
        report.
        """
        asked = {question.key: question for question in questions if question.set == GOLDEN}
        stored = {champion.version: stored_answers(self._artifacts.get(champion.answers)) for champion in earlier}
        candidate = {self._decoding: golden}
        for decoding in dict.fromkeys(one.decoding for one in stored.values()):
            if decoding not in candidate:
                texts = [one.texts for one in stored.values() if one.decoding == decoding]
                again = [question for key, question in asked.items() if any(key in found for found in texts)]
                answers = ask(again, decoding) if again else []
                candidate[decoding] = _scored(again, answers, self._label(_repeated(again, decoding.samples), answers), decoding.samples)
        scored, common = dict[str, Earlier](), 0
        for version, one in stored.items():
            common = max(common, len({question.cluster for key, question in asked.items() if key in one.texts}))
            both = [asked[key] for key in asked if key in one.texts and key in candidate[one.decoding]]
            answers = [ChatAnswer(text=text) for question in both for text in one.texts[question.key]]
            labels = self._label(_repeated(both, one.decoding.samples), answers)
            scored[version] = Earlier(one.decoding, _scored(both, answers, labels, one.decoding.samples))
        compared = best_earlier(candidate, scored, self._settings.level, self._settings.min_slice)
        return {"earlier": tuple(compared), "earlier_common": common}

    def _comparisons(self, paired: Sequence[tuple[Question, float, float]]) -> list[Comparison]:
        groups = {"overall": list(paired)}
        for name in _groups(q for q, _, _ in paired):
            groups[name] = [row for row in paired if name in row[0].groups]
        comparisons = (self._compare(name, rows) for name, rows in groups.items())
        return [comparison for comparison in comparisons if comparison is not None]

    def _compare(self, name: str, rows: Sequence[tuple[Question, float, float]]) -> Comparison | None:
        """Compare the rewards, clustered by conversation as in the holdout split. Returns None for fewer than two clusters.

        Turns of one conversation and repeated prompts form one cluster, and their differences are averaged first.
        """
        clusters: dict[str, list[tuple[float, float]]] = {}
        for q, a, b in rows:
            clusters.setdefault(q.cluster, []).append((a, b))
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
                clusters.setdefault(outcome.question.cluster, []).append(outcome)
        differences, longer = list[float](), list[float | None]()
        for cluster in clusters.values():
            lengths = [outcome.longer for outcome in cluster if outcome.longer is not None]
            differences.append(fmean(new - old for old, new in (outcome.rewards for outcome in cluster if outcome.rewards)))
            longer.append(fmean(lengths) if lengths else None)
        return length_adjusted_interval(differences, longer, self._settings.level)


def _repeated(questions: Sequence[Question], samples: int) -> list[Question]:
    """Return the question of each request of `requests_for`."""
    return [question for question in questions for _ in range(samples)]


def _scored(questions: Sequence[Question], answers: Sequence[ChatAnswer], labels: Sequence[Label], samples: int) -> dict[str, Scored]:
    """Return `Question.key` -> scored answers to a golden question. A failed request has reward 0, as in the comparison.

    Left out are questions with an answer without a score, and with answers that different scorers decided.
    """
    found = {}
    for question, draws in zip(questions, by_prompt(list(zip(answers, labels, strict=True)), samples), strict=True):
        deciding = {label.deciding for answer, label in draws if answer.text is not None}
        unscored = any(answer.text is not None and label.reward is None for answer, label in draws)
        if question.set == GOLDEN and not unscored and len(deciding) <= 1:
            reward = fmean(label.reward or 0.0 for _, label in draws)
            found[question.key] = Scored(question.cluster, question.groups, reward, next(iter(deciding), None))
    return found


def _groups(questions: Iterable[Question]) -> list[str]:
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
            clusters=len({outcome.question.cluster for outcome in inside}),
            answered_by_both=sum(outcome.answered for outcome in inside),
            champion_failed=sum(outcome.champion_failed for outcome in inside),
            candidate_failed=sum(outcome.candidate_failed for outcome in inside),
        )


def _failure(answer: ChatAnswer, label: Label) -> str | None:
    """Return why an answer has no reward: the kind of its error, or that no scorer gave a score. None if it has one."""
    if answer.text is None:
        return (answer.error or "no answer").split(":")[0]
    return _UNSCORED if label.reward is None else None


def _failures(side: str, answers: Sequence[ChatAnswer], labels: Sequence[Label], samples: int) -> Counter[str]:
    """Count the prompts with a failed draw by the reason: the first one in alphabetical order, and a missing score after all others."""
    reasons = [_failure(answer, label) for answer, label in zip(answers, labels, strict=True)]
    failed = [[reason for reason in draws if reason is not None] for draws in by_prompt(reasons, samples)]
    found = Counter(min(draws, key=lambda reason: (reason == _UNSCORED, reason)) for draws in failed if draws)
    ordered = sorted(found, key=lambda reason: reason == _UNSCORED)
    return Counter({f"{side}:{reason}": found[reason] for reason in ordered})


def _mean_length(answers: Sequence[ChatAnswer]) -> float:
    lengths = [len(answer.text) for answer in answers if answer.text is not None]
    return float(np.mean(lengths)) if lengths else 0.0


def _p95(answers: Sequence[ChatAnswer]) -> float:
    values = [answer.latency_ms for answer in answers if answer.text is not None]
    return float(np.percentile(values, 95)) if values else 0.0


def _row(draw: int, decoding: Decoding, question: Question, old: ChatAnswer, new: ChatAnswer, old_label: Label, new_label: Label) -> bytes:
    return canonical(
        {
            "set": question.set,
            "slice": question.slice,
            "prompt": list(question.prompt),
            "reference": question.reference,
            "draw": draw,
            "temperature": decoding.temperature,
            "champion": {"answer": old.text, "reward": old_label.reward, "parts": dict(old_label.parts), "error": old.error},
            "candidate": {"answer": new.text, "reward": new_label.reward, "parts": dict(new_label.parts), "error": new.error},
        }
    )
