"""Stand-in for the registry of environments."""

from __future__ import annotations

import importlib
from typing import Any

from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY

ENV_REGISTRY: dict[str, dict[str, str]] = {}


def register_env(env_name: str, actor_class_fqn: str) -> None:
    if env_name in ENV_REGISTRY:
        raise ValueError(f"{env_name} is registered")
    ENV_REGISTRY[env_name] = {"actor_class_fqn": actor_class_fqn}


def create_env(env_name: str, env_config: dict[str, Any]) -> Any:
    name = ENV_REGISTRY[env_name]["actor_class_fqn"]
    ACTOR_ENVIRONMENT_REGISTRY[name]  # the release looks its Python up here
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute).remote(env_config)
