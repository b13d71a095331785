"""The advantages of the release by a transcription of its arithmetic, and cases with unscored answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ratchet.trainers.job.nemo import abstentions

CASES: list[tuple[list[int], list[float | None]]] = [
    ([0, 0, 0, 0], [1.0, 0.0, None, 1.0]),
    ([0, 0, 0, 0, 1, 1, 1, 1], [1.0, None, None, None, 0.0, 0.25, None, 0.75]),
    ([0, 1, 0, 1, 0, 1], [0.1, None, 0.7, None, None, None]),
    ([0, 0, 0, 0], [0.3, 0.3, None, 0.3]),
    ([0] * 8, [1.0, 0.0, 1.0, 1.0, None, None, 0.0, 1.0]),
    ([3, 3, 3, 5, 5, 5], [1 / 3, 2 / 3, None, None, 0.9, 0.1]),
]


def padded(groups: Sequence[int], scores: Sequence[float | None]) -> list[float]:
    """Return rewards in which the unscored answers have their neutral value."""
    return abstentions.rewards(groups, scores)


def advantages(groups: Sequence[int], rewards: Sequence[float], leave_one_out: bool, normalise: bool) -> list[float]:
    """Return the advantages by the release's arithmetic, written independently of it.

    It subtracts the baseline and divides by the unbiased standard deviation if that is not zero.
    """
    found = np.zeros(len(rewards))
    for group in set(groups):
        at = [i for i, own in enumerate(groups) if own == group]
        values = np.array([rewards[i] for i in at], dtype=np.float64)
        n = len(values) - leave_one_out
        for position, i in enumerate(at):
            others = np.delete(values, position) if leave_one_out else values
            if len(values) <= 1 or n < 1:
                continue
            spread = math.sqrt(max(0.0, (np.mean(others**2) - np.mean(others) ** 2) * n / (n - 1))) if n > 1 else 0.0
            found[i] = values[position] - others.mean()
            if normalise and spread > 1e-7:
                found[i] /= spread + 1e-6
    return [float(value) for value in found]


def logs(*answers: str) -> tuple[list[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Return the message logs of these answers, and their metadata."""
    known = {"prompt_id": "p", "prompt": [{"role": "user", "content": "one"}], "reference": "yes"}
    return [[{"role": "user", "content": "one"}, {"role": "assistant", "content": text}] for text in answers], [known] * len(answers)
