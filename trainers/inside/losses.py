"""The losses of a recipe over whole steps: what each pair adds, so that micro-batches of any size sum to the step's mean.

The library averages inside a micro-batch and then over micro-batches, which is the step's mean only where all are alike.
Here a pair's part is divided by the step's pairs, and an SFT token's by the step's tokens, those of demonstrations among them.
This module knows no model.
Sources: DPO arXiv:2305.18290; robust arXiv:2403.00409; hinge (SLiC) arXiv:2305.10425; IPO arXiv:2310.12036, per token;
APO arXiv:2408.06266.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid

from trainers.recipes import Loss


class Scores(NamedTuple):
    """A micro-batch, one entry per pair."""

    chosen: torch.Tensor
    """Log-probability of the chosen answer, nats."""
    rejected: torch.Tensor
    reference_chosen: torch.Tensor
    """The start model's; zeros where no loss asks for it."""
    reference_rejected: torch.Tensor
    lengths: torch.Tensor
    """[pairs, 2]: tokens of the answers."""
    shown: torch.Tensor
    """Log-probability of each demonstration's answer; as many as there are, whatever the pairs."""

    @property
    def gains(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-ratios to the start model: chosen, rejected."""
        return self.chosen - self.reference_chosen, self.rejected - self.reference_rejected


class Knobs(NamedTuple):
    """The recipe's numbers."""

    beta: float
    smoothing: float


def _sigmoid(s: Scores, k: Knobs) -> torch.Tensor:
    chosen, rejected = s.gains
    return -logsigmoid(k.beta * (chosen - rejected))


def _robust(s: Scores, k: Knobs) -> torch.Tensor:
    chosen, rejected = s.gains
    margin = k.beta * (chosen - rejected)
    right, wrong = -logsigmoid(margin), -logsigmoid(-margin)
    return ((1 - k.smoothing) * right - k.smoothing * wrong) / (1 - 2 * k.smoothing)


def _hinge(s: Scores, k: Knobs) -> torch.Tensor:
    chosen, rejected = s.gains
    return (1 - k.beta * (chosen - rejected)).clamp(min=0)


def _ipo(s: Scores, k: Knobs) -> torch.Tensor:
    tokens = s.lengths.clamp(min=1)
    chosen, rejected = s.gains
    return (chosen / tokens[:, 0] - rejected / tokens[:, 1] - 1 / (2 * k.beta)) ** 2


def _apo_zero(s: Scores, k: Knobs) -> torch.Tensor:
    chosen, rejected = s.gains
    return 1 - torch.sigmoid(k.beta * chosen) + torch.sigmoid(k.beta * rejected)


def _apo_down(s: Scores, k: Knobs) -> torch.Tensor:
    chosen, rejected = s.gains
    return torch.sigmoid(k.beta * chosen) + 1 - torch.sigmoid(k.beta * (chosen - rejected))


PAIRWISE: dict[Loss, Callable[[Scores, Knobs], torch.Tensor]] = {
    "sigmoid": _sigmoid,
    "robust": _robust,
    "hinge": _hinge,
    "ipo": _ipo,
    "apo_zero": _apo_zero,
    "apo_down": _apo_down,
}


def needs_reference(terms: Mapping[Loss, float]) -> bool:
    """Whether any loss compares with the start model; SFT alone does not."""
    return any(name in PAIRWISE and weight > 0 for name, weight in terms.items())


def part(terms: Mapping[Loss, float], scores: Scores, knobs: Knobs, pairs: int, tokens: int) -> torch.Tensor:
    """What a micro-batch adds to the loss of a step of so many pairs. `tokens`: scored ones of the step's chosen and shown answers."""
    total = scores.chosen.new_zeros(())
    for name, weight in terms.items():
        if name == "sft":
            total = total - weight * (scores.chosen.sum() + scores.shown.sum()) / max(tokens, 1)
        elif weight > 0:
            total = total + weight * PAIRWISE[name](scores, knobs).sum() / pairs
    return total
