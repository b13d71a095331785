"""Figures of a training step: the library's names for them, and Ratchet's names in progress events and health rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STATE = "trainer_state.json"
"""File of a checkpoint with the state of the library's trainer."""
ABSTAINED = "abstained"
"""Metric name in the library for the share of a step's answers without a reward (online_rewards.py)."""
JUDGE_TOKENS = "judge_tokens"
"""Metric name in the library for the tokens that judges used in a step."""
WITHOUT_SIGNAL = "groups_without_signal"
"""Metric name in the library for the share of a step's groups whose answers have no different rewards. The library's own metric takes the
spread of the whole step with `scale_rewards = "batch"`, and counts a group without any reward as one with signal."""
FIGURES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "kl": "kl",
    "entropy": "entropy",
    "reward": "reward",
    "reward_std": "reward_std",
    WITHOUT_SIGNAL: "groups_without_signal",
    ABSTAINED: "abstained",
    JUDGE_TOKENS: "judge_tokens",
    "completions/mean_length": "answer_tokens",
    "rewards/chosen": "chosen_reward",
    "rewards/accuracies": "pairs_in_order",
    "rewards/margins": "margin",
    "logps/chosen": "chosen_logp",
    "logps/rejected": "rejected_logp",
    "rehearsal/rows": "rehearsed",
    "rehearsal/logps": "rehearsed_logp",
}
"""Metric name of the library -> figure name in progress events and health rules."""


def figures(logs: Mapping[str, Any], beta: float, seconds: float) -> dict[str, float]:
    """Return the figures of a step under their names in Ratchet.

    `seconds` is the duration of the step. The figure `chosen_fall` (nats per answer) is derived from the logged reward of the chosen
    answers, which is `beta` times their gain in log-probability.
    """
    numbers = {ours: float(logs[theirs]) for theirs, ours in FIGURES.items() if logs.get(theirs) is not None}
    if "chosen_reward" in numbers and beta:
        numbers["chosen_fall"] = -numbers["chosen_reward"] / beta
    return numbers | {"step_seconds": round(seconds, 6)}


def gpu_figures() -> dict[str, float]:
    """Return the most memory that torch has held on this process's GPU so far, in GiB; nothing on a CPU.

    It includes what torch keeps for reuse, because that memory is not available to other processes either.
    """
    import torch

    return {"gpu_peak_gib": round(torch.cuda.max_memory_reserved() / 2**30, 3)} if torch.cuda.is_available() else {}
