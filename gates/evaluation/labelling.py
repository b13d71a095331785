"""Labels the answers of a model with rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.contracts.data.datasets import Label
from ratchet.contracts.evaluation import ChatAnswer
from ratchet.contracts.ports import Rewards

Asked = tuple[tuple[dict[str, Any], ...], str | None]
"""Messages of a question, and its reference."""


def label_answers(rewards: Rewards, asked: Sequence[Asked], answers: Sequence[ChatAnswer]) -> list[Label]:
    """Return a label for each answer, in the order of the questions `asked`. A missing answer has no reward."""
    known = [i for i, answer in enumerate(answers) if answer.text is not None]
    samples = [{"prompt": list(asked[i][0]), "answer": answers[i].text, "reference": asked[i][1]} for i in known]
    labels = [Label(None, None, {}, 0)] * len(answers)
    for i, label in zip(known, rewards.label_unseen(samples), strict=True):
        labels[i] = label
    # Retry once if a scorer abstained: it may have been unavailable temporarily, and the prompt would not be comparable.
    again = [(i, sample) for i, sample in zip(known, samples, strict=True) if None in labels[i].parts.values()]
    for (i, _), label in zip(again, rewards.label_unseen([sample for _, sample in again]), strict=True):
        labels[i] = min(labels[i], label, key=lambda one: list(one.parts.values()).count(None))
    return labels
