"""Run folders: inputs and output of jobs, on a local file system or on one that a cluster's nodes share.

Executors create and read run folders. A job writes only to the folder of its own incarnation. `runtime/jobs/job_protocol.py` defines the
names; `<plan>/aN` is the run folder of attempt N, and `<plan>/aN/iM` is the folder of its incarnation M.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobEvent, JobSpec, JobState, JobStatus, Proposal, ResumePoint
from ratchet.contracts.ports import Artifacts
from ratchet.contracts.schema import parse, stamped
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.documents import Documents, FolderDocuments
from ratchet.runtime.event_log import parse_event, read_event_log
from ratchet.runtime.jobs.job_files import (
    BEAT_BYTES,
    HIGHEST_STEP,
    SMALL_BYTES,
    BadJobFile,
    is_folder,
    is_there,
    modified,
    read_job_file,
    read_job_object,
    read_tail,
)
from ratchet.runtime.jobs.job_protocol import (
    JOB_RECORDS,
    IncarnationFile,
    RunFile,
    attempt_folder,
    beat_file,
    incarnation_folder,
    incarnation_record,
    job_record,
    plan_folder,
)
from ratchet.runtime.manifest import verify_manifest

TAIL = 65_536
"""Number of bytes that are read from the end of an event file or a log to find its newest lines."""
SPEC_BYTES = 16 << 20
"""Maximum size of a stored JobSpec."""
REASON_LENGTH = 4000
"""Maximum number of characters of a reason that a job gives."""
FACTOR = 1000.0
"""Largest factor by which a proposal may change a setting."""
_OTHER = "belongs to a different job or spec than {}; a changed spec needs a new attempt"


class RunFolders:
    """Run folders of all jobs of a line, below one root. `documents` has the records of the jobs; None: they are files below the root.

    Where the records outlive the run folders, a run folder that is missing is claimed again by its job.
    """

    def __init__(self, root: Path, documents: Documents | None = None) -> None:
        self.root = root
        self.documents = documents or FolderDocuments(root)
        self._specs: dict[str, JobSpec] = {}
        """Those that were read, which never change."""

    def claim(self, spec: JobSpec) -> Path:
        """Assign the run folder to the job permanently and return its path.

        Raises `Permanent` if the folder or the name belongs to a job with another name or spec.
        """
        run, record, content = self.run(spec), job_record(spec.name), stamped(spec)
        mark, owner = run / RunFile.JOB, stamped({"name": spec.name})
        if is_there(run) and not is_folder(run):
            raise Permanent(f"{run} is not a folder, or is a link to one; a job of this plan changed it: remove it, or make a new plan")
        marked, known = read_job_file(mark, SPEC_BYTES), self.documents.read(record)
        if marked not in (None, owner):
            raise Permanent(f"{mark} {_OTHER.format(spec.name)}")
        if known is None:
            known = self.documents.change(record, lambda found: content if found is None else found)
        if known != content:
            raise Permanent(f"{record} {_OTHER.format(spec.name)}")
        if marked is None:
            write_atomic(mark, owner)
        return run

    def begin(self, spec: JobSpec, incarnation: int) -> Path:
        """Record that an incarnation is submitted, create its folder and return the path.

        The record lies outside the folders that jobs can write to. Raises `Permanent` if something else has the folder's name.
        """
        folder, record = self.run(spec) / incarnation_folder(incarnation), self.root / incarnation_record(spec.name)
        if incarnation > (self.begun(spec) or 0):
            write_atomic(record, b"%d" % incarnation)
        if is_there(folder) and not is_folder(folder):
            raise Permanent(f"{folder} is not a folder, or is a link to one; the job changed it: remove it, or start a new attempt")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def begun(self, spec: JobSpec) -> int | None:
        """Return the highest incarnation that `begin` recorded. None if there is no record, for example before the first submission."""
        path = self.root / incarnation_record(spec.name)
        return int(path.read_bytes()) if path.exists() else None

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
        with contextlib.suppress(ValueError, TypeError, OverflowError, RecursionError, BadJobFile):
            data = read_job_file(self.run(spec) / RunFile.RESUME, SMALL_BYTES)
            return None if data is None else parse(ResumePoint, data)
        return None

    def spec(self, name: str) -> JobSpec | None:
        """Return the spec of the job with this name. None if it was never claimed."""
        if name not in self._specs and (data := self.documents.read(job_record(name))) is not None:
            self._specs[name] = parse(JobSpec, data)
        return self._specs.get(name)

    def names(self) -> list[str]:
        """Return the sorted names of all jobs that were ever claimed."""
        return sorted(PurePosixPath(name).stem for name in self.documents.names(JOB_RECORDS, ".json"))

    def events(self, name: str, up_to: int) -> list[JobEvent]:
        """Return the events of the job's incarnations up to number `up_to`, in order.

        If lines of an incarnation were left out, its last event is a warning that counts them.
        """
        spec, found = self.spec(name), list[JobEvent]()
        for number, folder in incarnations(self.run(spec), up_to) if spec else ():
            log = read_event_log(folder / IncarnationFile.EVENTS, number)
            found += log.events
            if log.left_out:
                last = log.events[-1] if log.events else JobEvent(at=0.0, incarnation=number, kind="warning")
                reason = f"left out of {folder.name}/{IncarnationFile.EVENTS}: {log.reason()}"
                found.append(last.model_copy(update={"kind": "warning", "data": {"reason": reason}}))
        return found

    def record(self, name: str) -> Path:
        """Return the path below the root that stands for the job's record, also in a bucket. Only records in files are at this path."""
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
    try:
        path = (folder / name).resolve()
    except (ValueError, OSError, RuntimeError) as error:  # a NUL, a name that is too long, a loop of links
        raise Permanent(f"{name[:200]!r} is not a usable path below {folder} ({type(error).__name__})") from None
    if not path.is_relative_to(folder.resolve()) or path == folder.resolve():
        raise Permanent(f"{name!r} is a path outside {folder}; use a relative name below it")
    return path


def incarnations(run: Path, up_to: int | None) -> list[tuple[int, Path]]:
    """Return (number, folder) of every incarnation up to number `up_to` that has a folder, in order.

    `up_to` is the highest number that the service has started or allowed, because a job can create folders with any name. None, for
    jobs without a record of their incarnations: the numbers from 1 to the first that has no folder.
    """
    if not is_folder(run):
        return []
    numbers = itertools.count(1) if up_to is None else range(1, up_to + 1)
    found = ((number, run / incarnation_folder(number)) for number in numbers)
    if up_to is None:
        return list(itertools.takewhile(lambda pair: is_folder(pair[1]), found))
    return [pair for pair in found if is_folder(pair[1])]


def read_events(folder: Path) -> Iterator[JobEvent]:
    """Yield the valid events of an incarnation, or none if it has no event log.

    After a kill, the last line can be incomplete, and a later event can be appended to it. Such lines are skipped.
    """
    yield from read_event_log(folder / IncarnationFile.EVENTS, None).events


class Ended(BaseModel):
    """Content of a result file (`ended.json`)."""

    model_config = ConfigDict(frozen=True, strict=True)

    outcome: Annotated[Outcome, Field(strict=False)]
    reason: str
    proposal: Proposal | None = None
    """Change that the result proposes for the next attempt."""


def read_ended(folder: Path) -> Ended | None:
    """Return the result of an incarnation; None if there is no result file.

    A result file that is not valid counts as a permanent failure, because another incarnation of the same code would write it again. A
    proposal that is not valid is left out, and the reason says so. Raises OSError if the disk fails.
    """
    path = folder / IncarnationFile.ENDED
    try:
        content = read_job_object(path)
        if content is None:
            return None
        outcome, reason = Outcome(content["outcome"]), content["reason"]
        if not isinstance(reason, str):
            raise BadJobFile(path, "has a reason that is not text")
    except BadJobFile as error:
        return Ended(outcome=Outcome.PERMANENT, reason=str(error))
    except (ValueError, KeyError, TypeError) as error:
        defect = "has no outcome or no reason" if isinstance(error, KeyError) else "has an unknown outcome"
        return Ended(outcome=Outcome.PERMANENT, reason=str(BadJobFile(path, defect)))
    change, defect = _proposal(content.get("proposal"))
    reason = "; ".join(filter(None, [_text(reason), defect]))
    return Ended(outcome=outcome, reason=reason, proposal=change)


def _text(reason: str) -> str:
    """Return a reason without NUL, of at most REASON_LENGTH characters."""
    return reason.replace("\0", "\N{REPLACEMENT CHARACTER}")[:REASON_LENGTH]


def _proposal(content: object) -> tuple[Proposal | None, str]:
    """Return the proposal of a result, or None and the defect."""
    if not content:
        return None, ""
    with contextlib.suppress(ValidationError):
        found = Proposal.model_validate(content)
        factors = (found.adjustment.learning_rate, found.adjustment.kl, found.adjustment.memory)
        texts = (found.rule, found.adjustment.reason, *found.adjustment.rules)
        if (
            all(1 / FACTOR <= factor <= FACTOR for factor in factors)
            and 0 <= found.good <= HIGHEST_STEP
            and sum(map(len, texts)) <= REASON_LENGTH
        ):
            return found, ""
    return None, "its proposal for the next attempt is not valid and was left out"


def status(folder: Path, number: int, state: JobState, outcome: Outcome | None = None, reason: str = "") -> JobStatus:
    """Return the status of an incarnation. The step is read from its newest event that contains progress."""
    step = total = 0
    for line in reversed(tail(folder / IncarnationFile.EVENTS)):
        event = parse_event(line, number)
        if isinstance(event, JobEvent) and event.total:
            step, total = event.step, event.total
            break
    return JobStatus(state=state, incarnation=number, step=step, total=total, outcome=outcome, reason=reason)


def ended_status(folder: Path, number: int, ended: Ended) -> JobStatus:
    """Return the status of an incarnation with this result."""
    last = status(folder, number, JobState.ENDED, ended.outcome, ended.reason)
    return last.model_copy(update={"proposal": ended.proposal})


def newest_sign(folder: Path, nodes: int, now: float) -> float | None:
    """Return the time of an incarnation's last event, result or heartbeat of its `nodes` nodes. None if there was none.

    Times are seconds since the epoch. A time after `now`, which a job can set, counts as `now`.
    """
    names = [IncarnationFile.EVENTS, IncarnationFile.ENDED, *map(beat_file, range(nodes))]
    return max((at for name in names if (at := modified(folder / name, now)) is not None), default=None)


def read_beats(folder: Path, nodes: int) -> dict[str, str]:
    """Return the heartbeat of each of the `nodes` nodes by file name. A file that is not a heartbeat counts as absent."""
    found = {}
    for name in map(beat_file, range(nodes)):
        with contextlib.suppress(BadJobFile):
            if (data := read_job_file(folder / name, BEAT_BYTES)) is not None:
                found[name] = data.decode(errors="replace")
    return found


def tail(path: Path) -> list[bytes]:
    """Return the lines in the last `TAIL` bytes of a file, none if it is no regular file. The first line may be incomplete."""
    try:
        return read_tail(path, TAIL).splitlines()
    except BadJobFile:
        return []


_EXCEPTION = re.compile(r"(?:^|[\s)\]:])([A-Za-z_][\w.]*(?:Error|Exception)): (.*)")
"""An exception with its message, as Python prints it, also behind the prefix of a logger."""


def last_words(path: Path, start: int = 0) -> str:
    """Return the reason why the writer of a log ended, as one line of at most 500 characters, for an error reason.

    It is the last three lines. In front of them is the first exception if they do not contain it: a program of several processes, like
    vLLM, reports the failure of one of them at the end and the cause long before. `start` is the size of the log in bytes before the
    program wrote to it.
    """
    try:
        written = path.stat().st_size - start if start else TAIL
        text = read_tail(path, min(TAIL, max(0, written)))
    except (BadJobFile, OSError):
        text = b""
    lines = [line for one in text.splitlines() if (line := one.strip().decode(errors="replace"))]
    end = " | ".join(lines[-3:])
    first = next((found[0].strip(" \t)]:") for line in lines if (found := _EXCEPTION.search(line))), "")
    if not first or first in end:
        return end[-500:] or "no output"
    return f"{first[:240]} … {end[-240:]}"
