"""`Executor` on one machine: a job's process 1 as a detached subprocess in a run folder of its own.

It lays out files, starts, observes and stops; it refuses to know what a job does, and never decides to start one again.
Everything it knows lies in files, so after our own crash jobs are found again, by pid and start time. Layout below the root:

    jobs/<job name>.json            the JobSpec: a name leads to its folder
    <plan>/aN/                      run folder of attempt N: plan.json, inputs, resume.json, lock
    <plan>/aN/iM/                   incarnation M: process.json, events.jsonl, ended.json, output.log, step_K/
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from contracts.errors import Permanent, Retryable
from contracts.exits import Outcome, outcome_of
from contracts.files import FolderArtifacts, write_atomic
from contracts.ids import canonical
from contracts.manifest import verify_manifest
from contracts.training import JobEvent, JobSpec, JobState, JobStatus, Proposal, ResumePoint
from local.processes import CANCEL, ENDED, INHERITED, NOT_MINE, SUBMITTED, alive, identity_in, kill_tree, read_json, terminate

PENDING_SECONDS = 60.0
"""A submitted incarnation without a process is pending for so long; then it counts as never started."""
EXIT_SECONDS = 5.0
"""How long the exit code of a child that is seen dead may take to reach us."""
TAIL = 65_536
"""Bytes at the end of an event file or a log that are read for its newest lines."""


class LocalExecutor:
    """Runs jobs below `root`; inputs come from, and checkpoints go to, the artifacts below `artifacts_root`."""

    restarts = False

    def __init__(self, root: Path, artifacts_root: Path, python: str = sys.executable) -> None:
        self.root = root.resolve()
        self.artifacts = FolderArtifacts(artifacts_root.resolve())
        self.python = python
        self._children: dict[Path, subprocess.Popen[bytes]] = {}

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        with _disk(f"submit {spec.name}"):
            run = self._claim(spec)
            if any(number >= incarnation and self._started(folder) for number, folder in _incarnations(run)):
                return
            for name, key in spec.inputs.items():
                self.artifacts.fetch(key, _inside(run, name))
            write_atomic(run / "plan.json", spec.plan_json.encode())
            folder = run / f"i{incarnation}"
            write_atomic(folder / SUBMITTED, canonical({"at": time.time()}))
            self._spawn(spec, run, folder, incarnation)

    def _claim(self, spec: JobSpec) -> Path:
        """The run folder, which belongs to one job for ever."""
        record = self.root / "jobs" / f"{spec.name}.json"
        run = self._run(spec)
        for path, content in ((run / "job.json", canonical({"name": spec.name})), (record, canonical(spec))):
            if path.exists() and path.read_bytes() != content:
                raise Permanent(f"{path} belongs to another job than {spec.name}; a changed spec needs a new attempt")
            if not path.exists():
                write_atomic(path, content)
        return run

    def _started(self, folder: Path) -> bool:
        starting = self._children.get(folder)
        return identity_in(folder) is not None or (folder / ENDED).exists() or (starting is not None and starting.poll() is None)

    def _run(self, spec: JobSpec) -> Path:
        return self.root / spec.plan[:16] / f"a{spec.attempt}"

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
        with _disk(f"observe {name}"):
            spec = self._spec(name)
            seen = [self._look(folder, number) for number, folder in reversed(_incarnations(self._run(spec)))] if spec else []
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
            return _status(folder, number, JobState.RUNNING)
        if ended is None and identity is None:
            waiting = time.time() - (read_json(folder / SUBMITTED) or {"at": 0.0})["at"] < PENDING_SECONDS
            return JobStatus(state=JobState.PENDING if waiting else JobState.ABSENT, incarnation=number)
        if ended is None:
            ended = self._lost(folder)
        status = _status(folder, number, JobState.ENDED, Outcome(ended["outcome"]), str(ended["reason"]))
        return status.model_copy(update={"proposal": _proposal(ended)})

    def _lost(self, folder: Path) -> dict[str, Any]:
        """A process that ended without a word: its exit code says more where it was our own child. Written down, so that it stays said."""
        code = self._exit_code(folder)
        if code is None or outcome_of(code) in (Outcome.LOST, Outcome.DONE):
            ended = {"outcome": Outcome.LOST.value, "reason": "its process vanished without a word (killed, or the machine went down)"}
        else:
            ended = {"outcome": outcome_of(code).value, "reason": f"exit code {code}: {_last_lines(folder / 'output.log')}"}
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
        with _disk(f"read the events of {name}"):
            spec = self._spec(name)
            found = [event for _, folder in _incarnations(self._run(spec)) for event in _events(folder)] if spec else []
            return found[since:]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        with _disk(f"pin step {resume.step} of {spec.name}"):
            run = self._claim(spec)
            verify_manifest(_inside(run.parent, resume.path), resume.manifest)
            write_atomic(run / "resume.json", canonical(resume))

    def cancel(self, name: str) -> None:
        with _disk(f"cancel {name}"):
            spec = self._spec(name)
            incarnations = _incarnations(self._run(spec)) if spec else []
            if spec is None or not incarnations:
                return
            _, folder = incarnations[-1]
            identity = identity_in(folder)
            process = alive(identity) if identity else None
            if not (folder / CANCEL).exists():
                write_atomic(folder / CANCEL, canonical({"kill_at": time.time() + spec.grace_seconds}))
                if process is not None:
                    terminate(process)
            elif process is not None:
                self._enforce(folder, process)

    def live(self) -> list[str]:
        with _disk("list the jobs"):
            names = sorted(path.stem for path in (self.root / "jobs").glob("*.json"))
        return [name for name in names if self.observe(name).state in (JobState.RUNNING, JobState.PENDING)]

    def _spec(self, name: str) -> JobSpec | None:
        try:
            return JobSpec.model_validate_json((self.root / "jobs" / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None


@contextmanager
def _disk(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Retryable(f"cannot {what}: {error.strerror} ({error.filename}); free space or fix permissions, then try again") from error


def _never_started(number: int) -> JobStatus:
    """Of a first incarnation nothing is known, so that it may be submitted again; a later one is lost, as one that was killed is."""
    if number < 2:
        return JobStatus(state=JobState.ABSENT)
    reason = "it was submitted and never started (its launcher found the attempt taken, or the machine went down)"
    return JobStatus(state=JobState.ENDED, incarnation=number, outcome=Outcome.LOST, reason=reason)


def _proposal(ended: dict[str, Any]) -> Proposal | None:
    with contextlib.suppress(ValidationError):  # another version's words: then there is none
        return Proposal.model_validate(ended["proposal"]) if ended.get("proposal") else None
    return None


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or path == folder.resolve():
        raise Permanent(f"{name!r} names a place outside {folder}; only relative names below it are taken")
    return path


def _incarnations(run: Path) -> list[tuple[int, Path]]:
    return sorted((int(folder.name[1:]), folder) for folder in run.glob("i[0-9]*"))


def _events(folder: Path) -> Iterator[JobEvent]:
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / "events.jsonl").read_bytes().splitlines():
            with contextlib.suppress(ValidationError):  # the line that a kill tore
                yield JobEvent.model_validate_json(line)


def _tail(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def _last_lines(path: Path) -> str:
    return b" | ".join(line.strip() for line in _tail(path)[-3:]).decode(errors="replace")[-500:] or "no output"


def _status(folder: Path, number: int, state: JobState, outcome: Outcome | None = None, reason: str = "") -> JobStatus:
    step = total = 0
    for line in reversed(_tail(folder / "events.jsonl")):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            event = json.loads(line)
            if event["total"]:
                step, total = int(event["step"]), int(event["total"])
                break
    return JobStatus(state=state, incarnation=number, step=step, total=total, outcome=outcome, reason=reason)
