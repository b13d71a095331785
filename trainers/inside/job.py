"""A job's place: its plan, its folders, its diary and its result, as wrapper and trainer both see them. No torch.

<plan folder>/aN/               run folder = working directory: plan.json, model/, *.parquet, resume.json
<plan folder>/aN/iM/            this incarnation: events.jsonl, step_K/, result.json (trainer), ended.json (wrapper)
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.errors import Permanent
from contracts.exits import Outcome
from contracts.files import write_atomic
from contracts.ids import canonical
from contracts.training import Adjustment, Proposal, ResumePoint, TrainingPlan
from trainers.inside import events
from trainers.inside.events import Events
from trainers.recipes import KINDS, R, adjusted, complete


@dataclass(frozen=True)
class Result:
    """How the trainer process ended, in its own words."""

    outcome: Outcome
    reason: str
    step: int
    metrics: dict[str, float]
    proposal: Proposal | None = None
    """What the next attempt should change, where it failed for a reason that a rule of the health watch knows."""


@dataclass(frozen=True)
class Job:
    """One incarnation of one attempt."""

    run: Path
    plan: TrainingPlan
    attempt: int
    incarnation: int
    gpus: int
    """Of this node."""
    events: Events
    adjustment: Adjustment = field(default_factory=Adjustment)
    """What the watch over the attempt before asked for."""

    @property
    def folder(self) -> Path:
        """This incarnation's own folder."""
        return self.run / f"i{self.incarnation}"

    def recipe(self, kind: type[R]) -> R:
        """The plan's recipe, complete already, checked again, as this attempt runs it."""
        return adjusted(complete(kind, self.plan.recipe), self.adjustment)

    @property
    def resume(self) -> ResumePoint | None:
        """The only step that this incarnation may resume from: the one that was accepted and pinned."""
        path = self.run / "resume.json"
        return ResumePoint.model_validate_json(path.read_bytes()) if path.exists() else None

    @property
    def began(self) -> float:
        """When the attempt's first incarnation wrote its first event, seconds since the epoch: time between incarnations counts too. The
        present time where no diary can be read."""
        diaries = [events.read(path) for path in self._diaries()]
        return next((float(diary[0]["at"]) for diary in diaries if diary), time.time())

    @property
    def worked(self) -> float:
        """Seconds that the incarnations before this one spent at their steps, from the first that they told of to their last word:
        what queueing and loading took is no time in which an interruption could have cost steps."""
        spent = 0.0
        for path in self._diaries():
            if path.parent == self.folder:
                continue
            told = events.read(path)
            steps = [float(event["at"]) for event in told if event["kind"] == "progress"]
            spent += max(0.0, max(float(event["at"]) for event in told) - steps[0]) if steps else 0.0
        return spent

    def _diaries(self) -> list[Path]:
        """Of all incarnations up to this one, in their order."""
        found = [path for path in self.run.glob("i[0-9]*/events.jsonl") if int(path.parent.name[1:]) <= self.incarnation]
        return sorted(found, key=lambda path: int(path.parent.name[1:]))

    def finish(self, result: Result) -> None:
        """The trainer's last word; the wrapper derives everything from it."""
        value: dict[str, Any] = {"outcome": result.outcome.value, "reason": result.reason, "step": result.step, "metrics": result.metrics}
        if result.proposal is not None:
            value["proposal"] = result.proposal.model_dump(mode="json")
        write_atomic(self.folder / "result.json", canonical(value))

    def result(self) -> Result | None:
        """What the trainer said, if it did."""
        return _result(self.folder / "result.json")

    def results_elsewhere(self) -> list[Result]:
        """What trainers of other nodes said, where the nodes share no file system."""
        found = (_result(path) for path in sorted(self.folder.glob("result-*.json")))
        return [result for result in found if result is not None]


def _result(path: Path) -> Result | None:
    if not path.exists():
        return None
    value: dict[str, Any] = json.loads(path.read_bytes())
    proposal = Proposal.model_validate(value["proposal"]) if "proposal" in value else None
    return Result(Outcome(value["outcome"]), value["reason"], value["step"], value["metrics"], proposal)


def here() -> Job:
    """The job that this process belongs to: from the working directory and RATCHET_* variables. Permanent where they are not a job's."""
    run = Path.cwd()
    try:
        plan = TrainingPlan.model_validate_json((run / "plan.json").read_bytes())
        attempt, incarnation = int(os.environ["RATCHET_ATTEMPT"]), int(os.environ["RATCHET_INCARNATION"])
    except (OSError, KeyError, ValueError) as error:
        raise Permanent(f"{run} is no run folder of a job ({error}); jobs are started by an executor") from error
    (run / f"i{incarnation}").mkdir(exist_ok=True)
    diary = Events(run / f"i{incarnation}" / "events.jsonl", incarnation, complete(KINDS[plan.method], plan.recipe).steps)
    adjustment = Adjustment.model_validate_json(os.environ.get("RATCHET_ADJUSTMENT", "{}"))
    return Job(run, plan, attempt, incarnation, int(os.environ.get("RATCHET_GPUS", "0")), diary, adjustment)
