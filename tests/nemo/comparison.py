"""Comparisons of runs on NeMo RL: figures with figures, published weights with those that the generation sampled from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tests.nemo.runs import Run

Figures = Mapping[int, Mapping[str, float]]
"""Step -> figures."""
COMPARED = ("loss", "kl", "reward", "grad_norm", "entropy", "answer_tokens")
TOLERANCE = 1e-4
"""Largest difference of a figure of two runs that compute the same, because sums in another order differ in the last digits."""
SHOWN = ("reward", "kl", "generation_mismatch", "step_seconds")


def cosine(peak: float, steps: int) -> list[float]:
    """Return the learning rates of a cosine schedule without warm-up, one per step."""
    return [peak * (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]


def summary(figures: Figures) -> dict[str, Any]:
    """Return the first and the last value of the figures that a result shows."""
    first, last = min(figures), max(figures)
    ends = {name: [_round(figures[step].get(name, math.nan)) for step in (first, last)] for name in SHOWN}
    return {"steps": len(figures), **ends}


def differences(found: Figures, expected: Figures) -> dict[str, float]:
    """Return figure -> largest difference over all steps. The learning rates must be equal."""
    rates, others = ({step: known["learning_rate"] for step, known in figures.items()} for figures in (found, expected))
    assert rates == others
    return {f"{name}_difference": _round(max(abs(found[step][name] - expected[step][name]) for step in found)) for name in COMPARED}


def assert_close(differences: Mapping[str, float]) -> None:
    """Assert that each difference is within the tolerance."""
    assert max(differences.values()) <= TOLERANCE, differences


def published_as_sampled(run: Run, step: int, incarnation: int = 1) -> bool:
    """Whether the published model has the weights of the step, which generation got for the validation after it."""
    import torch
    from safetensors.torch import load_file

    assert max(run.figures()) == step
    assert (run.wait().reason or "").startswith(f"{step} steps"), run.wait().reason
    sampled = torch.load(run.engine_weights(), weights_only=True)
    published = load_file(run.model(incarnation) / "model.safetensors")
    return bool(published) and all(torch.allclose(tensor, sampled[name].float(), atol=1e-6) for name, tensor in published.items())


def _round(value: float) -> float:
    return float(f"{value:.4g}")
