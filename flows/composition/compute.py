"""Opens the engine of the work that only computes."""

from __future__ import annotations

from functools import lru_cache

from ratchet.contracts.loop import ComputeSettings
from ratchet.contracts.ports import Compute
from ratchet.runtime.compute.inline import InlineCompute
from ratchet.runtime.compute.processes import ProcessCompute


@lru_cache(maxsize=16)
def open_compute(settings: ComputeSettings) -> Compute:
    """Return the engine that the settings name. Lines with equal settings share its workers. Nothing is started.

    Raises ConfigError if the extra of the engine is not installed.
    """
    if settings.engine == "processes":
        return ProcessCompute(settings.workers)
    if settings.engine == "ray":
        from ratchet.runtime.compute.ray_cluster import RayCompute

        assert settings.address is not None
        return RayCompute(settings.address, settings.workers)
    return InlineCompute()
