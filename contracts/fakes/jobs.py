"""Fakes of the ports `Trainer` and `Executor`: scripted jobs without processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratchet.contracts.data.datasets import Facts
from ratchet.contracts.fakes.state import FakeWorld, fake_model
from ratchet.contracts.ids import Digest, canonical, checkpoint_name, digest, job_name
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Attempt, Checkpoint, JobEvent, JobSpec, JobState, JobStatus, Proposal, ResumePoint, TrainingPlan
from ratchet.contracts.schema import stamped


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
    """`Executor` of scripted jobs. Each `reconcile` advances a job by one step, or stores the result of a job that has ended.

    `script` maps (attempt, incarnation) to the outcome of the incarnation. A successful incarnation ends after `steps` steps, any other
    one step earlier. With `restarts`, preempted and lost incarnations restart without a new `submit`.
    """

    propose: Callable[[int, int], Proposal | None] = staticmethod(lambda _attempt, _incarnation: None)
    """Maps (attempt, incarnation) of a failed incarnation to its proposal for the next attempt."""

    scores: Callable[[Digest], Sequence[float]] | None = None
    """Maps a plan to the development scores of the model that its job publishes. None: no job measures its model."""

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
        self.results: dict[str, JobStatus] = {}

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Start the incarnation at the pinned step, or at step 0."""
        if self.started.get(spec.name, 0) >= incarnation:
            return
        self.world.faults(f"before submit {spec.name}/{incarnation}")
        self.world.effects[f"submit/{spec.name}/{incarnation}"] += 1
        self.specs[spec.name] = spec
        self.results.pop(spec.name, None)
        self._begin(spec.name, incarnation)
        self.world.faults(f"after submit {spec.name}/{incarnation}")

    def _begin(self, name: str, incarnation: int) -> None:
        resume = self.pins.get(name)
        self.started[name], self.step[name] = incarnation, resume.step if resume else 0

    def observe(self, name: str) -> JobStatus:
        """Return the stored result, or the newest step. An ended job without a stored result has no outcome."""
        if name not in self.started or name in self.results:
            return self.results.get(name, JobStatus(state=JobState.ABSENT))
        state = JobState.ENDED if self._ends(name) and not self._restarts(name) else JobState.RUNNING
        return JobStatus(state=state, incarnation=self.started[name], step=self.step[name], total=self.steps)

    def _outcome(self, name: str) -> Outcome:
        return Outcome.LOST if name in self.cancelled else self.script(self.specs[name].attempt, self.started[name])

    def _ends(self, name: str) -> bool:
        last = self.steps if self._outcome(name) is Outcome.DONE else max(1, self.steps - 1)
        return name in self.cancelled or self.step[name] >= last

    def _restarts(self, name: str) -> bool:
        return self.restarts and self._outcome(name) in (Outcome.PREEMPTED, Outcome.LOST) and name not in self.cancelled

    def reconcile(self, name: str) -> None:
        """Advance the job by one step. If it has ended, restart it if that is due, or publish its model and store its result."""
        if name not in self.started or name in self.results:
            return
        incarnation, spec = self.started[name], self.specs[name]
        self.world.faults(f"before reconcile {name}/{incarnation}")
        if not self._ends(name):
            self.step[name] += 1
            self._save(spec, incarnation)
        elif self._restarts(name):
            self._begin(name, incarnation + 1 + incarnation % 2)
        else:
            outcome = self._outcome(name)
            if outcome is Outcome.DONE:
                self._publish(spec, incarnation)
                self.world.faults(f"before the result of {name}/{incarnation}")
            self.world.effects[f"end/{name}/{incarnation}"] += 1
            self.results[name] = JobStatus(
                state=JobState.ENDED,
                incarnation=incarnation,
                step=self.step[name],
                outcome=outcome,
                reason=f"scripted {outcome}",
                proposal=self.propose(spec.attempt, incarnation) if outcome is Outcome.FAILED else None,
            )
        self.world.faults(f"after reconcile {name}/{incarnation}")

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
            metrics={"loss": 0.1} | ({"published_step": float(self.steps)} if self.scores else {}),
        )
        if self.scores is not None:
            data = {"scores": list(self.scores(spec.plan))}
            event = JobEvent(at=0.0, incarnation=incarnation, kind="measured", step=self.steps, data=data)
            self.log.setdefault(spec.name, []).append(event)
        self.world.once(checkpoint_name(spec.plan, spec.attempt, incarnation), lambda: stamped(checkpoint))

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

    def cancel(self, name: str) -> bool:
        """Mark a started job as cancelled; the next `reconcile` ends it as `LOST`."""
        if name not in self.started or name in self.results or name in self.cancelled:
            return False
        self.cancelled.add(name)
        return True

    def live(self) -> list[str]:
        """Return the started jobs whose result is not stored."""
        return [name for name in self.started if name not in self.results]
