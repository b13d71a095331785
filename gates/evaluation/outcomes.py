"""What became of the prompts of an evaluation: the answers and labels of both models, as one observation per prompt. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from ratchet.contracts.data.datasets import Label
from ratchet.contracts.data.records import Tier
from ratchet.contracts.evaluation import ChatAnswer
from ratchet.contracts.ids import canonical
from ratchet.gates.evaluation.questions import Decoding, Question

UNSCORED = "unscored"
"""Failure of a prompt with an answer that no scorer could score."""


@dataclass(frozen=True)
class PromptOutcome:
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
    def of(cls, question: Question, old: ChatAnswer, new: ChatAnswer, old_label: Label, new_label: Label) -> PromptOutcome:
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
        failed = [failure_of(answer, label) is not None for answer, label in ((old, old_label), (new, new_label))]
        judged = alike and old_label.tier is new_label.tier is Tier.JUDGE
        longer = float(len(new.text or "") - len(old.text or "")) if judged else None
        return cls(question, failed[0], failed[1], alike, rewards, longer)

    @classmethod
    def over(cls, draws: Sequence[PromptOutcome]) -> PromptOutcome:
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


@dataclass(frozen=True)
class AskedPrompt:
    """A question with all answers and labels of both models, one per draw. Their rewards may be a judge's preferences."""

    question: Question
    answers: tuple[Sequence[ChatAnswer], Sequence[ChatAnswer]]
    """Of champion and candidate."""
    labels: tuple[Sequence[Label], Sequence[Label]]

    @cached_property
    def outcome(self) -> PromptOutcome:
        """What became of the prompt."""
        draws = zip(*self.answers, *self.labels, strict=True)
        return PromptOutcome.over(
            [PromptOutcome.of(self.question, old, new, old_label, new_label) for old, new, old_label, new_label in draws]
        )


def failure_of(answer: ChatAnswer, label: Label) -> str | None:
    """Return why an answer has no reward: its error with the server's reason, or that no scorer gave a score. None if it has one."""
    if answer.text is None:
        return answer.failure
    return UNSCORED if label.reward is None else None


def stored_rows(decoding: Decoding, one: AskedPrompt) -> Iterator[bytes]:
    """Yield the stored row of each draw of a question."""
    question = one.question
    for draw, (old, new, old_label, new_label) in enumerate(zip(*one.answers, *one.labels, strict=True)):
        yield canonical(
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
