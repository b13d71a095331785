"""The context of a job for the supervisor and the trainer: its plan, folders, event log and result.

The module does not load torch. Folder layout:

<plan folder>/aN/               run folder = working directory: plan.json, model/, *.parquet, resume.json
<plan folder>/aN/iM/            this incarnation: events.jsonl, step_K/, result.json (trainer), ended.json (supervisor)
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.errors import Permanent
from contracts.exit_codes import Outcome
from contracts.ids import canonical
from contracts.training import Adjustment, Proposal, ResumePoint, TrainingPlan
from runtime.artifacts import write_atomic
from trainers.job import events
from trainers.job.events import Events
from trainers.recipes import KINDS, R, adjusted, complete


@dataclass(frozen=True)
class JobResult:
    """Result of the trainer process."""

    outcome: Outcome
    reason: str
    """Explanation of the outcome as text."""
    step: int
    """Last step."""
    metrics: dict[str, float]
    """Figures of the last step."""
    proposal: Proposal | None = None
    """Proposed change for the next attempt after a failure that a health rule covers."""


@dataclass(frozen=True)
class Job:
    """One incarnation of one attempt."""

    run: Path
    """Run folder of the attempt."""
    plan: TrainingPlan
    attempt: int
    incarnation: int
    gpus: int
    """Number of GPUs of this node."""
    events: Events
    """Event log of this incarnation."""
    adjustment: Adjustment = field(default_factory=Adjustment)
    """Adjustment that the health rules of the previous attempt proposed."""

    @property
    def folder(self) -> Path:
        """Folder of this incarnation within the run folder."""
        return self.run / f"i{self.incarnation}"

    def recipe(self, kind: type[R]) -> R:
        """Return the recipe of the plan with the adjustment of this attempt. Raises ConfigError if it is not valid."""
        return adjusted(complete(kind, self.plan.recipe), self.adjustment)

    @property
    def resume(self) -> ResumePoint | None:
        """The accepted and pinned step, the only one that this incarnation may resume from. None: start from the beginning."""
        path = self.run / "resume.json"
        return ResumePoint.model_validate_json(path.read_bytes()) if path.exists() else None

    @property
    def began(self) -> float:
        """Time of the first event of the attempt, over all its incarnations, in seconds since the epoch.

        So the timeout of the attempt includes the time between incarnations. If no event log can be read, this is the current time.
        """
        diaries = [events.read(path) for path in self._diaries()]
        return next((float(diary[0]["at"]) for diary in diaries if diary), time.time())

    @property
    def worked(self) -> float:
        """Seconds that earlier incarnations spent on training, from their first reported step to their last event.

        It excludes the time for queueing and loading, because an interruption during that time loses no steps.
        """
        spent = 0.0
        for path in self._diaries():
            if path.parent == self.folder:
                continue
            told = events.read(path)
            steps = [float(event["at"]) for event in told if event["kind"] == "progress"]
            spent += max(0.0, max(float(event["at"]) for event in told) - steps[0]) if steps else 0.0
        return spent

    def _diaries(self) -> list[Path]:
        """Event logs of all incarnations up to this one, in order."""
        found = [path for path in self.run.glob("i[0-9]*/events.jsonl") if int(path.parent.name[1:]) <= self.incarnation]
        return sorted(found, key=lambda path: int(path.parent.name[1:]))

    def finish(self, result: JobResult) -> None:
        """Write the result file of the trainer, from which the supervisor derives the outcome."""
        value: dict[str, Any] = {"outcome": result.outcome.value, "reason": result.reason, "step": result.step, "metrics": result.metrics}
        if result.proposal is not None:
            value["proposal"] = result.proposal.model_dump(mode="json")
        write_atomic(self.folder / "result.json", canonical(value))

    def result(self) -> JobResult | None:
        """Return the result of the trainer, or None if it wrote none."""
        return _result(self.folder / "result.json")

    def results_elsewhere(self) -> list[JobResult]:
        """Return the results of trainers on other nodes, if the nodes share no file system."""
        found = (_result(path) for path in sorted(self.folder.glob("result-*.json")))
        return [result for result in found if result is not None]


def _result(path: Path) -> JobResult | None:
    if not path.exists():
        return None
    value: dict[str, Any] = json.loads(path.read_bytes())
    proposal = Proposal.model_validate(value["proposal"]) if "proposal" in value else None
    return JobResult(Outcome(value["outcome"]), value["reason"], value["step"], value["metrics"], proposal)


def here() -> Job:
    """Return the job of this process, from the working directory and the RATCHET_* variables. Creates the incarnation's folder.

    Raises Permanent if the working directory is not a run folder or a variable is missing.
    """
    run = Path.cwd()
    try:
        plan = TrainingPlan.model_validate_json((run / "plan.json").read_bytes())
        attempt, incarnation = int(os.environ["RATCHET_ATTEMPT"]), int(os.environ["RATCHET_INCARNATION"])
    except (OSError, KeyError, ValueError) as error:
        raise Permanent(f"{run} is not the run folder of a job ({error}); start jobs through an executor") from error
    (run / f"i{incarnation}").mkdir(exist_ok=True)
    diary = Events(run / f"i{incarnation}" / "events.jsonl", incarnation, complete(KINDS[plan.method], plan.recipe).steps)
    adjustment = Adjustment.model_validate_json(os.environ.get("RATCHET_ADJUSTMENT", "{}"))
    return Job(run, plan, attempt, incarnation, int(os.environ.get("RATCHET_GPUS", "0")), diary, adjustment)
