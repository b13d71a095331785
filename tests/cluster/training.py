"""Training jobs on the test cluster: their specs, checkpoints, ends and weights."""

from __future__ import annotations

import time
from typing import Any

from ratchet.contracts.ids import checkpoint_name
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Attempt, Checkpoint, JobSpec, JobState, JobStatus, Method, ResumePoint
from ratchet.contracts.schema import parse
from ratchet.local.executor import LocalExecutor
from tests.cluster.bench import Bench
from tests.unit.trainers.conftest import TRAINERS, Workshop

STEPS = 400
"""An interruption comes before step 200 of 400, also where steps are fast; a slow machine needs 0.3 s for each."""

UNDISTURBED: dict[str, str] = {}
"""The weights of undisturbed runs, by plan."""


def spec_of(workshop: Workshop, **changes: Any) -> JobSpec:
    """Return a DPO job for two nodes, with changes to its recipe."""
    plan = workshop.plan(Method.DPO, **{"steps": STEPS, "save_every": 40, **changes})
    return TRAINERS[Method.DPO].job(plan, Attempt(number=1, timeout=600, nodes=2))


def story(bench: Bench, spec: JobSpec) -> str:
    """Return the pods, events and logs that explain a failure."""
    run = bench.executor.folders.run(spec)
    logs = [f"{path}: {path.read_text()[-1500:]}" for path in sorted(run.glob("i*/*.log"))]
    asked = ("get", "pods,events", "-n", bench.namespace, "-o", "wide")
    pods = [
        bench.rig.kubectl("logs", "-n", bench.namespace, pod["metadata"]["name"], check=False)[-1500:]
        for pod in bench.rig.pods(bench.namespace)
    ]
    return "\n".join([bench.rig.kubectl(*asked, check=False), *pods, *logs, *bench.reports])


def accept_and_pin(bench: Bench, spec: JobSpec, incarnation: int) -> ResumePoint:
    """Pin the newest checkpoint of the incarnation, as the engine does for an accepted step, and return it."""
    event = [e for e in bench.executor.events(spec.name) if e.kind == "checkpoint" and e.incarnation == incarnation][-1]
    point = ResumePoint(attempt=1, incarnation=incarnation, step=event.step, **event.data)
    bench.executor.pin(spec, point)
    return point


def finished(bench: Bench, spec: JobSpec, seconds: float = 240) -> JobStatus:
    """Wait for the end of the job and return its status; a timeout reports logs and events."""
    try:
        return bench.until(spec, lambda status: status.state is JobState.ENDED, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{story(bench, spec)}") from None


def weights(workshop: Workshop, spec: JobSpec, incarnation: int) -> str:
    """Return the digest of the weights that the incarnation published."""
    bound = workshop.artifacts.resolve(checkpoint_name(spec.plan, spec.attempt, incarnation))
    assert bound is not None
    checkpoint = parse(Checkpoint, workshop.artifacts.get(bound))
    return checkpoint.model.weights


def undisturbed(workshop: Workshop) -> str:
    """Return the digest of the weights of an uninterrupted run with two processes on this machine.

    The result is the same for every workshop, because start model and data are the same.
    """
    twin = TRAINERS[Method.DPO].job(workshop.plan(Method.DPO, steps=STEPS, save_every=40), Attempt(number=2, timeout=600))
    if twin.plan not in UNDISTURBED:
        alone = LocalExecutor(workshop.folder / "alone", workshop.artifacts.root)
        twin = twin.model_copy(update={"environment": {**twin.environment, "RATCHET_PROCESSES": "2"}})
        alone.submit(twin, 1)
        while (end := alone.observe(twin.name)).outcome is None:
            alone.reconcile(twin.name)
            time.sleep(0.2)
        assert end.outcome is Outcome.DONE, end
        UNDISTURBED[twin.plan] = weights(workshop, twin, 1)
    return UNDISTURBED[twin.plan]
