"""Comparisons of runs on NeMo RL: figures with figures, published weights with those that the generation sampled from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tests.nemo.runs import Run

Figures = Mapping[int, Mapping[str, float]]
"""Step -> figures."""
COMPARED = ("loss", "kl", "reward", "grad_norm", "entropy", "answer_tokens")
SHOWN = ("reward", "kl", "generation_mismatch", "step_seconds")


def cosine(peak: float, steps: int) -> list[float]:
    """Return the learning rates of a cosine schedule without warm-up, one per step."""
    return [peak * (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]


def summary(figures: Figures) -> dict[str, Any]:
    """Return the first and the last value of the figures that a result shows."""
    first, last = min(figures), max(figures)
    ends = {name: [_round(figures[step].get(name, math.nan)) for step in (first, last)] for name in SHOWN}
    return {"steps": len(figures), **ends}


def close(found: Figures, expected: Figures, tolerance: float) -> dict[str, float]:
    """Assert that each step has equal rates, and the other figures within `tolerance`. Return the largest difference of each."""
    largest: dict[str, float] = {}
    for step, known in found.items():
        assert known["learning_rate"] == expected[step]["learning_rate"], step
        for name in COMPARED:
            largest[name] = max(largest.get(name, 0.0), abs(known[name] - expected[step][name]))
    assert max(largest.values()) <= tolerance, largest
    return {f"{name}_difference": _round(value) for name, value in largest.items()}


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
