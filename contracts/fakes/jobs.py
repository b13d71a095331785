"""Fakes of the ports `Trainer` and `Executor`: scripted jobs without processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from contracts.data import Facts
from contracts.exit_codes import Outcome
from contracts.fakes.state import FakeWorld, fake_model
from contracts.ids import canonical, checkpoint_name, digest, job_name
from contracts.training import Attempt, Checkpoint, JobEvent, JobSpec, JobState, JobStatus, Proposal, ResumePoint, TrainingPlan


class FakeTrainer:
    """`Trainer` whose jobs run no program."""

    def __init__(self, method: str) -> None:
        self.method = method

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Return a recipe with 10 steps and the given overrides."""
        return {"steps": 10, **changes}

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """Return a job spec whose command does nothing."""
        return JobSpec(
            name=job_name(plan.id, attempt.number, digest([self.method, attempt.model_dump(mode="json")])),
            plan=plan.id,
            attempt=attempt.number,
            command=("true",),
            environment={},
            inputs={},
            plan_json=canonical(plan).decode(),
            grace_seconds=1,
        )


class FakeExecutor:
    """`Executor` of scripted jobs. Each observation advances a job by one step.

    `script` maps (attempt, incarnation) to the outcome of the incarnation. A successful incarnation ends after `steps` steps, any other
    one step earlier. With `restarts`, preempted and lost incarnations restart without a new `submit`.
    """

    propose: Callable[[int, int], Proposal | None] = staticmethod(lambda _attempt, _incarnation: None)
    """Maps (attempt, incarnation) of a failed incarnation to its proposal for the next attempt."""

    def __init__(self, world: FakeWorld, script: Callable[[int, int], Outcome], steps: int = 3, restarts: bool = False) -> None:
        self.restarts = restarts  # like a cluster, which sometimes skips an incarnation number
        self.world = world
        self.script = script
        self.steps = steps
        self.specs: dict[str, JobSpec] = {}
        self.started: dict[str, int] = {}
        self.step: dict[str, int] = {}
        self.pins: dict[str, ResumePoint] = {}
        self.log: dict[str, list[JobEvent]] = {}
        self.cancelled: set[str] = set()
        self.over: set[str] = set()

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Start the incarnation at the pinned step, or at step 0."""
        if self.started.get(spec.name, 0) >= incarnation:
            return
        self.world.faults(f"before submit {spec.name}/{incarnation}")
        self.world.effects[f"submit/{spec.name}/{incarnation}"] += 1
        self.specs[spec.name] = spec
        self.over.discard(spec.name)
        self.started[spec.name] = incarnation
        resume = self.pins.get(spec.name)
        self.step[spec.name] = resume.step if resume else 0
        self.world.faults(f"after submit {spec.name}/{incarnation}")

    def observe(self, name: str) -> JobStatus:
        """Advance the job by one step, or end it with its scripted outcome."""
        if name not in self.started:
            return JobStatus(state=JobState.ABSENT)
        incarnation, spec = self.started[name], self.specs[name]
        outcome = Outcome.LOST if name in self.cancelled else self.script(spec.attempt, incarnation)
        stop = self.steps if outcome is Outcome.DONE else max(1, self.steps - 1)
        if self.step[name] < stop:
            self.step[name] += 1
            self._save(spec, incarnation)
            return JobStatus(state=JobState.RUNNING, incarnation=incarnation, step=self.step[name], total=self.steps)
        if self.restarts and outcome in (Outcome.PREEMPTED, Outcome.LOST) and name not in self.cancelled:
            return self._restart(spec, incarnation)
        self.over.add(name)
        if outcome is Outcome.DONE:
            self._publish(spec, incarnation)
        asks = self.propose(spec.attempt, incarnation) if outcome is Outcome.FAILED else None
        said = f"scripted {outcome}"
        return JobStatus(state=JobState.ENDED, incarnation=incarnation, step=self.step[name], outcome=outcome, reason=said, proposal=asks)

    def _restart(self, spec: JobSpec, incarnation: int) -> JobStatus:
        resume = self.pins.get(spec.name)
        self.started[spec.name] = incarnation + 1 + incarnation % 2
        self.step[spec.name] = resume.step if resume else 0
        return JobStatus(state=JobState.PENDING, incarnation=self.started[spec.name], total=self.steps)

    def _save(self, spec: JobSpec, incarnation: int) -> None:
        step = self.step[spec.name]
        data = {"path": f"a{spec.attempt}/i{incarnation}/step_{step}", "manifest": digest([spec.name, incarnation, step])}
        event = JobEvent(at=0.0, incarnation=incarnation, kind="checkpoint", step=step, data=data)
        self.log.setdefault(spec.name, []).append(event)

    def _publish(self, spec: JobSpec, incarnation: int) -> None:
        model = fake_model(f"trained {spec.plan}")
        checkpoint = Checkpoint(
            plan=spec.plan,
            attempt=spec.attempt,
            incarnation=incarnation,
            step=self.steps,
            files=model.files,
            model=model,
            metrics={"loss": 0.1},
        )
        self.world.once(checkpoint_name(spec.plan, spec.attempt, incarnation), lambda: canonical(checkpoint))

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        """Return the recorded checkpoint events from index `since`."""
        return self.log.get(name, [])[since:]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Store the resume point for the next incarnation."""
        self.world.faults(f"before pin {spec.name}/{resume.step}")
        self.pins[spec.name] = resume

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        """Return the stored resume point, or None."""
        return self.pins.get(spec.name)

    def cancel(self, name: str) -> None:
        """Mark the job as cancelled; its outcome becomes `LOST`."""
        self.cancelled.add(name)

    def live(self) -> list[str]:
        """Return the started jobs that are neither cancelled nor ended."""
        return [name for name in self.started if name not in self.cancelled and name not in self.over]
