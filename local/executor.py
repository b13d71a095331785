"""Implements the `Executor` port on one machine: process 1 of a job is a detached subprocess in its own run folder.

The executor prepares files, and starts, observes and stops jobs. It never decides to start a job again. Its whole state is in files
(runtime/jobs/run_folder.py), so after a crash of the service, jobs are found again by pid and start time. Its own files in the folder of an
incarnation are process.json, submitted.json, cancel.json and output.log.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

from ratchet.contracts.errors import NewerRelease, Permanent, RatchetError
from ratchet.contracts.ids import canonical
from ratchet.contracts.jobs.exit_codes import ALREADY_STARTED, Outcome, outcome_of
from ratchet.contracts.jobs.training import JobEvent, JobSpec, JobState, JobStatus, ResumePoint
from ratchet.contracts.moment import Moment, moment_in, seconds_between
from ratchet.contracts.schema import stamped
from ratchet.local.processes import ProcessIdentity, alive, child_environment, identity_in, kill_tree, terminate
from ratchet.runtime.artifacts import FolderArtifacts, write_atomic
from ratchet.runtime.jobs import job_drop
from ratchet.runtime.jobs.full_disk import full_disk_text, has_no_room, release, write_result
from ratchet.runtime.jobs.job_files import BadJobFile, is_number, is_there, read_job_object
from ratchet.runtime.jobs.job_protocol import ARTIFACTS, INCARNATION, IncarnationFile, RunFile
from ratchet.runtime.jobs.run_folder import RunFolders, disk, ended_status, incarnations, last_words, read_ended, status, tail
from ratchet.runtime.moments import this_moment

PENDING_SECONDS = 60.0
"""Seconds for which a submitted incarnation without a process is pending. After that, it counts as never started."""
EXIT_SECONDS = 5.0
"""Maximum seconds to wait for the exit code of a child whose process has ended."""


class LocalExecutor:
    """Runs jobs below `root`; `python` is the interpreter of the jobs.

    Inputs and checkpoints are artifacts below `artifacts_root`. Jobs get copies of the inputs, and offer checkpoints in their drop folders.
    """

    restarts = False

    def __init__(self, root: Path, artifacts_root: Path, python: str = sys.executable) -> None:
        self.root = root.resolve()
        self.folders = RunFolders(self.root)
        self.artifacts = FolderArtifacts(artifacts_root.resolve())
        self.python = python
        self._children: dict[Path, subprocess.Popen[bytes]] = {}

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Start an incarnation, unless it or a later one was started before. Raises Retryable if the disk fails."""
        with disk(f"submit {spec.name}"):
            run = self.folders.claim(spec)
            if any(number >= incarnation and self._started(folder) for number, folder in incarnations(run, self.folders.begun(spec))):
                return
            self.folders.lay_out(spec, self.artifacts)
            folder = self.folders.begin(spec, incarnation)
            write_atomic(folder / IncarnationFile.SUBMITTED, canonical(this_moment()._asdict()))
            self._spawn(spec, run, folder, incarnation)

    def _started(self, folder: Path) -> bool:
        starting = self._children.get(folder)
        recorded = is_there(folder / IncarnationFile.PROCESS) or is_there(folder / IncarnationFile.ENDED)
        return recorded or (starting is not None and starting.poll() is None)

    def _spawn(self, spec: JobSpec, run: Path, folder: Path, incarnation: int) -> None:
        filled = [part.replace("{python}", self.python).replace("{run}", str(run)) for part in spec.command]
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(folder / IncarnationFile.OUTPUT, log_flags, 0o666), "ab") as log:
            self._children[folder] = subprocess.Popen(
                [self.python, "-m", "ratchet.local.processes", str(folder), "--", *filled],
                cwd=run,
                env=self._environment(spec, incarnation),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self, spec: JobSpec, incarnation: int) -> dict[str, str]:
        where = {
            "PYTHONSAFEPATH": "1",  # never import modules from the run folder
            **INCARNATION.to_env(incarnation),
            **ARTIFACTS.to_env(self.folders.run(spec) / RunFile.DROP),
        }
        return child_environment() | where | spec.environment

    def observe(self, name: str) -> JobStatus:
        """Return the status of the newest incarnation, or of an older one that still runs if the newest never started."""
        with disk(f"observe {name}"):
            spec = self.folders.spec(name)
            seen = [self._look(spec, folder, number) for number, folder in reversed(self._incarnations(name))] if spec else []
            if not seen:
                return JobStatus(state=JobState.ABSENT)
            if seen[0].state != JobState.ABSENT:
                return seen[0]
            running = next((status for status in seen if status.state == JobState.RUNNING), None)
            return running or _never_started(seen[0].incarnation)

    def _incarnations(self, name: str) -> list[tuple[int, Path]]:
        spec = self.folders.spec(name)
        return incarnations(self.folders.run(spec), self.folders.begun(spec)) if spec else []

    def _look(self, spec: JobSpec, folder: Path, number: int) -> JobStatus:
        identity, defect = _identity(folder)
        runs = identity is not None and alive(identity) is not None
        ended = read_ended(folder)  # read after the process check, because the process writes it last
        if ended is not None and ended.outcome is Outcome.DONE and job_drop.offered(folder.parent, spec, number):
            return status(folder, number, JobState.ENDED, reason="its checkpoint is not in the artifacts yet")
        if ended is not None:
            return ended_status(folder, number, ended)
        if defect:
            return status(folder, number, JobState.ENDED, reason=defect)
        if identity is None:
            submitted = _moment_in(folder / IncarnationFile.SUBMITTED)
            waiting = submitted is not None and seconds_between(submitted, this_moment()) < PENDING_SECONDS
            return JobStatus(state=JobState.PENDING if waiting else JobState.ABSENT, incarnation=number)
        reason = "" if runs else "its process has ended without a result file"
        return status(folder, number, JobState.RUNNING if runs else JobState.ENDED, reason=reason)

    def reconcile(self, name: str) -> None:
        """Send SIGKILL to a cancelled job after its grace period, take over the checkpoint of a successful one, and store lost outcomes.

        A job that damaged the record of its process is killed, if this process started it, and ends as a permanent failure.
        """
        with disk(f"reconcile {name}"):
            spec = self.folders.spec(name)
            if spec is None:
                return
            for number, folder in self._incarnations(name):
                if (child := self._children.get(folder)) is not None:
                    child.poll()  # removes the zombie process of a child that has ended
                identity, defect = _identity(folder)
                process = alive(identity) if identity else None
                if is_there(folder / IncarnationFile.ENDED):  # read last, as in _look
                    self._take_over(spec, folder, number)
                elif identity is None and not defect:
                    continue
                elif defect:
                    self._end_damaged(folder, defect)
                elif process is not None:
                    self._enforce(folder, process)
                else:
                    self._store_loss(folder)

    def _take_over(self, spec: JobSpec, folder: Path, number: int) -> None:
        """Take over the checkpoint of a successful incarnation. If it is refused, the incarnation has failed, and the checkpoint stays."""
        run, ended = folder.parent, read_ended(folder)
        if ended is None or ended.outcome is not Outcome.DONE or not job_drop.offered(run, spec, number):
            return
        try:
            job_drop.take_over(run, spec, number, self.artifacts)
        except Permanent as error:
            write_atomic(folder / IncarnationFile.ENDED, stamped({"outcome": Outcome.PERMANENT.value, "reason": str(error)}))
        else:
            job_drop.clear(run)

    def _store_loss(self, folder: Path) -> None:
        """Write the outcome of a process that ended without a result file.

        If the process was a child of this one, its exit code gives the reason. The file keeps the outcome stable for later calls.
        """
        code, full = self._exit_code(folder), full_disk_text(folder) if has_no_room(folder) else ""
        if code is None or outcome_of(code) in (Outcome.LOST, Outcome.DONE):
            why = f"; {full}" if full else " (SIGKILL, power loss)"
            ended = {"outcome": Outcome.LOST.value, "reason": f"its process disappeared without a result file{why}"}
        else:
            said = full or last_words(folder / IncarnationFile.OUTPUT)
            ended = {"outcome": outcome_of(code).value, "reason": f"exit code {code}: {said}"}
        write_result(folder / IncarnationFile.ENDED, stamped(ended))
        release(folder)

    def _end_damaged(self, folder: Path, defect: str) -> None:
        child = self._children.get(folder)
        if child is not None and child.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                kill_tree(psutil.Process(child.pid))
        write_atomic(folder / IncarnationFile.ENDED, stamped({"outcome": Outcome.PERMANENT.value, "reason": defect}))

    def _exit_code(self, folder: Path) -> int | None:
        child = self._children.get(folder)
        if child is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(EXIT_SECONDS)  # it may have ended after the last poll
        return None if child.returncode == ALREADY_STARTED else child.returncode

    def _enforce(self, folder: Path, process: psutil.Process) -> None:
        path = folder / IncarnationFile.CANCEL
        if not is_there(path):
            return
        cancelled, grace = _moment_in(path), _number_in(path, "grace")
        if cancelled is None or seconds_between(cancelled, this_moment()) > grace:
            kill_tree(process)

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        """Return the events from number `since` on, over all incarnations of the attempt."""
        with disk(f"read the events of {name}"):
            newest = max((number for number, _ in self._incarnations(name)), default=0)
            return self.folders.events(name, newest)[since:]

    def output(self, name: str, incarnation: int, lines: int) -> list[str]:
        """Return the last `lines` lines that an incarnation wrote to its standard output and error; none if there is no log."""
        with disk(f"read the output of {name}"):
            folder = dict(self._incarnations(name)).get(incarnation)
            found = tail(folder / IncarnationFile.OUTPUT) if folder and lines else []
        return [line.decode(errors="replace") for line in found[-lines:]]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Store the point from which the next incarnation must resume."""
        with disk(f"pin step {resume.step} of {spec.name}"):
            self.folders.pin(spec, resume)

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        """Return the resume point that `pin` stored last; None if there is none."""
        with disk(f"read the resume point of {spec.name}"):
            return self.folders.pinned(spec)

    def cancel(self, name: str) -> bool:
        """Send SIGTERM to the newest incarnation and return at once. `reconcile` sends SIGKILL once the grace period is over.

        Return whether this call stops the job; False if an earlier one did, or if the job has ended.
        """
        with disk(f"cancel {name}"):
            spec, begun = self.folders.spec(name), self._incarnations(name)
            if spec is None or not begun:
                return False
            _, folder = begun[-1]
            if is_there(folder / IncarnationFile.CANCEL) or is_there(folder / IncarnationFile.ENDED):
                return False
            write_atomic(folder / IncarnationFile.CANCEL, canonical({**this_moment()._asdict(), "grace": spec.grace_seconds}))
            identity, _ = _identity(folder)
            process = alive(identity) if identity else None
            if process is not None:
                terminate(process)
            return process is not None or identity is None

    def live(self) -> list[str]:
        """Return the names of all jobs that run, are pending, or have ended without a stored outcome."""
        with disk("list the jobs"):
            return [name for name in self.folders.names() if self._is_live(name)]

    def _is_live(self, name: str) -> bool:
        """Return whether a job has no stored outcome yet. A job whose files cannot be read is live, and does not hide the others."""
        try:
            seen = self.observe(name)
        except NewerRelease:
            raise
        except RatchetError:
            return True
        return seen.state is not JobState.ABSENT and seen.outcome is None


def _identity(folder: Path) -> tuple[ProcessIdentity | None, str]:
    """Return the process of an incarnation, or None and the defect of its record; the defect is empty if there is no record."""
    try:
        return identity_in(folder), ""
    except BadJobFile as error:
        return None, str(error)


def _moment_in(path: Path) -> Moment | None:
    """Return the moment in a file; None if the file or the moment is missing or damaged."""
    with contextlib.suppress(BadJobFile):
        return moment_in(read_job_object(path) or {})
    return None


def _number_in(path: Path, key: str) -> float:
    """Return a number in a file; 0 if the file or the number is missing or damaged."""
    with contextlib.suppress(BadJobFile):
        value = (read_job_object(path) or {}).get(key)
        return float(value) if is_number(value) else 0.0
    return 0.0


def _never_started(number: int) -> JobStatus:
    """Return the status of an incarnation that was submitted and never started.

    A first incarnation is ABSENT, so that it can be submitted again. A later one has ended as LOST, like one that was killed.
    """
    if number < 2:
        return JobStatus(state=JobState.ABSENT)
    reason = "it was submitted but never started (another process holds the attempt, or the machine went down)"
    return JobStatus(state=JobState.ENDED, incarnation=number, outcome=Outcome.LOST, reason=reason)
