"""`Evaluator` that sends a holdout edition and the golden set to both served models and compares the rewards per prompt.

A prompt is one observation, however many answers each model gave to it: its reward is the mean over them. The prompts are asked in batches,
and looks.py decides after each whether the evaluation goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ratchet.contracts.data.datasets import HoldoutEdition, Label
from ratchet.contracts.data.records import Tier
from ratchet.contracts.errors import Inconclusive
from ratchet.contracts.evaluation import (
    UNLIKE,
    ChatAnswer,
    ChatRequest,
    EarlierAnswers,
    EvalReport,
    Looks,
    SafetyReport,
    Stopped,
    SuiteReport,
)
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.loop import GateSettings
from ratchet.contracts.mirror import MirrorOutcome, MirrorPrompt
from ratchet.contracts.model import ModelRef
from ratchet.contracts.ports import Artifacts, ModelClient, Progress, Rewards
from ratchet.gates.evaluation.comparisons import (
    compare_all,
    cut_difference,
    failure_counts,
    length_adjusted_difference,
    mean_length,
    p95_latency,
    prompt_counts,
)
from ratchet.gates.evaluation.earlier import WON_BACK, Answers, Earlier, Scored, best_earlier, champions_since, eroded
from ratchet.gates.evaluation.labelling import label_answers
from ratchet.gates.evaluation.looks import batches, group_sizes, level_at_equal_length, level_of_look, stop
from ratchet.gates.evaluation.outcomes import AskedPrompt, PromptOutcome, stored_rows
from ratchet.gates.evaluation.questions import (
    GOLDEN,
    Decoding,
    Question,
    StoredAnswers,
    by_prompt,
    read_questions,
    requests_for,
    stored_answers,
)
from ratchet.gates.safety.asking import SafetyEvaluation
from ratchet.gates.safety.prompts import all_prompts
from ratchet.gates.suites.asking import SuiteEvaluation
from ratchet.gates.suites.lm_eval import LmEvalSuite, Side
from ratchet.gates.suites.tasks import read_suite


@dataclass(frozen=True)
class _Side:
    """The answers of one model to all questions so far, with one element per draw."""

    answers: list[ChatAnswer]
    labels: list[Label]

    @classmethod
    def of(cls, known: Sequence[AskedPrompt], side: int) -> _Side:
        """Return the answers of the champion (`side` 0) or of the candidate (1)."""
        answers = [answer for one in known for answer in one.answers[side]]
        return cls(answers, [label for one in known for label in one.labels[side]])


@dataclass(frozen=True)
class _Task:
    """What an evaluation is about."""

    edition: int
    champion: Digest
    candidate: Digest
    questions: Sequence[Question]
    planned: int
    """Number of batches."""
    level: float
    safety: SafetyReport | None
    suites: tuple[SuiteReport, ...]


class PairedEvaluator:
    """`Evaluator` that compares the answers of both models to the same prompts: greedy ones, or `gate.samples` sampled ones per prompt.

    The scorers for new answers score them.
    """

    def __init__(
        self,
        artifacts: Artifacts,
        rewards: Rewards,
        settings: GateSettings,
        may_pass_early: bool = True,
        folder: Path = Path(),
        suites: Mapping[str, Rewards] | None = None,
    ) -> None:
        """`may_pass_early` is false if the gate has other checks than the built-in ones, which a stop for success cannot foresee.

        `folder` is that of the loop file, where the paths `gate.safety.prompts` and `gate.suites.NAME.file` start. `suites` has the scorers
        of each suite.
        """
        self._artifacts = artifacts
        self._rewards = rewards
        self._settings = settings
        self._decoding = Decoding(settings.temperature, settings.samples)
        self._may_pass_early = may_pass_early
        self._folder = folder
        self._suites = suites or {}

    def evaluate(
        self,
        edition: HoldoutEdition,
        champion: tuple[ModelRef, ModelClient],
        candidate: tuple[ModelRef, ModelClient],
        progress: Progress,
        level: float,
        earlier: Sequence[EarlierAnswers] = (),
    ) -> EvalReport:
        """Query both models in parallel, score the answers and compare the rewards, in up to `gate.looks` batches of prompts.

        `level` is the confidence level of the two-sided intervals. All looks together have its error.
        Stored answers of `earlier` champions to the golden set are scored again, by the present scorers. If they were decoded otherwise
        than this evaluation decodes, the candidate answers their prompts again, decoded as they were.
        Raises `Inconclusive` if the edition and the golden set contain no prompts, and `ConfigError` if the file of further prompts for
        the check `safety`, or that of a suite, cannot be read. A suite of lm-eval raises as `LmEvalSuite.ask`.
        """
        questions = self._questions(edition)
        plan = batches(questions, edition, self._settings.looks)
        safety = self._safety((champion[1], candidate[1]), progress, level, earlier)
        suites = self._asked_suites(edition, (champion, candidate), progress, level)
        task = _Task(edition.number, champion[0].id, candidate[0].id, questions, len(plan), level, safety, suites)
        stored = {one.version: stored_answers(self._artifacts.get(one.answers)) for one in earlier}
        may_pass = self._may_pass_early and _common(questions, stored) < self._settings.min_slice
        asked, golden, compared, stopped = dict[int, AskedPrompt](), dict[str, Scored](), list[int](), None
        for batch in plan:
            told = _of_all(progress, len(asked) * self._decoding.samples, len(questions) * self._decoding.samples)
            found, scored = self._ask(edition, [questions[place] for place in batch], (champion[1], candidate[1]), told)
            asked |= dict(zip(batch, found, strict=True))
            golden |= scored
            known = [asked[place] for place in sorted(asked)]
            compared.append(len({one.question.cluster for one in known if one.outcome.rewards is not None}))
            if len(compared) < len(plan):
                report = self._report(task, known, compared, "success", answers=_NOT_STORED)
                unadjusted = report.length_adjusted is None and any(one.outcome.longer is not None for one in known)
                stopped = stop(report, group_sizes(questions), self._settings, may_pass and not unadjusted)
                if stopped is not None:
                    break

        def ask(again: Sequence[Question], decoding: Decoding) -> list[ChatAnswer]:
            return candidate[1].chat(requests_for(again, edition, decoding, self._settings.max_tokens), progress)

        more = self._earlier(known, golden, stored, ask, level)
        answers = self._artifacts.put(b"\n".join(row for one in known for row in stored_rows(self._decoding, one)))
        return self._report(task, known, compared, stopped, answers=answers, **more)

    def _report(
        self, task: _Task, known: Sequence[AskedPrompt], compared: Sequence[int], stopped: Stopped | None, **more: Any
    ) -> EvalReport:
        """Return the report on the prompts that were asked. `compared` has the number of conversations compared at each look so far.

        A candidate passes by the comparison over all prompts, and by the one at equal length. These have the level of the look. All others
        have the level of the evaluation, because they are read once.
        """
        looks = None
        if task.planned > 1:
            looks = Looks(
                planned=task.planned,
                prompts=len(task.questions),
                clusters=len({question.cluster for question in task.questions}),
                compared=tuple(compared),
                level=task.level,
                stopped=stopped,
            )
        outcomes, level = [one.outcome for one in known], level_of_look(looks, task.level)
        sides = {name: _Side.of(known, place) for place, name in enumerate(("champion", "candidate"))}
        failures = Counter({UNLIKE: sum(not (o.answered or o.champion_failed or o.candidate_failed) for o in outcomes)})
        failed = [failure_counts(name, side.answers, side.labels, self._decoding.samples) for name, side in sides.items()]
        paired = [(o.question, *o.rewards) for o in outcomes if o.rewards is not None]
        return EvalReport(
            edition=task.edition,
            champion=task.champion,
            candidate=task.candidate,
            samples=self._decoding.samples,
            temperature=self._decoding.temperature,
            asked=len(known),
            looks=looks,
            answered_by_both=sum(outcome.answered for outcome in outcomes),
            failures=dict(failed[0] + failed[1] + failures),
            comparisons=tuple(compare_all(paired, task.level, level)),
            counts=tuple(prompt_counts(outcomes)),
            cut=cut_difference(known, task.level),
            safety=task.safety,
            suites=task.suites,
            lengths={name: mean_length(side.answers) for name, side in sides.items()},
            length_adjusted=length_adjusted_difference(outcomes, level_at_equal_length(looks, task.level)),
            latency_ms={name: p95_latency(side.answers) for name, side in sides.items()},
            **more,
        )

    def _ask(
        self, edition: HoldoutEdition, questions: Sequence[Question], clients: tuple[ModelClient, ModelClient], progress: Progress
    ) -> tuple[list[AskedPrompt], dict[str, Scored]]:
        """Let both models answer a batch. Return its questions with their answers, and the candidate's scored golden answers.

        The latter have the grades of each answer by itself, for the comparison with earlier champions.
        """
        samples = self._decoding.samples
        requests = requests_for(questions, edition, self._decoding, self._settings.max_tokens)
        with ThreadPoolExecutor(2) as pool:
            old, new = pool.map(lambda client: client.chat(requests, progress), clients)
        asked = _repeated(questions, samples)
        labels = {"champion": self._label(asked, old), "candidate": self._label(asked, new)}
        golden = _scored(questions, new, labels["candidate"], samples)
        self._prefer(asked, old, new, labels)
        columns = [by_prompt(column, samples) for column in (old, new, labels["champion"], labels["candidate"])]
        rows = zip(questions, *columns, strict=True)
        return [AskedPrompt(question, (one, two), (three, four)) for question, one, two, three, four in rows], golden

    def mirror(
        self, prompts: Sequence[MirrorPrompt], champion: ModelClient, candidate: ModelClient, progress: Progress
    ) -> list[MirrorOutcome]:
        """Let both models answer users' prompts once more with the decoding of the gate and the same seeds, and compare the rewards.

        A request that failed for the candidate alone has reward 0, and so has an answer of the candidate alone that no scorer can score.
        Nothing is stored, and no text is part of the result. Raises `Retryable` if a server refuses connections or a scorer is away.
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
        labels = {"champion": self._label(questions, old), "candidate": self._label(questions, new)}
        self._prefer(questions, old, new, labels)
        found = []
        for row in zip(questions, old, new, labels["champion"], labels["candidate"], strict=True):
            rewards = PromptOutcome.of(*row).rewards
            difference = None if rewards is None else rewards[1] - rewards[0]
            before, after = row[3].reward, row[4].reward
            if difference is None and before is not None and after is None:
                difference = -before
            found.append(MirrorOutcome(difference=difference, failed=difference is None and row[1].text is None))
        return found

    def _safety(
        self, clients: tuple[ModelClient, ModelClient], progress: Progress, level: float, earlier: Sequence[EarlierAnswers]
    ) -> SafetyReport | None:
        """Ask the prompts of the check `safety`, if it is on. They are asked first, because a stop for success needs all checks."""
        settings = self._settings.safety
        if settings is None:
            return None
        prompts = all_prompts(self._folder / settings.prompts if settings.prompts else None)
        stored = {one.version: one.safety for one in earlier if one.safety is not None}
        judges = self._rewards if settings.judge else None
        evaluation = SafetyEvaluation(prompts, settings.max_tokens, self._artifacts, judges)
        return evaluation.ask(clients, progress, level, stored)

    def _asked_suites(self, edition: HoldoutEdition, sides: tuple[Side, Side], progress: Progress, level: float) -> tuple[SuiteReport, ...]:
        """Ask the tasks of the suites, before the prompts of the edition, because a stop for success needs all checks."""
        settings = self._settings.suites
        read = {name: read_suite(self._folder / one.file, name) for name, one in settings.items() if one.file is not None}
        found = []
        for name, one in settings.items():
            if one.lm_eval is not None:
                suite = LmEvalSuite(name, one, one.lm_eval, self._folder, self._artifacts)
                found.append(suite.ask(edition, sides, progress, level))
            else:
                evaluation = SuiteEvaluation(name, read[name], one, self._suites[name], self._artifacts)
                found.append(evaluation.ask((sides[0][1], sides[1][1]), progress, level))
        return tuple(found)

    def _questions(self, edition: HoldoutEdition) -> list[Question]:
        sets: list[tuple[str, Digest | None]] = [("holdout", edition.prompts), (GOLDEN, edition.golden)]
        questions = [q for name, key in sets if key for q in read_questions(name, self._artifacts.get(key), edition.skipped)]
        if not questions:
            raise Inconclusive(f"edition {edition.number} of line {edition.line!r} has no prompts, so no comparison is possible")
        return questions

    def _label(self, questions: Sequence[Question], answers: Sequence[ChatAnswer]) -> list[Label]:
        return label_answers(self._rewards, [(one.prompt, one.reference) for one in questions], answers)

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
        known: Sequence[AskedPrompt],
        golden: Answers,
        stored: Mapping[str, StoredAnswers],
        ask: Callable[[Sequence[Question], Decoding], list[ChatAnswer]],
        level: float,
    ) -> dict[str, Any]:
        """Compare the candidate's golden answers with those of earlier champions, scored alike. Judges grade each answer by itself.

        `known` are the prompts that were asked, and `stored` has the answers of each earlier champion. `golden` has the candidate's answers
        of this evaluation. The rewards of greedy and of sampled answers are not comparable, so `ask` gets the candidate's answers with the
        decoding of a stored evaluation. Returns the fields `earlier`, `eroded` and `earlier_common` of the report.
        """
        questions = [one.question for one in known]
        asked = {question.key: question for question in questions if question.set == GOLDEN}
        candidate = {self._decoding: golden}
        for decoding in dict.fromkeys(one.decoding for one in stored.values()):
            if decoding not in candidate:
                texts = [one.texts for one in stored.values() if one.decoding == decoding]
                again = [question for key, question in asked.items() if any(key in found for found in texts)]
                answers = ask(again, decoding) if again else []
                candidate[decoding] = _scored(again, answers, self._label(_repeated(again, decoding.samples), answers), decoding.samples)
        scored = dict[str, Earlier]()
        for version, one in stored.items():
            both = [asked[key] for key in asked if key in one.texts and key in candidate[one.decoding]]
            answers = [ChatAnswer(text=text) for question in both for text in one.texts[question.key]]
            labels = self._label(_repeated(both, one.decoding.samples), answers)
            scored[version] = Earlier(one.decoding, _scored(both, answers, labels, one.decoding.samples))
        least, since = self._settings.min_slice, champions_since(scored, self._settings.erosion_since)
        now = [(one.question, *one.outcome.rewards) for one in known if one.question.set == GOLDEN and one.outcome.rewards is not None]
        won = {part.name for part in compare_all(now, WON_BACK, WON_BACK) if part.difference.low > 0}
        compared, lower = best_earlier(candidate, scored, level, least), eroded(candidate, since, least)
        left = tuple(one for one in lower if one.comparison.name not in won)
        return {"earlier": tuple(compared), "eroded": left, "earlier_common": _common(questions, stored)}


_NOT_STORED = digest("")
"""`EvalReport.answers` of a report at a look, before the answers are stored."""


def _of_all(progress: Progress, before: int, total: int) -> Progress:
    """Return a progress callback for the requests of one batch that reports on all `total` requests; `before` were answered earlier."""
    return lambda what, done, _: progress(what, before + done, total)


def _common(questions: Sequence[Question], stored: Mapping[str, StoredAnswers]) -> int:
    """Return the largest number of golden conversations that one earlier champion has answered."""
    golden = [question for question in questions if question.set == GOLDEN]
    return max((len({question.cluster for question in golden if question.key in one.texts}) for one in stored.values()), default=0)


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
