"""Reward environment for NeMo RL: a Ray actor with the scorer set of the plan, which also labels traces and serves the gate.

The module is imported only in the container of the release. `step` is synchronous and gets a complete generation batch with all
answers to each prompt. An answer on which the scorers abstain gets a neutral reward (see `neutral`), not the reward 0. If the scorers
abstain on all answers, they are called again, and then the run fails. Otherwise, it would continue without any training signal.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import ray
import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from ratchet.contracts.conversation import stored_answer
from ratchet.contracts.errors import RatchetError, Retryable
from ratchet.contracts.jobs.training import TrainingPlan
from ratchet.contracts.schema import parse
from ratchet.rewards.judge.job_verdicts import JobVerdicts
from ratchet.rewards.scorer_set import ScorerSet, planned_scorer_set
from ratchet.runtime.chat_template import CallFormat, read_answer
from ratchet.trainers.job.job_folder import judge_tokens
from ratchet.trainers.job.nemo import abstentions
from ratchet.trainers.job.nemo.figures import Lines
from ratchet.trainers.job.online_rewards import PAUSES, comparable


class Bench:
    """Applies the scorer set to message logs. Independent of Ray."""

    def __init__(
        self,
        scorer_set: ScorerSet,
        journal: Path,
        pauses: tuple[float, ...] = PAUSES,
        validation: frozenset[str] = frozenset(),
        verdicts: JobVerdicts | None = None,
    ) -> None:
        """`validation` are the ids of the prompts whose scores are noted one by one, and `verdicts` those of the judges in the set."""
        self.scorer_set = scorer_set
        self.journal = journal
        self.pauses = pauses
        self.validation = validation
        self.verdicts = verdicts or JobVerdicts()

    def rewards(self, logs: list[list[dict[str, Any]]], metadata: list[dict[str, Any]]) -> list[float]:
        """Return one reward per answer.

        `logs` are the message logs and `metadata` the data of `dataset.process`, one entry per answer. Raises Retryable if no answer
        could be scored in any try.
        """
        samples = [
            {"prompt": known["prompt"], "answer": _answer(str(log[-1]["content"]), known.get("calls")), "reference": known["reference"]}
            for log, known in zip(logs, metadata, strict=True)
        ]
        groups = [str(log[0]["content"]) for log in logs]  # the release groups by the tokenized prompt
        began = time.monotonic()
        for pause in (*self.pauses, None):
            self.verdicts.forget()
            try:
                scores = comparable(groups, self.scorer_set.label_unseen(samples))
            except RatchetError:  # the run ends, and its next incarnation must know what was used
                self._append({"judge_tokens": self.verdicts.reported()})
                raise
            try:
                found = abstentions.rewards(groups, scores)
            except Retryable:
                if pause is None:
                    raise
                time.sleep(pause)
            else:
                self._note(scores, [str(known.get("prompt_id")) for known in metadata], time.monotonic() - began)
                return found
        raise AssertionError("the last try returns or raises")

    def _note(self, scores: Sequence[float | None], prompts: Sequence[str], seconds: float) -> None:
        """Append one line per batch to the journal. It is a single write, because the trainer process reads the file concurrently.

        `seconds` is the time in which the scorers scored the batch, with pauses.

        The line of a validation has the mean score of each prompt; None if an answer to it has no score.
        """
        note: dict[str, Any] = {"answers": len(scores), "abstained": sum(score is None for score in scores), "seconds": seconds}
        if self.scorer_set.judges:
            note["judge_tokens"] = self.verdicts.reported()
        if self.validation.issuperset(prompts):
            of_prompt: dict[str, list[float | None]] = {}
            for prompt, score in zip(prompts, scores, strict=True):
                of_prompt.setdefault(prompt, []).append(score)
            note["validation"] = {prompt: _mean(found) for prompt, found in of_prompt.items()}
        self._append(note)

    def _append(self, note: dict[str, Any]) -> None:
        line = json.dumps(note).encode() + b"\n"
        descriptor = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _mean(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return fmean(known) if len(known) == len(scores) else None


def spent(run: Path, journal: Path) -> int:
    """Return the tokens that judges used before this actor started: in earlier incarnations, and in this one before Ray restarted it."""
    noted = sum(int(line.get("judge_tokens", 0)) for line in Lines(journal).new())
    return judge_tokens(run, int(journal.parents[1].name.removeprefix("i"))) + noted


def _answer(text: str, calls: dict[str, str] | None) -> str:
    """Return a generated answer as scorers get it. `calls` is how answers name tool calls; None without tools."""
    return stored_answer(read_answer(text, CallFormat(**calls) if calls else None))


@ray.remote(max_restarts=-1, max_task_retries=-1)  # type: ignore[untyped-decorator, unused-ignore]
class PanelEnvironment(EnvironmentInterface):
    """Ray actor with episodes of a single turn: it returns the reward of each answer and ends the episode."""

    def __init__(self, config: dict[str, Any]) -> None:
        plan = parse(TrainingPlan, Path(config["plan"]).read_bytes())
        named = Path(config["validation"]).read_text(encoding="utf-8").splitlines() if config.get("validation") else []
        validation = frozenset(str(json.loads(line)["prompt_id"]) for line in named)
        journal = Path(config["journal"])
        verdicts = JobVerdicts(spent(Path(config["plan"]).parent, journal))
        self.bench = Bench(planned_scorer_set(plan, verdicts), journal, validation=validation, verdicts=verdicts)

    def step(self, message_log_batch: list[list[dict[str, Any]]], metadata: list[dict[str, Any]]) -> EnvironmentReturn:
        """Return the rewards of a batch as float32 of shape [batch], and end all episodes.

        The observations are empty, so that they add no tokens.
        """
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
        """Return the batch unchanged, without metrics. Figures are read from the log and the journal."""
        return batch, {}

    def shutdown(self) -> None:
        """Do nothing: there are no resources to release."""
