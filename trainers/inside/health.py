"""Rules that stop a run which is going wrong, over the figures of each step; pure, and without torch.

A stopped run is a failed attempt with a reason. What to change belongs to the next attempt, never to the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainers.recipes import Health


class Watch:
    """Judges step after step. NaN stops at once; the other limits must be exceeded `patience` steps in a row."""

    def __init__(self, limits: Health, beta: float) -> None:
        self.limits = limits
        self.beta = beta
        """The recipe's beta: DPO logs beta * log-ratio as the chosen answers' reward."""
        self._strikes: dict[str, int] = {}

    def judge(self, step: int, figures: Mapping[str, Any]) -> str | None:
        """Why the run must stop after this step, in words, or None."""
        for name in ("loss", "grad_norm"):
            value = figures.get(name)
            if value is not None and not math.isfinite(float(value)):
                return f"{name} is {value} at step {step}: lower the learning rate, or look for broken rows"
        for what, value, limit in self._limited(figures):
            if self._strike(what, value is not None and value > limit):
                return f"{what} {value:.3g} exceeded {limit:g} for {self.limits.patience} steps in a row, last at step {step}"
        return None

    def _limited(self, figures: Mapping[str, Any]) -> list[tuple[str, float | None, float]]:
        chosen = figures.get("rewards/chosen")
        drop = -float(chosen) / self.beta if chosen is not None and self.beta else None
        return [
            ("gradient norm", figures.get("grad_norm"), self.limits.max_grad_norm_seen),
            ("KL to the start model", figures.get("kl"), self.limits.max_kl),
            ("fall of the chosen answers' log-probability", drop, self.limits.max_chosen_drop),
        ]

    def _strike(self, what: str, beyond: bool) -> bool:
        self._strikes[what] = self._strikes.get(what, 0) + 1 if beyond else 0
        return self._strikes[what] >= self.limits.patience
