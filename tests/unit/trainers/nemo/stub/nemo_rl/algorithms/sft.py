"""Stand-in for the training loop of SFT: real rows and files, weights that move by a rule instead of learning."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from nemo_rl.algorithms.grpo import _shift, save
from nemo_rl.utils import logger as _logger
from nemo_rl.utils import timer as _timer

Logger = _logger.Logger
TimeoutChecker = _timer.TimeoutChecker


def sft_train(config: dict[str, Any], rows: Any, process: Any) -> None:
    log = Logger(config["logger"])
    train(config, config["sft"], rows, process, log, TimeoutChecker, lambda _row: {})


def train(config: dict[str, Any], own: dict[str, Any], rows: Any, process: Any, log: Any, checker: Any, figures: Any) -> None:
    """Take the steps of an epoch in whole batches, without a validation."""
    if own["val_period"] or own["val_at_start"] or own["val_at_end"] or config["data"]["validation"]:
        raise AssertionError("there are no rows for a validation")
    deadline = checker(timeout=config["checkpointing"]["checkpoint_must_save_by"], fit_last_save_time=True)
    folder = Path(config["checkpointing"]["checkpoint_dir"])
    steps = [int(match[1]) for path in folder.glob("step_*") if (match := re.fullmatch(r"step_(\d+)", path.name))]
    done = max(steps, default=0)
    shift = _shift(folder / f"step_{done}") if done else 0.0
    batch = config["policy"]["train_global_batch_size"]
    for step in range(done + 1, min(own["max_num_steps"], own["max_num_epochs"] * (len(rows) // batch)) + 1):
        data = [process(rows[i], None, None, 8, i) for i in range((step - 1) * batch, step * batch)]
        shift += 1e-3
        stop = deadline.check_save()
        if stop or step % config["checkpointing"]["save_period"] == 0 or step == own["max_num_steps"]:
            save(config, folder, step, shift, cut=os.environ.get("STUB") == "cut" and step == own["max_num_steps"])
        log.log_metrics({"loss": 0.5, "grad_norm": 1.0, "lr": 1e-3, **figures(data)}, step, prefix="train")
        log.log_metrics({"total_step_time": 0.2, "valid_tokens_per_sec_per_gpu": 9.0}, step, prefix="timing/train")
        if stop:
            return
