"""The device, the model and the data of the GPU benchmark, and how time and memory are measured there."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any, NamedTuple

from dpo_speed import Size, shared

from ratchet.trainers.job.trl.micro_batches import PairSize


class Setting(NamedTuple):
    """The device, the model and the data of a run."""

    size: Size
    gpu: bool
    model: Path
    work: Path
    pairs: list[PairSize]

    def arguments(self, steps: int, name: str, **changes: Any) -> dict[str, Any]:
        """Return the training arguments for the plain script and for Ratchet's trainer."""
        there = {"use_cpu": not self.gpu, "bf16": self.gpu, "learning_rate": 1e-5}
        return shared(self.work / name, steps, **there | changes)


def now() -> float:
    """Return the time in seconds, after the GPU has finished all queued work."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def fresh() -> None:
    """Free unused memory and reset the peak memory statistics."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak() -> float:
    """Return the peak GPU memory since `fresh` in GiB; 0 on a CPU."""
    import torch

    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if torch.cuda.is_available() else 0.0
