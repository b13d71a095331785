"""Implements the `Executor` port on one machine: process 1 of a job is a detached subprocess in its own run folder.

The executor prepares files, and starts, observes and stops jobs. It never decides to start a job again. Its whole state is in files
(runtime/run_folder.py), so after a crash of the service, jobs are found again by pid and start time. Its own files in the folder of an
incarnation are process.json, submitted.json, cancel.json and output.log.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from contracts.exit_codes import Outcome, outcome_of
from contracts.ids import canonical
from contracts.training import JobEvent, JobSpec, JobState, JobStatus, ResumePoint
from local.processes import CANCEL, ENDED, INHERITED, NOT_MINE, SUBMITTED, alive, identity_in, kill_tree, terminate
from runtime.artifacts import FolderArtifacts, write_atomic
from runtime.json_files import read_json
from runtime.run_folder import RunFolders, disk, ended_status, incarnations, last_words, status

PENDING_SECONDS = 60.0
"""Seconds for which a submitted incarnation without a process is pending. After that, it counts as never started."""
EXIT_SECONDS = 5.0
"""Maximum seconds to wait for the exit code of a child whose process has ended."""


class LocalExecutor:
    """Runs jobs below `root`. Inputs and checkpoints are artifacts below `artifacts_root`; `python` is the interpreter of the jobs."""

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
            if any(number >= incarnation and self._started(folder) for number, folder in incarnations(run)):
                return
            self.folders.lay_out(spec, self.artifacts)
            folder = run / f"i{incarnation}"
            write_atomic(folder / SUBMITTED, canonical({"at": time.time()}))
            self._spawn(spec, run, folder, incarnation)

    def _started(self, folder: Path) -> bool:
        starting = self._children.get(folder)
        return identity_in(folder) is not None or (folder / ENDED).exists() or (starting is not None and starting.poll() is None)

    def _spawn(self, spec: JobSpec, run: Path, folder: Path, incarnation: int) -> None:
        filled = [part.replace("{python}", self.python).replace("{run}", str(run)) for part in spec.command]
        with (folder / "output.log").open("ab") as log:
            self._children[folder] = subprocess.Popen(
                [self.python, "-m", "local.processes", str(folder), "--", *filled],
                cwd=run,
                env=self._environment(spec, incarnation),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self, spec: JobSpec, incarnation: int) -> dict[str, str]:
        ours = {name: os.environ[name] for name in INHERITED if name in os.environ}
        here = str(Path(__file__).resolve().parent.parent)  # finds the packages without installation, too
        where = {
            "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
            "PYTHONSAFEPATH": "1",  # never import modules from the run folder
            "PYTHONUNBUFFERED": "1",
            "RATCHET_INCARNATION": str(incarnation),
            "RATCHET_ARTIFACTS": str(self.artifacts.root),
        }
        return ours | where | spec.environment

    def observe(self, name: str) -> JobStatus:
        """Return the status of the newest incarnation, or of an older one that still runs if the newest never started.

        Also completes `cancel`: sends SIGKILL once the grace period is over.
        """
        with disk(f"observe {name}"):
            spec = self.folders.spec(name)
            seen = [self._look(folder, number) for number, folder in reversed(incarnations(self.folders.run(spec)))] if spec else []
            if not seen:
                return JobStatus(state=JobState.ABSENT)
            if seen[0].state != JobState.ABSENT:
                return seen[0]
            running = next((status for status in seen if status.state == JobState.RUNNING), None)
            return running or _never_started(seen[0].incarnation)

    def _look(self, folder: Path, number: int) -> JobStatus:
        child = self._children.get(folder)
        if child is not None:
            child.poll()  # removes the zombie process of a child that has ended
        identity = identity_in(folder)
        process = alive(identity) if identity else None
        ended = read_json(folder / ENDED)  # read after the process check, because the process writes it last
        if ended is None and process is not None:
            self._enforce(folder, process)
            return status(folder, number, JobState.RUNNING)
        if ended is None and identity is None:
            waiting = time.time() - (read_json(folder / SUBMITTED) or {"at": 0.0})["at"] < PENDING_SECONDS
            return JobStatus(state=JobState.PENDING if waiting else JobState.ABSENT, incarnation=number)
        if ended is None:
            ended = self._lost(folder)
        return ended_status(folder, number, ended)

    def _lost(self, folder: Path) -> dict[str, Any]:
        """Write and return the outcome of a process that ended without a result file.

        If the process was a child of this one, its exit code gives the reason. The file keeps the outcome stable for later calls.
        """
        code = self._exit_code(folder)
        if code is None or outcome_of(code) in (Outcome.LOST, Outcome.DONE):
            ended = {"outcome": Outcome.LOST.value, "reason": "its process disappeared without a result file (SIGKILL, power loss)"}
        else:
            ended = {"outcome": outcome_of(code).value, "reason": f"exit code {code}: {last_words(folder / 'output.log')}"}
        write_atomic(folder / ENDED, canonical(ended))
        return ended

    def _exit_code(self, folder: Path) -> int | None:
        child = self._children.get(folder)
        if child is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(EXIT_SECONDS)  # it may have ended after the last poll
        return None if child.returncode == NOT_MINE else child.returncode

    def _enforce(self, folder: Path, process: psutil.Process) -> None:
        cancelled = read_json(folder / CANCEL)
        if cancelled and time.time() > cancelled["kill_at"]:
            kill_tree(process)

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        """Return the events from number `since` on, over all incarnations of the attempt."""
        with disk(f"read the events of {name}"):
            return self.folders.events(name)[since:]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Store the point from which the next incarnation must resume."""
        with disk(f"pin step {resume.step} of {spec.name}"):
            self.folders.pin(spec, resume)

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        """Return the resume point that `pin` stored last; None if there is none."""
        with disk(f"read the resume point of {spec.name}"):
            return self.folders.pinned(spec)

    def cancel(self, name: str) -> None:
        """Send SIGTERM to the newest incarnation and return at once.

        A later call of `observe` or `cancel` sends SIGKILL once the grace period is over.
        """
        with disk(f"cancel {name}"):
            spec = self.folders.spec(name)
            begun = incarnations(self.folders.run(spec)) if spec else []
            if spec is None or not begun:
                return
            _, folder = begun[-1]
            identity = identity_in(folder)
            process = alive(identity) if identity else None
            if not (folder / CANCEL).exists():
                write_atomic(folder / CANCEL, canonical({"kill_at": time.time() + spec.grace_seconds}))
                if process is not None:
                    terminate(process)
            elif process is not None:
                self._enforce(folder, process)

    def live(self) -> list[str]:
        """Return the names of all jobs that run or are pending."""
        with disk("list the jobs"):
            return [name for name in self.folders.names() if self.observe(name).state in (JobState.RUNNING, JobState.PENDING)]


def _never_started(number: int) -> JobStatus:
    """Return the status of an incarnation that was submitted and never started.

    A first incarnation is ABSENT, so that it can be submitted again. A later one has ended as LOST, like one that was killed.
    """
    if number < 2:
        return JobStatus(state=JobState.ABSENT)
    reason = "it was submitted but never started (another process holds the attempt, or the machine went down)"
    return JobStatus(state=JobState.ENDED, incarnation=number, outcome=Outcome.LOST, reason=reason)
