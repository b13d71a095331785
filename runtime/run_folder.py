"""Run folders: inputs and output of jobs, on a local file system or on one that a cluster's nodes share.

Executors create and read run folders. A job writes only to the folder of its own incarnation. `runtime/job_protocol.py` defines the
names; `<plan>/aN` is the run folder of attempt N, and `<plan>/aN/iM` is the folder of its incarnation M.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from contracts.errors import Permanent, Retryable
from contracts.exit_codes import Outcome
from contracts.ports import Artifacts
from contracts.schema import parse, stamped
from contracts.training import JobEvent, JobSpec, JobState, JobStatus, Proposal, ResumePoint
from runtime.artifacts import write_atomic
from runtime.job_protocol import IncarnationFile, RunFile, attempt_folder, beat_file, incarnation_folder, job_record, plan_folder
from runtime.manifest import verify_manifest

TAIL = 65_536
"""Number of bytes that are read from the end of an event file or a log to find its newest lines."""


class RunFolders:
    """Run folders of all jobs of a line, below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def claim(self, spec: JobSpec) -> Path:
        """Assign the run folder to the job permanently and return its path.

        Raises `Permanent` if the folder or the name belongs to a job with another name or spec.
        """
        run = self.run(spec)
        for path, content in ((run / RunFile.JOB, stamped({"name": spec.name})), (self.record(spec.name), stamped(spec))):
            if path.exists() and path.read_bytes() != content:
                raise Permanent(f"{path} belongs to a different job or spec than {spec.name}; a changed spec needs a new attempt")
            if not path.exists():
                write_atomic(path, content)
        return run

    def lay_out(self, spec: JobSpec, artifacts: Artifacts) -> Path:
        """Claim the run folder, write the job's plan and inputs into it and return its path."""
        run = self.claim(spec)
        lay_inputs(spec, run, artifacts)
        return run

    def plan_folder(self, spec: JobSpec) -> Path:
        """Return the folder that contains all attempts of the spec's plan."""
        return self.root / plan_folder(spec.plan)

    def run(self, spec: JobSpec) -> Path:
        """Return the run folder of the spec's attempt."""
        return self.plan_folder(spec) / attempt_folder(spec.attempt)

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Set the checkpoint from which the next incarnation resumes. Raises `Permanent` if it differs from the accepted one."""
        run = self.claim(spec)
        verify_manifest(inside(run.parent, resume.path), resume.manifest)
        write_atomic(run / RunFile.RESUME, stamped(resume))

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        """Return the pinned resume point. None if there is none or it is unreadable."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return parse(ResumePoint, (self.run(spec) / RunFile.RESUME).read_bytes())
        return None

    def spec(self, name: str) -> JobSpec | None:
        """Return the spec of the job with this name. None if it was never claimed."""
        try:
            return parse(JobSpec, self.record(name).read_bytes())
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Return the sorted names of all jobs that were ever claimed."""
        return sorted(path.stem for path in self.root.glob(job_record("*")))

    def events(self, name: str) -> list[JobEvent]:
        """Return the events of all incarnations of the job, in order."""
        spec = self.spec(name)
        return [event for _, folder in incarnations(self.run(spec)) for event in read_events(folder)] if spec else []

    def record(self, name: str) -> Path:
        """Return the path of the file that stores the spec of the job with this name."""
        return self.root / job_record(name)


def lay_inputs(spec: JobSpec, run: Path, artifacts: Artifacts) -> None:
    """Write the inputs and the plan of a job to its run folder."""
    for name, key in spec.inputs.items():
        artifacts.fetch(key, inside(run, name))
    write_atomic(run / RunFile.PLAN, stamped(json.loads(spec.plan_json)))


@contextmanager
def disk(what: str) -> Iterator[None]:
    """Convert `OSError` in the block to `Retryable`, because a full or unreachable disk is usually temporary.

    `what` completes the message "cannot ...".
    """
    try:
        yield
    except OSError as error:
        raise Retryable(f"cannot {what}: {error.strerror} ({error.filename}); free space or fix permissions, then try again") from error


def inside(folder: Path, name: str) -> Path:
    """Return the resolved path of `name` below `folder`. Raises `Permanent` if the path is outside the folder or the folder itself."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or path == folder.resolve():
        raise Permanent(f"{name!r} is a path outside {folder}; use a relative name below it")
    return path


def incarnations(run: Path) -> list[tuple[int, Path]]:
    """Return (number, folder) of every incarnation that has a folder, in order."""
    return sorted((int(folder.name[1:]), folder) for folder in run.glob(incarnation_folder("[0-9]*")))


def read_events(folder: Path) -> Iterator[JobEvent]:
    """Yield the events of an incarnation, or none if it has no event log.

    After a kill, the last line can be incomplete, and a later event can be appended to it. Such lines are skipped.
    """
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / IncarnationFile.EVENTS).read_bytes().splitlines():
            with contextlib.suppress(ValidationError):
                yield JobEvent.model_validate_json(line)


def proposal(ended: dict[str, Any]) -> Proposal | None:
    """Return the change that a job's result proposes for the next attempt. None if it is missing or written by an incompatible version."""
    with contextlib.suppress(ValidationError):
        return Proposal.model_validate(ended["proposal"]) if ended.get("proposal") else None
    return None


def status(folder: Path, number: int, state: JobState, outcome: Outcome | None = None, reason: str = "") -> JobStatus:
    """Return the status of an incarnation. The step is read from its newest event that contains progress."""
    step = total = 0
    for line in reversed(tail(folder / IncarnationFile.EVENTS)):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            event = json.loads(line)
            if event["total"]:
                step, total = int(event["step"]), int(event["total"])
                break
    return JobStatus(state=state, incarnation=number, step=step, total=total, outcome=outcome, reason=reason)


def ended_status(folder: Path, number: int, ended: dict[str, Any]) -> JobStatus:
    """Return the status of an incarnation with the result file content `ended`."""
    last = status(folder, number, JobState.ENDED, Outcome(ended["outcome"]), str(ended["reason"]))
    return last.model_copy(update={"proposal": proposal(ended)})


def newest_sign(folder: Path) -> float | None:
    """Return the time of an incarnation's last event, result or heartbeat in seconds since the epoch. None if there was none."""
    signs = [folder / IncarnationFile.EVENTS, folder / IncarnationFile.ENDED, *folder.glob(beat_file("*"))]
    return max((path.stat().st_mtime for path in signs if path.exists()), default=None)


def tail(path: Path) -> list[bytes]:
    """Return the lines in the last `TAIL` bytes of a file. The first line may be incomplete."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def last_words(path: Path) -> str:
    """Return the last three lines of a log as one line of at most 500 characters, for an error reason."""
    return b" | ".join(line.strip() for line in tail(path)[-3:]).decode(errors="replace")[-500:] or "no output"
