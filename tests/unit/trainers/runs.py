"""Ends of jobs and their checkpoints, for tests of real runs."""

from __future__ import annotations

import json
from typing import Any

from ratchet.contracts.ids import Digest, checkpoint_name
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Checkpoint, JobEvent, JobSpec, ResumePoint
from ratchet.contracts.schema import parse
from ratchet.runtime.artifacts import FolderArtifacts


def asked(*words: str) -> str:
    """Return the prompt of a question with these words, as tables store it."""
    return json.dumps([{"role": "user", "content": " ".join(words)}])


def checkpoint_of(artifacts: FolderArtifacts, spec: JobSpec) -> Checkpoint:
    """Return the newest published checkpoint of the attempt."""
    names = [checkpoint_name(spec.plan, spec.attempt, incarnation) for incarnation in range(9, 0, -1)]
    bound = next(found for name in names if (found := artifacts.resolve(name)))
    return parse(Checkpoint, artifacts.get(bound))


def weights(artifacts: FolderArtifacts, checkpoint: Checkpoint) -> Digest:
    """Return the digest of the checkpoint's weights."""
    files: dict[str, Digest] = json.loads(artifacts.get(checkpoint.files))["files"]
    return files["model.safetensors"]


def kinds(events: list[JobEvent]) -> list[str]:
    """Return the kinds of the events."""
    return [event.kind for event in events]


def pin_newest(workshop: Any, spec: JobSpec) -> ResumePoint:
    """Pin the job's newest checkpoint and return it."""
    event = [event for event in workshop.executor.events(spec.name) if event.kind == "checkpoint"][-1]
    resume = ResumePoint(attempt=1, incarnation=event.incarnation, step=event.step, **event.data)
    workshop.executor.pin(spec, resume)
    return resume


def finish(workshop: Any, spec: JobSpec, incarnation: int = 1) -> Checkpoint:
    """Run an incarnation to its end and return the published checkpoint."""
    workshop.executor.submit(spec, incarnation)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.DONE, (status, workshop.log(spec))
    return checkpoint_of(workshop.artifacts, spec)
