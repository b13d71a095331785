"""The command line with which vLLM serves an adapter over its base model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ratchet.contracts.errors import Permanent
from ratchet.contracts.model import ADAPTER_CONFIG

BASE_NAME = "ratchet-base"
"""Model name of the base model in the server of an adapter. No route names it."""
RUNTIME_LOADING = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
"""Environment variable that opens vLLM's endpoints for loading and unloading. The process listens on loopback only."""
AT_A_TIME = 2
"""Number of different adapters in one batch: those of the candidate, and of a former one that finishes its answers."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that `--max-lora-rank` accepts in vLLM 0.32."""


def adapter_arguments(names: Sequence[str], adapter: Path) -> list[str]:
    """Return the arguments of `vllm serve` with which the adapter in a folder answers to all `names`.

    Raises Permanent if its rank is higher than vLLM allows, or if its configuration cannot be read.
    """
    return [
        "--enable-lora",
        "--max-lora-rank",
        str(max_rank(adapter)),
        "--lora-modules",
        *(f"{name}={adapter}" for name in names),
    ]


def sharing_arguments(rank: int) -> list[str]:
    """Return the arguments of `vllm serve` for a process that loads adapters of up to `rank`, one of RANKS, while it runs."""
    return ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(AT_A_TIME)]


def max_rank(adapter: Path) -> int:
    """Return the least value of `--max-lora-rank` that holds the adapter. Raises Permanent as `adapter_arguments`."""
    rank = adapter_rank(adapter)
    if rank > RANKS[-1]:
        path = adapter / ADAPTER_CONFIG
        raise Permanent(f'{path}: vLLM serves adapters up to rank {RANKS[-1]}, and this one has {rank}; set serving.adapters = "merged"')
    return allowed_rank(rank)


def allowed_rank(rank: int) -> int:
    """Return the least value of `--max-lora-rank` that is at least `rank`, which is at most the last of RANKS."""
    return next(allowed for allowed in RANKS if rank <= allowed)


def adapter_rank(adapter: Path) -> int:
    """Return the highest rank in the configuration of an adapter. Raises Permanent if it cannot be read."""
    path = adapter / ADAPTER_CONFIG
    try:
        config = json.loads(path.read_bytes())
        return max([int(config["r"]), *map(int, (config.get("rank_pattern") or {}).values())])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Permanent(f"{path} is no configuration of a LoRA adapter ({type(error).__name__})") from None
