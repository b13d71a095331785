"""The figures of a simulated search, computed from the raw scores of its trials independently of the product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ratchet.flows.core.folds.cycle import CycleView


@dataclass(frozen=True)
class Searched:
    """Figures of the chosen trial."""

    score: float
    """Mean over the development prompts."""
    gain: float
    """Mean difference to trial 1."""
    error: float
    """Standard error of the gain."""


def searched(cycle: CycleView) -> Searched:
    """Return the figures of a search whose trials all have scores. Raises ValueError if no trial was chosen."""
    scores = {one.trial.number: np.array(one.end.scores, dtype=float) for one in cycle.trials if one.end}
    if cycle.chosen is None:
        raise ValueError(f"{cycle.id} has chosen no trial")
    gains = scores[cycle.chosen.trial] - scores[1]
    return Searched(float(scores[cycle.chosen.trial].mean()), float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains))))
