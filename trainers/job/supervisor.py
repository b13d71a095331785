"""Supervisor of a training job (process 1): starts the trainer, enforces its timeouts, publishes the model, and reports the outcome.

The supervisor derives the outcome from files, not from the trainer's exit code. It rejects a plan that was made for other code than
the installed code. Its own exit code is one of those in contracts/jobs/exit_codes.py; `ended.json` holds the same outcome with the reason.
It does not load torch.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Permanent, RatchetError
from ratchet.contracts.ids import checkpoint_name
from ratchet.contracts.jobs.exit_codes import Outcome, exit_code_of
from ratchet.contracts.jobs.training import Checkpoint, JobEvent, Method
from ratchet.contracts.model import model_ref
from ratchet.contracts.schema import stamped
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs.full_disk import full_disk_text, has_no_room, is_full_disk, release, reserve, write_result
from ratchet.runtime.jobs.job_protocol import (
    ARTIFACTS,
    BACKEND,
    GRACE,
    INCARNATION,
    LOCK_FD,
    PARENT,
    TIMEOUT,
    TRAINER,
    IncarnationFile,
    RunFile,
    TrainerBackend,
    beat_file,
    incarnation_folder,
    trainer_log,
)
from ratchet.runtime.jobs.run_folder import read_events
from ratchet.runtime.moments import this_moment
from ratchet.trainers import health as health_rules
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.job import parallel
from ratchet.trainers.job.job_folder import Job, JobResult, here, supervised

POLL = 0.1
"""Seconds between two checks of the trainer."""
RESERVE = 2.0
"""Seconds of the grace period reserved for the supervisor itself."""
READY_SECONDS = 60.0
"""Seconds after which a first incarnation that gets no reply from a judge ends, before it loads a model."""
LINGER_SECONDS = 5.0
"""Seconds that a trainer may run after a stop request once it has written its result."""
WORD_SECONDS, ECHO_SECONDS = 600.0, 8.0
"""Timeouts in seconds if the nodes share no file system.

The other nodes wait WORD_SECONDS after the last heartbeat of the first node for its result. If the first node fails, it waits
ECHO_SECONDS for the results of its peers, because its failure may be a consequence of theirs."""


class Wrapper:
    """Supervises one incarnation of a job from start to end."""

    def __init__(self, job: Job, artifacts: FolderArtifacts) -> None:
        self.job = job
        self.artifacts = artifacts
        self.recipe = supervised(job.plan)
        self.asked_at: float | None = None
        self.stalled = False
        self._steps: list[float] = []
        self._last = ""
        self._saves: list[float] = []
        self._patience = 0.0
        """Seconds for which judges may be away. They are part of the time without progress after which the run is stalled."""
        self._log, self._log_at = (-1, -1), time.monotonic()
        """Size and time of the event log when it last changed, and when this was seen."""
        self._resulted_at: float | None = None
        """When the result of the trainer was first seen."""
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, *_: object) -> None:
        self.asked_at = self.asked_at or time.monotonic()

    def run(self) -> JobResult:
        """Train and publish, and return the result.

        If an earlier incarnation has already published the checkpoint, return `DONE` without training.
        """
        if self._published_before():
            return JobResult(Outcome.DONE, "an earlier incarnation already published the checkpoint", self.recipe.last_step, {})
        self._check()
        reserve(self.job.folder)
        self.job.events.write("started", self.job.resume.step if self.job.resume else 0, **self._started())
        result = self._derive(*self._train())
        if result.outcome == Outcome.DONE:
            self._publish(result)
        return result

    def _started(self) -> dict[str, Any]:
        """The data of the first event: the plan, and the moment on this machine from which `Job.elapsed` counts."""
        begun = this_moment()
        return {"plan": self.job.plan.id, **({"boot": begun.boot, "up": begun.up} if begun.boot else {})}

    def _published_before(self) -> bool:
        """Whether an earlier incarnation has published. If so, bind its checkpoint to the name of this incarnation as well."""
        if bound := self._published():
            self.artifacts.bind(_name(self.job), bound)
        return bound is not None

    def _published(self) -> str | None:
        """The checkpoint that the newest publishing incarnation bound, or None."""
        numbers = range(self.job.incarnation, 0, -1)
        names = (checkpoint_name(self.job.plan.id, self.job.attempt, number) for number in numbers)
        return next(filter(None, map(self.artifacts.resolve, names)), None)

    def follow(self) -> JobResult:
        """Run the trainer on a node other than the first one, and return the result of the first node.

        This node writes no result and publishes nothing.
        """
        if self._published():
            return JobResult(Outcome.DONE, "an earlier incarnation already published the checkpoint", self.recipe.last_step, {})
        self._check()
        trainer, forwarded = self._spawn(), False
        try:
            while _wait(trainer) is None:
                if self.asked_at is not None and not forwarded:
                    forwarded = True
                    trainer.terminate()
        finally:
            _end(trainer)
        return self._said() or JobResult(Outcome.FAILED, "the ranks of this node ended, but the first node has reported no result", 0, {})

    def _said(self) -> JobResult | None:
        """The result of the first node or the failure of this node, if there is one.

        Without a shared file system, wait for the result, because it can arrive after the trainer of this node has ended.
        """
        beat, heard = b"", time.monotonic()
        while (result := self.job.result()) is None and parallel.apart() and self.asked_at is None:
            if time.monotonic() - heard > WORD_SECONDS:
                break
            time.sleep(POLL)
            with suppress(OSError):
                if (now := (self.job.folder / beat_file(0)).read_bytes()) != beat:
                    beat, heard = now, time.monotonic()
        return result

    def _check(self) -> None:
        plan = self.job.plan
        if plan.code != code_digest():
            raise Permanent(
                f"the plan was made for code {plan.code[:12]}, but {code_digest()[:12]} is installed; install that version, or plan again"
            )
        if plan.method == Method.GRPO:
            from ratchet.rewards.judge.job_verdicts import JobVerdicts
            from ratchet.rewards.scorer_set import planned_scorer_set

            judges = planned_scorer_set(plan, JobVerdicts(self.job.judge_tokens)).judges
            self._patience = max((judge.options.patience for judge in judges), default=0.0)
            resume = self.job.resume
            if resume is not None and resume.step >= self.recipe.last_step:
                return  # nothing is left to ask
            for judge in judges:
                judge.ready(READY_SECONDS if resume is None and self.job.attempt == 1 else self._patience)

    def _train(self) -> tuple[int, str | None]:
        """Run the trainer process to its end. Return its exit code, and the reason if the supervisor stopped it."""
        deadline = time.monotonic() + TIMEOUT.get(os.environ) - self.job.elapsed  # an invalid timeout fails before the training starts
        trainer = self._spawn()
        try:
            return self._watch(trainer, deadline)
        finally:
            _end(trainer)

    def _watch(self, trainer: subprocess.Popen[bytes], deadline: float) -> tuple[int, str | None]:
        forwarded, why = False, None
        while (code := _wait(trainer)) is None:
            if why is None and time.monotonic() > deadline:
                why = f"the attempt exceeded its timeout of {TIMEOUT.get(os.environ)} s"
            if why is None and (timeout := self._stalls()) is not None:
                self.stalled, why = (
                    True,
                    f"no progress{self._at_work()} for {timeout:.3g} s: the run is stalled",
                )
                self.job.events.write("warning", self._step(), rule="stall", reason=why)
            if why is not None:
                self.asked_at = self.asked_at or time.monotonic()
            if self.asked_at is not None and not forwarded:
                forwarded = True
                trainer.terminate()
            if self.asked_at is not None and time.monotonic() - self.asked_at > max(_grace() - RESERVE, 1.0):
                _kill(trainer)
            if self.asked_at is not None and self._lingers():
                _kill(trainer)
        return code, why

    def _lingers(self) -> bool:
        """Whether the trainer wrote its result more than LINGER_SECONDS ago. torchrun can then wait minutes for launchers on lost nodes."""
        if self._resulted_at is None and (self.job.folder / IncarnationFile.RESULT).exists():
            self._resulted_at = time.monotonic()
        return self._resulted_at is not None and time.monotonic() - self._resulted_at > LINGER_SECONDS

    def _spawn(self) -> subprocess.Popen[bytes]:
        lock = LOCK_FD.find(os.environ)
        with (self.job.folder / trainer_log(parallel.node())).open("ab") as log:
            return subprocess.Popen(
                parallel.launch_command(_module(self.job.plan.method), _grace() - RESERVE),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HF_HOME": str(self.job.run / RunFile.CACHE), **PARENT.to_env(os.getpid())},
                process_group=0,
                pass_fds=[] if lock is None else [lock],  # the trainer holds the attempt's lock even if the supervisor is killed
            )

    def _stalls(self) -> float | None:
        """The exceeded timeout in seconds if the run is stalled, otherwise None."""
        health = self.recipe.health
        if health.stall not in ("adjust", "stop"):
            return None
        sign = self.job.events.path.stat()
        if (sign.st_size, sign.st_mtime_ns) != self._log:
            self._log, self._log_at = (sign.st_size, sign.st_mtime_ns), time.monotonic()
            events = [event for event in self._events() if event.kind != "warning"]
            self._steps = [event.at for event in events if event.kind in ("progress", health_rules.FOLD)]
            self._last = events[-1].kind if events else ""
            self._saves = health_rules.seconds_of_saves(events)
        timeout = health_rules.stall_timeout(self._steps, health, self._last, self._saves) + self._patience
        return timeout if time.monotonic() - self._log_at > timeout else None

    def _at_work(self) -> str:
        """What the run does between two steps, for a message."""
        if self._last == health_rules.MEASURING:
            return " of the measurement"
        if self._last == health_rules.LOADING:
            return " in loading the model"
        return " of the save" if self._last in health_rules.BETWEEN_STEPS else ""

    def _step(self) -> int:
        """The last step that the trainer reported."""
        return max((event.step for event in self._events()), default=0)

    def _events(self) -> list[JobEvent]:
        return list(read_events(self.job.folder))

    def _derive(self, code: int, why: str | None) -> JobResult:
        result = self.job.result()
        if result is not None and result.outcome == Outcome.DONE:
            return result
        if parallel.apart() and parallel.nodes() > 1 and why is None and self.asked_at is None:
            result = self._not_an_echo(result)
        if why is not None:
            step, health = self._step(), self.recipe.health
            proposal = health_rules.proposed("stall", health.stall, self.job.adjustment.rules, step) if self.stalled else None
            return JobResult(Outcome.FAILED, why, step, {}, proposal)
        if result is not None:
            return result
        if self.asked_at is not None:
            return JobResult(Outcome.PREEMPTED, "asked to stop; the trainer wrote no checkpoint in time", 0, {})
        full = full_disk_text(self.job.folder) if has_no_room(self.job.folder) else ""
        if code < 0:
            return JobResult(Outcome.LOST, f"the trainer was killed by signal {-code}{f'; {full}' if full else ' (out of memory?)'}", 0, {})
        told = full or f"see {self.job.folder / trainer_log(0)}"
        return JobResult(Outcome.FAILED, f"the trainer left no result file (exit code {code}); {told}", 0, {})

    def _publish(self, result: JobResult) -> None:
        """Publish the model. The files come first, then the checkpoint, then its name, so that a bound checkpoint is always complete."""
        folder = self.job.folder / IncarnationFile.MODEL
        files, trained, adapter = self.artifacts.put_folder(folder), self.job.folder / IncarnationFile.ADAPTER, None
        if trained.exists():
            adapter = model_ref(trained, self.artifacts.put_folder(trained), self.job.plan.start.files)
        checkpoint = Checkpoint(
            plan=self.job.plan.id,
            attempt=self.job.attempt,
            incarnation=self.job.incarnation,
            step=result.step,
            files=files,
            model=model_ref(folder, files),
            metrics=result.metrics,
            adapter=adapter,
        )
        bound = self.artifacts.bind(_name(self.job), self.artifacts.put(stamped(checkpoint)))
        self.job.events.write("published", result.step, checkpoint=bound, files=files)
        for done_with in (folder, trained, self.job.folder / IncarnationFile.WORK):
            shutil.rmtree(done_with, ignore_errors=True)

    def _not_an_echo(self, own: JobResult | None) -> JobResult | None:
        """Return the result that explains a failure: that of a peer with a proposal or a permanent error, otherwise `own`.

        The failure of this node can be a consequence of a failure on a peer. So wait for the results of the peers for up to ECHO_SECONDS.
        """
        until = time.monotonic() + ECHO_SECONDS
        while own is None or (own.outcome is Outcome.FAILED and own.proposal is None):
            peers = self.job.results_elsewhere()
            weighty = [peer for peer in peers if peer.proposal or peer.outcome is Outcome.PERMANENT]
            if weighty or len(peers) >= parallel.nodes() - 1 or time.monotonic() > until:
                return next(iter([*weighty, *filter(None, [own]), *peers]), None)
            time.sleep(POLL)
        return own


def _module(method: Method) -> str:
    """The trainer module: that of another package, the NeMo RL trainer, or that of the method on TRL."""
    if module := TRAINER.find(os.environ):
        return module
    return "ratchet.trainers.job.nemo" if BACKEND.get(os.environ) is TrainerBackend.NEMO_RL else f"ratchet.trainers.job.trl.{method.value}"


def _name(job: Job) -> str:
    return checkpoint_name(job.plan.id, job.attempt, job.incarnation)


def _grace() -> float:
    """Grace period: seconds from SIGTERM to SIGKILL."""
    return GRACE.get(os.environ)


def _kill(trainer: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(trainer.pid, signal.SIGKILL)


def _end(trainer: subprocess.Popen[bytes]) -> None:
    """Kill the trainer and its processes if they still run, so that no training continues without supervision."""
    if trainer.poll() is None:
        _kill(trainer)
        trainer.wait()


def _wait(trainer: subprocess.Popen[bytes]) -> int | None:
    try:
        return trainer.wait(POLL)
    except subprocess.TimeoutExpired:
        return None


def main() -> int:
    """Run the supervisor and return its exit code. On the first node, `ended.json` is always written, as the last file."""
    folder = Path.cwd() / incarnation_folder(os.environ.get(INCARNATION.name, "0"))  # not parsed: an error is reported there, too
    try:
        job = here()
        wrapper = Wrapper(job, FolderArtifacts(ARTIFACTS.get(os.environ)))
        if parallel.node() > 0:
            return exit_code_of(wrapper.follow().outcome)
        result = wrapper.run()
        with suppress(OSError):  # the result file has the same
            job.events.write("stopped", result.step, outcome=result.outcome.value, reason=result.reason)
    except Permanent as error:
        result = JobResult(Outcome.PERMANENT, str(error), 0, {})
    except (RatchetError, OSError) as error:
        result = JobResult(Outcome.FAILED, full_disk_text(folder) if is_full_disk(error) else str(error), 0, {})
    except Exception as error:  # the outcome must be reported, but the error text may quote users
        place = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}"
        result = JobResult(Outcome.FAILED, full_disk_text(folder) if is_full_disk(error) else told, 0, {})
        with suppress(OSError):  # the log may be on the full disk
            traceback.print_exc()
    ended: dict[str, Any] = {"outcome": result.outcome.value, "reason": result.reason}
    if result.proposal is not None:
        ended["proposal"] = result.proposal.model_dump(mode="json")
    write_result(folder / IncarnationFile.ENDED, stamped(ended))
    release(folder)
    return exit_code_of(result.outcome)


if __name__ == "__main__":
    sys.exit(main())
