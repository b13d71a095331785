"""Stand-in for the registry of data processors."""

from __future__ import annotations

from typing import Any

PROCESSOR_REGISTRY: dict[str, Any] = {}


def register_processor(processor_name: str, processor_function: Any) -> None:
    if processor_name in PROCESSOR_REGISTRY:
        raise ValueError(f"{processor_name} is registered")
    PROCESSOR_REGISTRY[processor_name] = processor_function
