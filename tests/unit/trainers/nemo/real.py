"""Program for a virtual environment with a release's light dependencies: `python real.py TASK ROOT ARGUMENT` prints JSON.

The task `configs` validates rendered files with the release's own loader and schema. `advantages` runs its arithmetic. `environment`
registers the product's environment with the release. It steps the environment under a local Ray, on rows that the release's data path has
processed.
"""

from __future__ import annotations

import importlib
import json
import sys
import typing
from pathlib import Path
from typing import Any

if sys.version_info < (3, 12):  # the release's schema needs the newer TypedDict; its own images have Python 3.13
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc]


def configs(_root: Path, argument: str) -> Any:
    """Validate all rendered files and return them with resolved values."""
    from nemo_rl.utils.config import load_config, register_omegaconf_resolvers
    from omegaconf import OmegaConf

    register_omegaconf_resolvers()
    found = {}
    for path in sorted(Path(argument).glob("*.yaml")):
        value: Any = OmegaConf.to_container(load_config(str(path)), resolve=True)
        method = next(name for name in ("dpo", "grpo", "sft") if name in value)
        importlib.import_module(f"nemo_rl.algorithms.{method}").MasterConfig(**value)
        found[path.stem] = value
    return found


def advantages(_root: Path, argument: str) -> Any:
    """Compute the advantages of all cases in the file."""
    import torch
    from nemo_rl.algorithms.advantage_estimator import GRPOAdvantageEstimator

    try:
        from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig
    except ImportError:
        AdvEstimatorConfig = dict  # type: ignore[misc,assignment]  # v0.7.0 takes a mapping
    found = []
    for case in json.loads(Path(argument).read_text()):
        settings = {"use_leave_one_out_baseline": case["leave_one_out"], "normalize_rewards": case["normalise"]}
        estimator = GRPOAdvantageEstimator(AdvEstimatorConfig(**settings), None)
        groups, rewards = torch.tensor(case["groups"]).unsqueeze(-1), torch.tensor(case["rewards"], dtype=torch.float32)
        found.append(estimator.compute_advantage(groups, rewards, torch.ones(len(rewards), 1)).squeeze(-1).tolist())
    return found


def environment(root: Path, argument: str) -> Any:
    """Run the product's environment, data and hooks in the release and return the results."""
    import ray
    from nemo_rl.algorithms import grpo
    from nemo_rl.data.collate_fn import rl_collate_fn
    from nemo_rl.data.utils import setup_response_data
    from nemo_rl.experience.rollouts import calculate_rewards
    from transformers import AutoTokenizer

    from ratchet.trainers.job.nemo import launcher

    folder = Path(argument)
    launcher.register_product()
    hooks = launcher.hook(folder)
    config = configs(root, str(folder))["config"]
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    tokenizer = AutoTokenizer.from_pretrained(config["policy"]["model_name"])
    train, validation, envs, _ = setup_response_data(tokenizer, config["data"], config["env"])
    data = [train[i] for i in range(4)]
    batch = rl_collate_fn(data)
    for number, log in enumerate(batch["message_log"]):
        log.append({"role": "assistant", "content": "yes" if number % 2 else "no"})
    result = calculate_rewards(batch, envs)
    logger = grpo.Logger(config["logger"])
    logger.log_metrics({"loss": 1.5, "table": object()}, 1, prefix="train")
    deadline = grpo.TimeoutChecker(timeout="00:01:00:00", fit_last_save_time=True)
    before = deadline.check_save()
    (folder / launcher.STOP).touch()
    return {
        "hooks": hooks,
        "rows": [len(train), len(validation)],
        "turns": [len(log) for log in batch["message_log"]],
        "multipliers": batch["loss_multiplier"].tolist(),
        "prompts": [log[0]["content"] for log in batch["message_log"]],
        "rewards": result.rewards.tolist(),
        "done": result.terminateds.tolist(),
        "asked": [before, deadline.check_save(), deadline.check_save()],
    }


if __name__ == "__main__":
    task, root, argument = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    answer = {"configs": configs, "advantages": advantages, "environment": environment}[task](root, argument)
    print("ANSWER " + json.dumps(answer))
