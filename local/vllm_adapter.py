"""The command line with which vLLM serves an adapter over its base model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ratchet.contracts.errors import Permanent
from ratchet.contracts.model import ADAPTER_CONFIG

BASE_NAME = "ratchet-base"
"""Model name of the base model in the server of an adapter. No route names it."""
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


def max_rank(adapter: Path) -> int:
    """Return the least value of `--max-lora-rank` that holds the adapter. Raises Permanent as `adapter_arguments`."""
    path = adapter / ADAPTER_CONFIG
    try:
        config = json.loads(path.read_bytes())
        rank = max([int(config["r"]), *map(int, (config.get("rank_pattern") or {}).values())])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Permanent(f"{path} is no configuration of a LoRA adapter ({type(error).__name__})") from None
    for allowed in RANKS:
        if rank <= allowed:
            return allowed
    raise Permanent(f'{path}: vLLM serves adapters up to rank {RANKS[-1]}, and this one has {rank}; set serving.adapters = "merged"')
