"""Stand-in for the stock entry point."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path
from typing import Any

import ray
import yaml
from nemo_rl.algorithms.grpo import grpo_train
from nemo_rl.environments.utils import create_env


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    config = load(Path(parser.parse_args().config))
    env = None
    if os.environ.get("STUB") == "gang":
        ray.init(address="auto", log_to_driver=False)
        spread()
        env = create_env("ratchet", config["env"]["ratchet"])
    if os.environ.get("STUB") in ("", None):  # misbehaviour is not about rewards, and Ray takes seconds to start
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        env = create_env("ratchet", config["env"]["ratchet"])
    settings = {**config["data"]["default"], **config["data"]["train"]}
    module, _, name = settings["dataset_name"].rpartition(".")
    data: Any = getattr(importlib.import_module(module), name)(**settings)
    data.set_task_spec(settings)
    data.set_processor()
    tokenizer = AutoTokenizer.from_pretrained(config["policy"]["model_name"])
    named = config["data"].get("validation")
    held = getattr(importlib.import_module(module), name)(**{**settings, **named}).dataset if named else None
    grpo_train(config, data.dataset, data.processor, tokenizer, env, held)


def spread() -> None:
    """Work that needs every node of the cluster: a task with all GPUs of one, as often as there should be nodes."""
    nodes, gpus = int(os.environ["RATCHET_NODES"]), int(os.environ["RATCHET_GPUS"])

    @ray.remote(num_gpus=gpus, num_cpus=0)
    class Holder:
        def where(self) -> str:
            return str(ray.get_runtime_context().get_node_id())

    holders = [Holder.remote() for _ in range(nodes)]
    places = set(ray.get([holder.where.remote() for holder in holders], timeout=60))
    print(f"work on {len(places)} of {nodes} nodes", flush=True)
    if len(places) != nodes:
        raise RuntimeError(f"work on {len(places)} of {nodes} nodes")


def offline() -> tuple[dict[str, Any], Any]:
    """Return the configuration of a run of SFT or DPO, and its data, which has a task but no processor."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    config = load(Path(parser.parse_args().config))
    settings = config["data"]["train"]
    module, _, name = settings["dataset_name"].rpartition(".")
    data: Any = getattr(importlib.import_module(module), name)(**settings)
    data.set_task_spec(settings)
    return config, data


def load(path: Path) -> dict[str, Any]:
    own: dict[str, Any] = yaml.safe_load(path.read_text())
    base = own.pop("defaults", None)
    return over(load(Path(base)), own) if base else own


def over(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    if above.get("_override_"):
        return above
    return {**below, **{key: over(below.get(key), value) for key, value in above.items()}}


if __name__ == "__main__":
    main()
