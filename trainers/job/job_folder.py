"""The context of a job for the supervisor and the trainer: its plan, folders, event log and result.

The working directory is the run folder of the attempt. The job writes to the folder of its incarnation below it.
`runtime/jobs/job_protocol.py` defines the names. The module does not load torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Adjustment, JobEvent, Proposal, ResumePoint, TrainingPlan
from ratchet.contracts.moment import Moment, moment_in, seconds_between
from ratchet.contracts.schema import parse, stamped
from ratchet.contracts.wording import first_problem
from ratchet.runtime.jobs.full_disk import write_result
from ratchet.runtime.jobs.job_protocol import (
    ADJUSTMENT,
    ATTEMPT,
    GPUS,
    INCARNATION,
    TRAINER,
    IncarnationFile,
    RunFile,
    incarnation_folder,
    result_file,
)
from ratchet.runtime.jobs.run_folder import incarnations, read_events
from ratchet.runtime.moments import this_moment
from ratchet.trainers.job.events import Events
from ratchet.trainers.recipes.completion import KINDS, complete
from ratchet.trainers.recipes.derived import adjusted, typical_rate
from ratchet.trainers.recipes.recipe import R, Recipe


def _moment_of(event: JobEvent) -> Moment:
    """Return the moment of an event; that of `started` has the boot of its machine."""
    return moment_in({**event.data, "at": event.at}) or Moment(event.at)


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
    row_weights: Mapping[int, float | None] = field(default_factory=dict)
    """Number of a demonstration -> its weight, where this run uses another one than that of the training set. None leaves it out."""

    @property
    def folder(self) -> Path:
        """Folder of this incarnation within the run folder."""
        return self.run / incarnation_folder(self.incarnation)

    def recipe(self, kind: type[R]) -> R:
        """Return the recipe of the plan with a learning rate and the adjustment of this attempt. Raises ConfigError if it is not valid."""
        recipe = complete(kind, self.plan.recipe)
        if recipe.learning_rate == "auto":
            rate = float(f"{typical_rate(recipe, _width(self.run / RunFile.MODEL)):.2g}")
            recipe = recipe.model_copy(update={"learning_rate": rate})
        return adjusted(recipe, self.adjustment)

    @property
    def resume(self) -> ResumePoint | None:
        """The accepted and pinned step, the only one that this incarnation may resume from. None: start from the beginning."""
        path = self.run / RunFile.RESUME
        return parse(ResumePoint, path.read_bytes()) if path.exists() else None

    @property
    def elapsed(self) -> float:
        """Seconds since the first event of the attempt, over all its incarnations. If no event log can be read, 0.

        So the timeout of the attempt includes the time between incarnations. The wall clock matters only between incarnations on different
        machines, or before and after a reboot.
        """
        now = this_moment()
        firsts = [_moment_of(event) for folder in self._incarnations() for event in list(read_events(folder))[:1]]
        if not firsts:
            return 0.0
        ours = next((first for first in firsts if first.boot and first.boot == now.boot), now)
        return seconds_between(firsts[0], ours) + seconds_between(ours, now)

    @property
    def worked(self) -> float:
        """Seconds that earlier incarnations spent on training, from their first reported step to their last event.

        It excludes the time for queueing and loading, because an interruption during that time loses no steps.
        """
        spent = 0.0
        for folder in self._incarnations():
            if folder == self.folder:
                continue
            logged = list(read_events(folder))
            steps = [event.at for event in logged if event.kind in ("progress", "fold")]
            spent += max(0.0, max(event.at for event in logged) - steps[0]) if steps else 0.0
        return spent

    @property
    def measured(self) -> list[dict[str, float]]:
        """The figures of all steps that earlier incarnations reported, in order."""
        earlier = [folder for folder in self._incarnations() if folder != self.folder]
        events = [event for folder in earlier for event in read_events(folder) if event.kind == "progress"]
        return [{name: value for name, value in event.data.items() if isinstance(value, int | float)} for event in events]

    @property
    def judge_tokens(self) -> int:
        """Tokens that judges used in the steps that earlier incarnations reported."""
        return judge_tokens(self.run, self.incarnation)

    def _incarnations(self) -> list[Path]:
        """Folders of all incarnations up to this one, in order."""
        return [folder for _, folder in incarnations(self.run, self.incarnation)]

    def finish(self, result: JobResult) -> None:
        """Write the result file of the trainer, from which the supervisor derives the outcome."""
        value: dict[str, Any] = {"outcome": result.outcome.value, "reason": result.reason, "step": result.step, "metrics": result.metrics}
        if result.proposal is not None:
            value["proposal"] = result.proposal.model_dump(mode="json")
        write_result(self.folder / IncarnationFile.RESULT, stamped(value))

    def result(self) -> JobResult | None:
        """Return the result of the trainer, or None if it wrote none."""
        return _result(self.folder / IncarnationFile.RESULT)

    def results_elsewhere(self) -> list[JobResult]:
        """Return the results of trainers on other nodes, if the nodes share no file system."""
        found = (_result(path) for path in sorted(self.folder.glob(result_file("*"))))
        return [result for result in found if result is not None]


def _result(path: Path) -> JobResult | None:
    if not path.exists():
        return None
    value: dict[str, Any] = json.loads(path.read_bytes())
    proposal = Proposal.model_validate(value["proposal"]) if "proposal" in value else None
    return JobResult(Outcome(value["outcome"]), value["reason"], value["step"], value["metrics"], proposal)


def _width(model: Path) -> int:
    """Return the size of the hidden states of a model. Raises ConfigError if its configuration does not name it."""
    config = json.loads((model / "config.json").read_bytes())
    for names in (config, config.get("text_config") or {}):
        for name in ("hidden_size", "d_model", "n_embd"):
            if isinstance(names.get(name), int):
                return int(names[name])
    raise ConfigError('the start model\'s config.json has no hidden_size, from which learning_rate = "auto" follows; set learning_rate')


def judge_tokens(run: Path, incarnation: int) -> int:
    """Return the tokens that judges used in the reported steps of the incarnations before this one."""
    events = [event for _, folder in incarnations(run, incarnation - 1) for event in read_events(folder) if event.kind == "progress"]
    return round(sum(float(event.data.get("judge_tokens", 0.0)) for event in events))


def supervised(plan: TrainingPlan) -> Recipe:
    """Return the settings of a plan that the supervisor reads: the number of steps and the health rules.

    The recipe of a trainer of another package may have the keys `steps` and `health`. Raises ConfigError for an invalid recipe.
    """
    if TRAINER.find(os.environ):
        return complete(Recipe, {key: plan.recipe[key] for key in ("steps", "health") if key in plan.recipe})
    return complete(KINDS[plan.method], plan.recipe)


def here() -> Job:
    """Return the job of this process, from the working directory and the environment. Creates the incarnation's folder.

    Raises Permanent if the working directory is not a run folder, and ConfigError if a variable is missing or not valid.
    """
    run = Path.cwd()
    try:
        plan = parse(TrainingPlan, (run / RunFile.PLAN).read_bytes())
    except (OSError, ValueError) as error:
        raise Permanent(f"{run} is not the run folder of a job ({first_problem(error)}); start jobs through an executor") from error
    incarnation = INCARNATION.get(os.environ)
    folder = run / incarnation_folder(incarnation)
    folder.mkdir(exist_ok=True)
    events = Events(folder / IncarnationFile.EVENTS, incarnation, supervised(plan).last_step)
    return Job(run, plan, ATTEMPT.get(os.environ), incarnation, GPUS.get(os.environ), events, ADJUSTMENT.get(os.environ))
