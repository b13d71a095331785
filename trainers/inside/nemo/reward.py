"""The release's reward environment: a Ray actor around the plan's panel, the very one that labels traces and gates.

Loaded only where the release is. `step` is synchronous and sees a whole generation batch, with all answers to a prompt;
an answer that the panel abstains on is made neutral (see `neutral`), never scored 0. Where everything abstains, the
scorers are asked again, and then the run fails: training on nothing would look like training.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import ray
import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from contracts.errors import Retryable
from contracts.training import TrainingPlan
from rewards.panel import Panel, planned_panel
from trainers.inside.nemo import neutral
from trainers.inside.scored import PAUSES, comparable


class Bench:
    """The panel at work on message logs, without Ray."""

    def __init__(self, panel: Panel, journal: Path, pauses: tuple[float, ...] = PAUSES) -> None:
        self.panel = panel
        self.journal = journal
        self.pauses = pauses

    def rewards(self, logs: list[list[dict[str, Any]]], metadata: list[dict[str, Any]]) -> list[float]:
        """One reward per answer; Retryable where nothing could be scored in any try."""
        samples = [
            {"prompt": known["prompt"], "answer": str(log[-1]["content"]), "reference": known["reference"]}
            for log, known in zip(logs, metadata, strict=True)
        ]
        groups = [str(log[0]["content"]) for log in logs]  # the release groups by what it tokenised
        for pause in (*self.pauses, None):
            scores = comparable(groups, self.panel.label_unseen(samples))
            try:
                found = neutral.rewards(groups, scores)
            except Retryable:
                if pause is None:
                    raise
                time.sleep(pause)
            else:
                self._note(len(scores), sum(score is None for score in scores))
                return found
        raise AssertionError("the last try returns or raises")

    def _note(self, answers: int, abstained: int) -> None:
        """One append per batch, whole: the watching process reads along."""
        line = json.dumps({"answers": answers, "abstained": abstained}).encode() + b"\n"
        descriptor = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


@ray.remote(max_restarts=-1, max_task_retries=-1)  # type: ignore[untyped-decorator, unused-ignore]
class PanelEnvironment(EnvironmentInterface):
    """One turn: an answer comes in, its reward goes out, the episode is over."""

    def __init__(self, config: dict[str, Any]) -> None:
        plan = TrainingPlan.model_validate_json(Path(config["plan"]).read_bytes())
        self.bench = Bench(planned_panel(plan), Path(config["journal"]))

    def step(self, message_log_batch: list[list[dict[str, Any]]], metadata: list[dict[str, Any]]) -> EnvironmentReturn:
        """Rewards of a batch; the empty observation adds no token."""
        rewards = self.bench.rewards(message_log_batch, metadata)
        size = len(rewards)
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": ""} for _ in range(size)],
            metadata=metadata,
            next_stop_strings=[None] * size,
            rewards=torch.tensor(rewards, dtype=torch.float32),
            terminateds=torch.ones(size, dtype=torch.bool),
            answers=[str(log[-1]["content"]) for log in message_log_batch],
        )

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Nothing to add: figures go by the log and the journal."""
        return batch, {}

    def shutdown(self) -> None:
        """Nothing to close."""
