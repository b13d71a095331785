"""Run folders: where a job finds its inputs and leaves its words, on one machine or on a file system that a cluster's nodes share.

Executors lay them out and read them; a job writes into its own incarnation's folder. It refuses to know how a job is started.
Layout below the root:

    jobs/<job name>.json            the JobSpec: a name leads to its folder
    <plan>/aN/                      run folder of attempt N: plan.json, inputs, resume.json
    <plan>/aN/iM/                   incarnation M: events.jsonl, ended.json, step_K/, and what its executor notes
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
from contracts.exits import Outcome
from contracts.files import write_atomic
from contracts.ids import canonical
from contracts.manifest import verify_manifest
from contracts.ports import Artifacts
from contracts.training import JobEvent, JobSpec, JobState, JobStatus, Proposal, ResumePoint

EVENTS, ENDED, PLAN, RESUME, BEAT = "events.jsonl", "ended.json", "plan.json", "resume.json", "beat-"
BEAT_SECONDS = 5.0
"""Between two heartbeats of a gang's pod (`beat-` and the node's number, in its incarnation's folder). Who watches allows for several."""
TAIL = 65_536
"""Bytes at the end of an event file or a log that are read for its newest lines."""


class RunFolders:
    """All jobs of a line below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def claim(self, spec: JobSpec) -> Path:
        """The run folder, which belongs to one job for ever."""
        run = self.run(spec)
        for path, content in ((run / "job.json", canonical({"name": spec.name})), (self.record(spec.name), canonical(spec))):
            if path.exists() and path.read_bytes() != content:
                raise Permanent(f"{path} belongs to another job than {spec.name}; a changed spec needs a new attempt")
            if not path.exists():
                write_atomic(path, content)
        return run

    def lay_out(self, spec: JobSpec, artifacts: Artifacts) -> Path:
        """The run folder with the job's plan and inputs in it."""
        run = self.claim(spec)
        lay_inputs(spec, run, artifacts)
        return run

    def plan_folder(self, spec: JobSpec) -> Path:
        """Holds all attempts of a plan."""
        return self.root / spec.plan[:16]

    def run(self, spec: JobSpec) -> Path:
        """The folder of the spec's attempt."""
        return self.plan_folder(spec) / f"a{spec.attempt}"

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Where the next incarnation resumes. Permanent if the step is not what was accepted."""
        run = self.claim(spec)
        verify_manifest(inside(run.parent, resume.path), resume.manifest)
        write_atomic(run / RESUME, canonical(resume))

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        """Where the next incarnation resumes; None: at the attempt's start, or at what nobody can read."""
        with contextlib.suppress(FileNotFoundError, ValidationError):
            return ResumePoint.model_validate_json((self.run(spec) / RESUME).read_bytes())
        return None

    def spec(self, name: str) -> JobSpec | None:
        """The job of that name, if it was ever claimed."""
        try:
            return JobSpec.model_validate_json(self.record(name).read_bytes())
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Of all jobs that were ever claimed, sorted."""
        return sorted(path.stem for path in (self.root / "jobs").glob("*.json"))

    def events(self, name: str) -> list[JobEvent]:
        """Over all incarnations, in their order."""
        spec = self.spec(name)
        return [event for _, folder in incarnations(self.run(spec)) for event in read_events(folder)] if spec else []

    def record(self, name: str) -> Path:
        """Where the job of that name is written down."""
        return self.root / "jobs" / f"{name}.json"


def lay_inputs(spec: JobSpec, run: Path, artifacts: Artifacts) -> None:
    """A job's inputs and its plan into its run folder."""
    for name, key in spec.inputs.items():
        artifacts.fetch(key, inside(run, name))
    write_atomic(run / PLAN, spec.plan_json.encode())


@contextmanager
def disk(what: str) -> Iterator[None]:
    """OSErrors of a block as Retryable: a full or unreachable disk passes."""
    try:
        yield
    except OSError as error:
        raise Retryable(f"cannot {what}: {error.strerror} ({error.filename}); free space or fix permissions, then try again") from error


def inside(folder: Path, name: str) -> Path:
    """`name` below `folder`. Permanent where it leads elsewhere."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or path == folder.resolve():
        raise Permanent(f"{name!r} names a place outside {folder}; only relative names below it are taken")
    return path


def incarnations(run: Path) -> list[tuple[int, Path]]:
    """(number, folder) of each that left a folder, in order."""
    return sorted((int(folder.name[1:]), folder) for folder in run.glob("i[0-9]*"))


def read_events(folder: Path) -> Iterator[JobEvent]:
    """An incarnation's events; a line that a kill tore is left out."""
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / EVENTS).read_bytes().splitlines():
            with contextlib.suppress(ValidationError):
                yield JobEvent.model_validate_json(line)


def proposal(ended: dict[str, Any]) -> Proposal | None:
    """What a job asks the next attempt to change; another version's words are none."""
    with contextlib.suppress(ValidationError):
        return Proposal.model_validate(ended["proposal"]) if ended.get("proposal") else None
    return None


def status(folder: Path, number: int, state: JobState, outcome: Outcome | None = None, reason: str = "") -> JobStatus:
    """An incarnation's status, with the step that its newest event tells of."""
    step = total = 0
    for line in reversed(tail(folder / EVENTS)):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            event = json.loads(line)
            if event["total"]:
                step, total = int(event["step"]), int(event["total"])
                break
    return JobStatus(state=state, incarnation=number, step=step, total=total, outcome=outcome, reason=reason)


def ended_status(folder: Path, number: int, ended: dict[str, Any]) -> JobStatus:
    """The status of an incarnation that left its last word."""
    last = status(folder, number, JobState.ENDED, Outcome(ended["outcome"]), str(ended["reason"]))
    return last.model_copy(update={"proposal": proposal(ended)})


def newest_sign(folder: Path) -> float | None:
    """When an incarnation last wrote its events, its last word or a heartbeat (seconds since the epoch); None: it never did."""
    signs = [folder / EVENTS, folder / ENDED, *folder.glob(f"{BEAT}*")]
    return max((path.stat().st_mtime for path in signs if path.exists()), default=None)


def tail(path: Path) -> list[bytes]:
    """The last lines of a file, as far as TAIL bytes reach."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def last_words(path: Path) -> str:
    """The last three lines of a log, for a reason."""
    return b" | ".join(line.strip() for line in tail(path)[-3:]).decode(errors="replace")[-500:] or "no output"
