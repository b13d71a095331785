"""Stand-in for the training loop of DPO."""

from __future__ import annotations

from typing import Any

from nemo_rl.algorithms.sft import train
from nemo_rl.utils import logger as _logger
from nemo_rl.utils import timer as _timer

Logger = _logger.Logger
TimeoutChecker = _timer.TimeoutChecker
GAINS = {"accuracy": 0.75, "rewards_chosen_mean": 0.5, "rewards_rejected_mean": -1.5}


def dpo_train(config: dict[str, Any], rows: Any, process: Any) -> None:
    log = Logger(config["logger"])
    train(config, config["dpo"], rows, process, log, TimeoutChecker, lambda _data: GAINS)
