"""`Executor` on one machine: a job's process 1 as a detached subprocess in a run folder of its own.

It lays out files, starts, observes and stops; it refuses to know what a job does, and never decides to start one again.
Everything it knows lies in files (contracts/runfolder.py), so after our own crash jobs are found again, by pid and start time. Of its
own it notes, in an incarnation's folder, process.json, submitted.json, cancel.json and output.log.
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

from contracts.exits import Outcome, outcome_of
from contracts.files import FolderArtifacts, write_atomic
from contracts.ids import canonical
from contracts.jsonfile import read_json
from contracts.runfolder import RunFolders, disk, ended_status, incarnations, last_words, status
from contracts.training import JobEvent, JobSpec, JobState, JobStatus, ResumePoint
from local.processes import CANCEL, ENDED, INHERITED, NOT_MINE, SUBMITTED, alive, identity_in, kill_tree, terminate

PENDING_SECONDS = 60.0
"""A submitted incarnation without a process is pending for so long; then it counts as never started."""
EXIT_SECONDS = 5.0
"""How long the exit code of a child that is seen dead may take to reach us."""


class LocalExecutor:
    """Runs jobs below `root`; inputs come from, and checkpoints go to, the artifacts below `artifacts_root`."""

    restarts = False

    def __init__(self, root: Path, artifacts_root: Path, python: str = sys.executable) -> None:
        self.root = root.resolve()
        self.folders = RunFolders(self.root)
        self.artifacts = FolderArtifacts(artifacts_root.resolve())
        self.python = python
        self._children: dict[Path, subprocess.Popen[bytes]] = {}

    def submit(self, spec: JobSpec, incarnation: int) -> None:
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
        here = str(Path(__file__).resolve().parent.parent)  # our packages are found where they lie, installed or not
        where = {
            "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
            "PYTHONSAFEPATH": "1",  # a run folder's files are no modules
            "PYTHONUNBUFFERED": "1",
            "RATCHET_INCARNATION": str(incarnation),
            "RATCHET_ARTIFACTS": str(self.artifacts.root),
        }
        return ours | where | spec.environment

    def observe(self, name: str) -> JobStatus:
        """The newest incarnation's status; an older one's only while it still runs and the newest never began.

        Also carries out what `cancel` promised: SIGKILL once the grace is over.
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
            child.poll()  # buries it where it has died
        identity = identity_in(folder)
        process = alive(identity) if identity else None
        ended = read_json(folder / ENDED)  # read after the look at the process, which writes it as its last act
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
        """A process that ended without a word: its exit code says more where it was our own child. Written down, so that it stays said."""
        code = self._exit_code(folder)
        if code is None or outcome_of(code) in (Outcome.LOST, Outcome.DONE):
            ended = {"outcome": Outcome.LOST.value, "reason": "its process vanished without a word (killed, or the machine went down)"}
        else:
            ended = {"outcome": outcome_of(code).value, "reason": f"exit code {code}: {last_words(folder / 'output.log')}"}
        write_atomic(folder / ENDED, canonical(ended))
        return ended

    def _exit_code(self, folder: Path) -> int | None:
        child = self._children.get(folder)
        if child is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(EXIT_SECONDS)  # it may have died since the last poll: seen as gone, not yet buried
        return None if child.returncode == NOT_MINE else child.returncode

    def _enforce(self, folder: Path, process: psutil.Process) -> None:
        cancelled = read_json(folder / CANCEL)
        if cancelled and time.time() > cancelled["kill_at"]:
            kill_tree(process)

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        with disk(f"read the events of {name}"):
            return self.folders.events(name)[since:]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        with disk(f"pin step {resume.step} of {spec.name}"):
            self.folders.pin(spec, resume)

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        with disk(f"read the resume point of {spec.name}"):
            return self.folders.pinned(spec)

    def cancel(self, name: str) -> None:
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
        with disk("list the jobs"):
            return [name for name in self.folders.names() if self.observe(name).state in (JobState.RUNNING, JobState.PENDING)]


def _never_started(number: int) -> JobStatus:
    """Of a first incarnation nothing is known, so that it may be submitted again; a later one is lost, as one that was killed is."""
    if number < 2:
        return JobStatus(state=JobState.ABSENT)
    reason = "it was submitted and never started (its launcher found the attempt taken, or the machine went down)"
    return JobStatus(state=JobState.ENDED, incarnation=number, outcome=Outcome.LOST, reason=reason)
