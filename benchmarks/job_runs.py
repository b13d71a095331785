"""Runs a training job of the product on this machine for a benchmark: artifacts, executor, supervisor, trainer and export."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobEvent, JobSpec
from ratchet.local.executor import LocalExecutor

ROOT = Path(__file__).resolve().parents[1]


class Ended(NamedTuple):
    """A job that has ended well."""

    events: list[JobEvent]
    began: float
    """Time of the submission, in seconds since the epoch."""
    seconds: float
    """From the submission to the stored result."""


def run_job(work: Path, spec: JobSpec, variables: Mapping[str, str] | None = None, paths: tuple[Path, ...] = ()) -> Ended:
    """Run a job to its end, with `variables` added to its environment and `paths` to its module path.

    `work` holds the folder `artifacts`, with the files of the job. Raises RuntimeError if the job fails; the message has its reason.
    """
    modules = os.pathsep.join(filter(None, [*map(str, paths), str(ROOT), os.environ.get("PYTHONPATH")]))
    spec = spec.model_copy(update={"environment": {**spec.environment, **(variables or {}), "PYTHONPATH": modules}})
    executor = LocalExecutor(work / "jobs", work / "artifacts")
    began = time.time()
    executor.submit(spec, 1)
    while (status := executor.observe(spec.name)).outcome is None:
        executor.reconcile(spec.name)  # also stops the job at its timeout
        time.sleep(0.2)
    if status.outcome is not Outcome.DONE:
        logs = (f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in sorted(work.glob("jobs/**/*.log")))
        raise RuntimeError(f"the job ended as {status.outcome}: {status.reason}; " + "\n".join(logs))
    return Ended(executor.events(spec.name), began, time.time() - began)
