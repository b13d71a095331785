"""Losses of a DPO recipe, normalised over the whole step, so that micro-batches of any size sum to the mean of the step.

The library averages within a micro-batch and then over micro-batches. The result is the mean of the step only if all micro-batches
have the same size. Here, the loss of a pair is divided by the number of pairs in the step. The loss of an SFT token is divided by
the number of tokens in the step, which includes those of demonstrations. The module does not depend on a model.
Sources: DPO arXiv:2305.18290; robust arXiv:2403.00409; hinge (SLiC) arXiv:2305.10425; IPO arXiv:2310.12036, per token;
APO arXiv:2408.06266.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid

from ratchet.trainers.recipes.dpo import Loss


class Scores(NamedTuple):
    """Log-probabilities of a micro-batch in nats, float32. Unless stated otherwise, the shape is [pairs]."""

    chosen: torch.Tensor
    """Log-probability of the chosen answer."""
    rejected: torch.Tensor
    """Log-probability of the rejected answer."""
    reference_chosen: torch.Tensor
    """Log-probability of the chosen answer under the start model; zeros if no loss needs it."""
    reference_rejected: torch.Tensor
    """Log-probability of the rejected answer under the start model; zeros if no loss needs it."""
    lengths: torch.Tensor
    """[pairs, 2], int64: number of tokens of the chosen and the rejected answer."""
    shown: torch.Tensor
    """[demonstrations]: log-probability of the answer of each demonstration."""

    @property
    def gains(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-ratios to the start model in nats, each of shape [pairs]: chosen, rejected."""
        return self.chosen - self.reference_chosen, self.rejected - self.reference_rejected


class Knobs(NamedTuple):
    """Loss parameters from the recipe."""

    beta: float
    """Strength of the penalty for the distance from the start model."""
    smoothing: float
    """Assumed share of pairs in the wrong order, for `robust`."""


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
"""Loss per pair, of shape [pairs], for each loss term except `sft`."""


def needs_reference(terms: Mapping[Loss, float]) -> bool:
    """Return whether any loss term needs the start model. The `sft` term does not."""
    return any(name in PAIRWISE and weight > 0 for name, weight in terms.items())


def part(terms: Mapping[Loss, float], scores: Scores, knobs: Knobs, pairs: int, tokens: int) -> torch.Tensor:
    """Return the contribution of a micro-batch to the loss of its step, as a float32 scalar tensor.

    `terms` maps each loss to its weight. `pairs` is the number of pairs in the step. `tokens` is the number of scored tokens in the
    chosen answers and demonstrations of the step.
    """
    total = scores.chosen.new_zeros(())
    for name, weight in terms.items():
        if name == "sft":
            total = total - weight * (scores.chosen.sum() + scores.shown.sum()) / max(tokens, 1)
        elif weight > 0:
            total = total + weight * PAIRWISE[name](scores, knobs).sum() / pairs
    return total


STEP_SUMS = 7
"""Number of values that `step_sums` returns."""


def step_sums(scores: Scores) -> torch.Tensor:
    """Return sums over a micro-batch as a float32 tensor of shape [STEP_SUMS]. Sums of micro-batches add up to those of the step.

    Over pairs: log-probabilities and gains (each chosen, rejected), number of correctly ordered pairs, and margins. Over
    demonstrations: log-probabilities.
    """
    chosen, rejected = (gain.detach() for gain in scores.gains)
    both = (scores.chosen.detach(), scores.rejected.detach(), chosen, rejected, (chosen > rejected).float(), chosen - rejected)
    return torch.stack([values.sum() for values in (*both, scores.shown.detach())])


def step_figures(terms: Mapping[Loss, float], sums: Sequence[float], beta: float, pairs: int, shown: int) -> dict[str, float]:
    """Return the figures of a step by the names that the library uses in its log.

    `sums` are the `step_sums` of the whole step. `pairs` and `shown` are the numbers of pairs and demonstrations in it.
    """
    chosen, rejected, chosen_gain, rejected_gain, in_order, margin = (value / pairs for value in sums[:-1])
    figures = {"logps/chosen": chosen, "logps/rejected": rejected}
    if shown:
        figures["rehearsal/logps"] = sums[-1] / shown
    if needs_reference(terms):
        figures |= {
            "rewards/chosen": beta * chosen_gain,
            "rewards/rejected": beta * rejected_gain,
            "rewards/accuracies": in_order,
            "rewards/margins": beta * margin,
        }
    return figures
