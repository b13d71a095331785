"""Reads the figures of a run from its files, step by step, and converts the names of the release to those of Ratchet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

LAST, WHOLE = "timing/train", "since_last_step"
"""Prefix that the release logs last in each step, and the figure that the launcher adds to it: the seconds since the last step ended."""
NAMES = {
    "train": {
        "loss": "loss",
        "grad_norm": "grad_norm",
        "lr": "learning_rate",
        "kl_penalty": "kl",
        "approx_entropy": "entropy",
        "reward": "reward",
        "mean_gen_tokens_per_sample": "answer_tokens",
        "truncation_rate": "answers_cut",
        "token_mult_prob_error": "generation_mismatch",
        "dynamic_sampling_num_gen_batches": "batches_sampled",
        "accuracy": "pairs_in_order",
        "rewards_chosen_mean": "chosen_gain",
        "rewards_rejected_mean": "rejected_gain",
    },
    "timing/train": {
        "total_step_time": "step_seconds",
        "generation": "generation_seconds",
        "policy_training": "training_seconds",
        "policy_and_reference_logprobs": "logprobs_seconds",
        "prepare_for_generation/total": "weight_transfer_seconds",
        "checkpointing": "checkpoint_seconds",
        "valid_tokens_per_sec_per_gpu": "training_tokens_per_second_per_gpu",
        WHOLE: WHOLE,
    },
    "performance": {
        "tokens_per_sec_per_gpu": "tokens_per_second_per_gpu",
        "generation_tokens_per_sec_per_gpu": "generation_tokens_per_second_per_gpu",
        "policy_training_tokens_per_sec_per_gpu": "training_tokens_per_second_per_gpu",
        "train_flops_per_gpu": "training_tflops_per_gpu",
        "train_fp_utilization": "training_flops_utilization",
    },
    "validation": {"accuracy": "validation_reward", "avg_length": "validation_answer_tokens"},
}
"""Prefix -> metric name of the release -> figure name (v0.7.0: grpo_train, loss_functions, rollouts, print_performance_metrics).

The tokens of a throughput are those of prompts and answers. The time of generation includes the time of the scorers, `reward_seconds`."""
CHOSEN, REJECTED = "chosen_gain", "rejected_gain"
"""Figures of DPO for the gain of an answer's log-probability against the start model, in nats per answer, on average over the pairs."""


def of_preferences(figures: Mapping[str, float], beta: float) -> dict[str, float]:
    """Return the figures of a step, with the gains of DPO as the figures that the TRL trainer has. `beta` is that of the recipe.

    The seconds of a step of DPO include the log-probabilities of the reference.
    """
    found = {name: value for name, value in figures.items() if name not in (CHOSEN, REJECTED, WHOLE)}
    if CHOSEN in figures and REJECTED in figures:
        if WHOLE in figures and "step_seconds" in figures:
            found["reference_seconds"] = max(0.0, figures[WHOLE] - figures["step_seconds"])
            found["step_seconds"] = max(figures[WHOLE], figures["step_seconds"])
        found["chosen_reward"] = beta * figures[CHOSEN]
        found["margin"] = beta * (figures[CHOSEN] - figures[REJECTED])
        found["chosen_fall"] = -figures[CHOSEN]
    return found


class Lines:
    """Reads the new complete lines of a JSONL file to which another process appends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of the complete lines since the last call.

        An incomplete last line is read by a later call. Lines that are not a JSON object are skipped: after a kill, an incomplete line
        can be followed by the first line of the next writer.
        """
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        ready = data[: data.rfind(b"\n") + 1]
        self._at += len(ready)
        for line in ready.splitlines():
            with suppress(ValueError, RecursionError):
                if isinstance(found := json.loads(line), dict):
                    yield found


class Reader:
    """Combines the figures from the file of the logger and the journal of the reward environment by step."""

    def __init__(self, figures: Path, journal: Path) -> None:
        self._figures = Lines(figures)
        self._journal = Lines(journal)
        self._current: dict[int, dict[str, float]] = {}
        self._answers = self._abstained = 0
        self._reward_seconds = 0.0
        self._judge_tokens: int | None = None
        self._scores: list[dict[str, float | None]] = []
        self._validated: list[tuple[int, dict[str, float | None]]] = []

    def validations(self) -> list[tuple[int, dict[str, float | None]]]:
        """Return (step, prompt id -> score) of each validation that `steps` has read since the last call; step 0 is the start model."""
        found, self._validated = self._validated, []
        return found

    def steps(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield (step, figures) for every step that ended since the last call."""
        figures = list(self._figures.new())  # first, so that the journal contains all scores of each validation in it
        for line in self._journal.new():
            if "judge_tokens" in line:
                self._judge_tokens = (self._judge_tokens or 0) + line["judge_tokens"]
            if "answers" not in line:  # a batch that could not be scored
                continue
            if "validation" in line:
                self._collect(line["validation"])
            else:
                self._answers += line["answers"]
                self._abstained += line["abstained"]
                self._reward_seconds += line.get("seconds", 0.0)
        for line in figures:
            if line["prefix"] == "validation" and "accuracy" in line["figures"]:
                self._validated.append((int(line["step"]), self._scores.pop(0) if self._scores else {}))
            names, step = NAMES.get(line["prefix"], {}), int(line["step"])
            found = {names[name]: float(value) for name, value in line["figures"].items() if name in names}
            self._current.setdefault(step, {}).update(found)
            if line["prefix"] == LAST:
                yield step, self._take(step)

    def _collect(self, scores: dict[str, float | None]) -> None:
        """Add the scores of a batch to those of the validation that is running. A prompt that returns begins the next validation."""
        if not self._scores or self._scores[-1].keys() & scores.keys():
            self._scores.append({})
        self._scores[-1].update(scores)

    def _take(self, step: int) -> dict[str, float]:
        """Return the figures of a step that ended. The validation of the model before the first step is not part of it."""
        figures = self._current.pop(step, {})
        self._current = {later: known for later, known in self._current.items() if later > step}
        if self._answers:
            figures["abstained"] = self._abstained / self._answers
        if self._reward_seconds:
            figures["reward_seconds"] = self._reward_seconds
        if self._judge_tokens is not None:
            figures["judge_tokens"] = float(self._judge_tokens)
        self._answers = self._abstained = 0
        self._reward_seconds, self._judge_tokens = 0.0, None
        return figures
