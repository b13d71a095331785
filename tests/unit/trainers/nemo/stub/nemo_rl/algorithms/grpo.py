"""Stand-in for the training loop: real files, real rewards from a real actor, weights that move by a rule instead of learning.

STUB in the environment does without Ray: `plain`; or misbehaves: `raise`, `nan`, `cut` (a last step whose weights are cut
short), `deaf` (no deadline class to replace). STUB_SECONDS is the time of a step. A run that begins before the step in
STUB_HOLD waits at the end of that step until it is asked to stop.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

from nemo_rl.utils import logger as _logger
from nemo_rl.utils import timer as _timer

Logger = _logger.Logger
if os.environ.get("STUB") != "deaf":
    TimeoutChecker = _timer.TimeoutChecker
WORDS = ("yes", "no", "up", "down")


def grpo_train(config: dict[str, Any], rows: Any, process: Any, tokenizer: Any, env: Any, held: Any = None) -> None:
    log = Logger(config["logger"])
    checker = globals().get("TimeoutChecker", _timer.TimeoutChecker)
    deadline = checker(timeout=config["checkpointing"]["checkpoint_must_save_by"], fit_last_save_time=True)
    folder = Path(config["checkpointing"]["checkpoint_dir"])
    steps = [int(match[1]) for path in folder.glob("step_*") if (match := re.fullmatch(r"step_(\d+)", path.name))]
    done = max(steps, default=0)
    shift = _shift(folder / f"step_{done}") if done else 0.0
    grpo = config["grpo"]
    size = grpo["num_prompts_per_step"]
    per_epoch = len(rows) // size
    if grpo["val_at_start"] and held is not None and (not done or os.environ.get("STUB") == "again"):
        validate(config, held, log, 0, shift)
    for step in range(done + 1, grpo["max_num_steps"] + 1):
        if (step - 1) // max(1, per_epoch) >= grpo["max_num_epochs"] or not per_epoch:
            return
        data = [process(rows[i % len(rows)], None, tokenizer, config["data"]["max_input_seq_length"], i) for i in range(step, step + size)]
        reward = _reward(env, data, random.Random(step), grpo["num_generations_per_prompt"], folder.parent.parent / "answers.jsonl")
        shift += 1e-3
        time.sleep(float(os.environ.get("STUB_SECONDS", "0")))
        if os.environ.get("STUB") == "raise" and step == 2:
            raise ValueError("Dynamic sampling has reached the maximum allowed number of batches (10).")
        wrong = float("nan") if os.environ.get("STUB") == "nan" and step == 2 else 1.0
        log.log_metrics({"mean_gen_tokens_per_sample": 1.0}, step, prefix="train")
        if held is not None and grpo["val_period"] and (step % grpo["val_period"] == 0 or step == grpo["max_num_steps"]):
            validate(config, held, log, step, shift)
        stop = deadline.check_save()
        while step == int(os.environ.get("STUB_HOLD", "0")) and not stop:
            time.sleep(0.02)
            stop = deadline.check_save()
        if stop or step % config["checkpointing"]["save_period"] == 0 or step == grpo["max_num_steps"]:
            save(config, folder, step, shift, cut=os.environ.get("STUB") == "cut" and step == grpo["max_num_steps"])
        log.log_metrics({"loss": 0.5, "grad_norm": wrong, "reward": reward, "kl_penalty": 0.01, "note": "text"}, step, prefix="train")
        log.log_metrics(
            {"generation": 0.1, "total_step_time": 122.87, "checkpointing": 21.5}
            if "slow" in os.environ.get("STUB", "")
            else {"generation": 0.1, "total_step_time": 0.2},
            step,
            prefix="timing/train",
            step_finished=True,
        )
        if stop:
            return


def validate(config: dict[str, Any], held: Any, log: Any, step: int, shift: float) -> None:
    """Score the prompts as the environment does, without Ray: they get better up to the step in STUB_BEST, and worse from then on."""
    best = int(os.environ.get("STUB_BEST", "1000"))
    share = 0.2 + 0.05 * (step if step <= best else max(0, 2 * best - step))
    scores = {row["prompt_id"]: float((place + 0.5) / len(held) < share) for place, row in enumerate(held)}
    with Path(config["env"]["ratchet"]["journal"]).open("a") as journal:
        half = len(scores) // 2
        for part in (list(scores.items())[:half], list(scores.items())[half:]):
            journal.write(json.dumps({"answers": len(part), "abstained": 0, "validation": dict(part)}) + "\n")
    log.log_metrics({"validation_time": 0.1}, step, prefix="timing/validation")
    log.log_metrics({"accuracy": sum(scores.values()) / len(scores), "avg_length": 1.0}, step, prefix="validation")


def _reward(env: Any, data: list[dict[str, Any]], chance: random.Random, generations: int, told: Path) -> float:
    """A step's mean reward; each answer's own goes to `told`, for whoever wants to look."""
    if env is None:
        return 0.5
    logs, known = [], []
    for datum in data:
        for _ in range(generations):
            logs.append(
                [{"role": "user", "content": datum["message_log"][0]["content"]}, {"role": "assistant", "content": chance.choice(WORDS)}]
            )
            known.append(datum["extra_env_info"])
    rewards = ray.get(env.step.remote(logs, known)).rewards
    with told.open("a") as file:
        for log, reward in zip(logs, rewards.tolist(), strict=True):
            file.write(json.dumps({"prompt": log[0]["content"], "answer": log[1]["content"], "reward": reward}) + "\n")
    return float(rewards.mean())


def _shift(step: Path) -> float:
    return float(json.loads((step / "training_info.json").read_text())["shift"])


def save(config: dict[str, Any], folder: Path, step: int, shift: float, cut: bool) -> None:
    from safetensors.numpy import load_file, save_file

    part = folder / f"tmp_step_{step}"
    weights = part / "policy" / "weights" / "model"
    for place in (weights / "consolidated", part / "policy" / "optimizer" / "optim", part / "policy" / "tokenizer"):
        place.mkdir(parents=True, exist_ok=True)
    (part / "training_info.json").write_text(json.dumps({"total_steps": step, "shift": shift}))
    (part / "config.yaml").write_text("stub: true\n")
    (part / "train_dataloader.pt").write_bytes(b"state")
    (part / "policy" / "tokenizer" / "tokenizer.json").write_text("{}")
    (part / "policy" / "optimizer" / "optim" / ".metadata").write_bytes(pickle.dumps(["__0_0.distcp", "__1_0.distcp"]))
    for rank in range(2):
        (part / "policy" / "optimizer" / "optim" / f"__{rank}_0.distcp").write_bytes(b"d")
    tensors = load_file(Path(config["policy"]["model_name"]) / "model.safetensors")
    moved = {name: tensor + np.float32(shift) for name, tensor in tensors.items()}
    save_file(moved, weights / "shard-00001-model-00001-of-00001.safetensors")
    out = weights / "consolidated" / "model-00001-of-00001.safetensors"
    save_file(moved, out)
    if cut:
        out.write_bytes(out.read_bytes()[:-10])
    part.rename(folder / f"step_{step}")
