"""Turns off the usage statistics of all libraries. This is the only place that names their switches.

Each library has its own switch, and accepts only some values for it. Most libraries read the switch when they are imported, so a process
must have the variables before its first import. Uses only the standard library, so that every process can load it first.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Final

NO_TELEMETRY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "DO_NOT_TRACK": "1",  # Prefect's client and vLLM; MLflow ignores this value
        "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub, and through it transformers, datasets and TRL
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
)
"""Environment variables with which the pinned versions of Prefect, MLflow, Hugging Face's libraries, Ray and vLLM send no statistics."""


def disable_telemetry(environment: MutableMapping[str, str]) -> None:
    """Set the variables of NO_TELEMETRY in `environment`, in place. They replace other values.

    Call it with `os.environ` before one of these libraries is imported. Child processes inherit the variables.
    """
    environment.update(NO_TELEMETRY)
