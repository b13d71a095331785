"""Process 1 of a training job: starts the trainer, watches over its time, publishes what it made, and says how it ended.

It judges by files, never by the trainer's exit code, and loads no torch. It refuses a plan that other code than the
installed one was planned for. Its own exit code is one of contracts/exits.py; `ended.json` says the same in words.
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

from contracts.errors import Permanent, RatchetError
from contracts.exits import DONE, FAILURE, PERMANENT, PREEMPTED, Outcome
from contracts.files import FolderArtifacts, write_atomic
from contracts.ids import canonical, checkpoint_name
from contracts.model import model_ref
from contracts.runfolder import BEAT
from contracts.training import Checkpoint, Method
from trainers import health as health_rules
from trainers.code import code_digest
from trainers.inside import events, parallel
from trainers.inside.job import Job, Result, here
from trainers.recipes import KINDS

CODES = {Outcome.DONE: DONE, Outcome.PREEMPTED: PREEMPTED, Outcome.PERMANENT: PERMANENT, Outcome.FAILED: FAILURE, Outcome.LOST: 137}
POLL = 0.1
"""Seconds between two looks at the trainer."""
RESERVE = 2.0
"""Seconds of the grace that we keep for ourselves."""
LINGER_SECONDS = 5.0
"""How long a trainer that was asked to stop may live on after its last word."""
WORD_SECONDS, ECHO_SECONDS = 600.0, 8.0
"""Where the nodes share no file system: how long the others wait for the first one's word after its last heartbeat, and how long a failure
of the first waits for a peer's word, whose echo it may be."""


class Wrapper:
    """One incarnation from start to end."""

    def __init__(self, job: Job, artifacts: FolderArtifacts) -> None:
        self.job = job
        self.artifacts = artifacts
        self.recipe = job.recipe(KINDS[job.plan.method])
        self.asked_at: float | None = None
        self.stalled = False
        self._steps: list[float] = []
        self._last = ""
        self._saves: list[float] = []
        self._read_at = -1.0
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, *_: object) -> None:
        self.asked_at = self.asked_at or time.monotonic()

    def run(self) -> Result:
        """Trains and publishes, or finds that an earlier incarnation has."""
        if self._published_before():
            return Result(Outcome.DONE, "an earlier incarnation had published the checkpoint", self.recipe.steps, {})
        self._check()
        self.job.events.write("started", self.job.resume.step if self.job.resume else 0, plan=self.job.plan.id)
        result = self._derive(*self._train())
        if result.outcome == Outcome.DONE:
            self._publish(result)
        return result

    def _published_before(self) -> bool:
        """Whether an earlier incarnation published before this one began: then this one, which counts now, vouches for it."""
        if bound := self._published():
            self.artifacts.bind(_name(self.job), bound)
        return bound is not None

    def _published(self) -> str | None:
        """What the newest incarnation bound that published."""
        numbers = range(self.job.incarnation, 0, -1)
        names = (checkpoint_name(self.job.plan.id, self.job.attempt, number) for number in numbers)
        return next(filter(None, map(self.artifacts.resolve, names)), None)

    def follow(self) -> Result:
        """On another node than the first: trains along, and says what the first one's result is. It writes and judges nothing."""
        if self._published():
            return Result(Outcome.DONE, "an earlier incarnation had published the checkpoint", self.recipe.steps, {})
        self._check()
        trainer, forwarded = self._spawn(), False
        try:
            while _wait(trainer) is None:
                if self.asked_at is not None and not forwarded:
                    forwarded = True
                    trainer.terminate()
        finally:
            _end(trainer)
        return self._said() or Result(Outcome.FAILED, "the ranks of this node ended before the first node's said how", 0, {})

    def _said(self) -> Result | None:
        """The first node's result, or our own failure. Where the nodes share no file system it may come a while after our end."""
        beat, heard = b"", time.monotonic()
        while (result := self.job.result()) is None and parallel.apart() and self.asked_at is None:
            if time.monotonic() - heard > WORD_SECONDS:
                break
            time.sleep(POLL)
            with suppress(OSError):
                if (now := (self.job.folder / f"{BEAT}0").read_bytes()) != beat:
                    beat, heard = now, time.monotonic()
        return result

    def _check(self) -> None:
        plan = self.job.plan
        if plan.code != code_digest():
            raise Permanent(
                f"the plan was made for code {plan.code[:12]}, installed is {code_digest()[:12]}; install that version, or plan again"
            )
        if plan.method == Method.GRPO:
            from rewards.panel import planned_panel

            planned_panel(plan)

    def _train(self) -> tuple[int, str | None]:
        """Runs the trainer process to its end: its return code, and why we stopped it, if we did."""
        deadline = self.job.began + float(os.environ.get("RATCHET_TIMEOUT", "inf"))  # whatever can fail here fails before it trains
        trainer = self._spawn()
        try:
            return self._watch(trainer, deadline)
        finally:
            _end(trainer)

    def _watch(self, trainer: subprocess.Popen[bytes], deadline: float) -> tuple[int, str | None]:
        forwarded, why = False, None
        while (code := _wait(trainer)) is None:
            if why is None and time.time() > deadline:
                why = f"the attempt's time of {os.environ['RATCHET_TIMEOUT']} s is over"
            if why is None and (patience := self._stalls()) is not None:
                self.stalled, why = (
                    True,
                    f"no sign{' of the save' if self._last in health_rules.WRITING else ''} for {patience:.3g} s: it stalls",
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
        """Whether the trainer said its last word a while ago: torchrun then waits, for minutes, for launchers of nodes that are gone."""
        with suppress(FileNotFoundError):
            return time.time() - (self.job.folder / "result.json").stat().st_mtime > LINGER_SECONDS
        return False

    def _spawn(self) -> subprocess.Popen[bytes]:
        lock = os.environ.get("RATCHET_LOCK_FD")
        with (self.job.folder / f"trainer{parallel.node() or ''}.log").open("ab") as log:
            return subprocess.Popen(
                parallel.command(_module(self.job.plan.method), _grace() - RESERVE),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HF_HOME": str(self.job.run / "cache"), parallel.PARENT: str(os.getpid())},
                process_group=0,
                pass_fds=[int(lock)] if lock else [],  # who trains holds the attempt's lock, even if we are killed
            )

    def _stalls(self) -> float | None:
        """The seconds without a sign that were too many, if they were."""
        health = self.recipe.health
        if health.stall not in ("adjust", "stop"):
            return None
        sign = self.job.events.path.stat().st_mtime
        if sign != self._read_at:
            self._read_at = sign
            told = [event for event in self._events() if event["kind"] != "warning"]
            self._steps = [float(event["at"]) for event in told if event["kind"] == "progress"]
            self._last = str(told[-1]["kind"]) if told else ""
            self._saves = health_rules.seconds_of_saves(told)
        patience = health_rules.patience_for_a_step(self._steps, health, self._last, self._saves)
        return patience if time.time() - sign > patience else None

    def _step(self) -> int:
        """The last step that the trainer told of."""
        return max((int(event["step"]) for event in self._events()), default=0)

    def _events(self) -> list[dict[str, Any]]:
        return events.read(self.job.events.path)

    def _derive(self, code: int, why: str | None) -> Result:
        result = self.job.result()
        if result is not None and result.outcome == Outcome.DONE:
            return result
        if parallel.apart() and parallel.nodes() > 1 and why is None and self.asked_at is None:
            result = self._not_an_echo(result)
        if why is not None:
            step, health = self._step(), self.recipe.health
            proposal = health_rules.proposed("stall", health.stall, self.job.adjustment.rules, step) if self.stalled else None
            return Result(Outcome.FAILED, why, step, {}, proposal)
        if result is not None:
            return result
        if self.asked_at is not None:
            return Result(Outcome.PREEMPTED, "asked to stop; no checkpoint could be made in time", 0, {})
        if code < 0:
            return Result(Outcome.LOST, f"the trainer was killed by signal {-code} (out of memory?)", 0, {})
        return Result(Outcome.FAILED, f"the trainer left no result (exit code {code}); see {self.job.folder / 'trainer.log'}", 0, {})

    def _publish(self, result: Result) -> None:
        """Files first, then the checkpoint, then its name: what is bound is whole."""
        folder = self.job.folder / "model"
        files = self.artifacts.put_folder(folder)
        checkpoint = Checkpoint(
            plan=self.job.plan.id,
            attempt=self.job.attempt,
            incarnation=self.job.incarnation,
            step=result.step,
            files=files,
            model=model_ref(folder, files),
            metrics=result.metrics,
        )
        bound = self.artifacts.bind(_name(self.job), self.artifacts.put(canonical(checkpoint)))
        self.job.events.write("published", result.step, checkpoint=bound, files=files)
        for done_with in (folder, self.job.folder / "work"):
            shutil.rmtree(done_with, ignore_errors=True)

    def _not_an_echo(self, own: Result | None) -> Result | None:
        """Where a peer's trainer failed for what the next attempt can mend, or what none can, that is the reason, and what we felt of it is
        not."""
        until = time.monotonic() + ECHO_SECONDS
        while own is None or (own.outcome is Outcome.FAILED and own.proposal is None):
            peers = self.job.results_elsewhere()
            weighty = [peer for peer in peers if peer.proposal or peer.outcome is Outcome.PERMANENT]
            if weighty or len(peers) >= parallel.nodes() - 1 or time.monotonic() > until:
                return next(iter([*weighty, *filter(None, [own]), *peers]), None)
            time.sleep(POLL)
        return own


def _module(method: Method) -> str:
    """What trains: TRL's process for the method, or the cluster's."""
    return "trainers.inside.nemo" if os.environ.get("RATCHET_BACKEND") == "nemo-rl" else f"trainers.inside.{method.value}"


def _name(job: Job) -> str:
    return checkpoint_name(job.plan.id, job.attempt, job.incarnation)


def _grace() -> float:
    """Seconds from SIGTERM to SIGKILL."""
    return float(os.environ.get("RATCHET_GRACE", "30"))


def _kill(trainer: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(trainer.pid, signal.SIGKILL)


def _end(trainer: subprocess.Popen[bytes]) -> None:
    """Nobody trains on when nobody watches: whatever became of us, the trainer and its processes end."""
    if trainer.poll() is None:
        _kill(trainer)
        trainer.wait()


def _wait(trainer: subprocess.Popen[bytes]) -> int | None:
    try:
        return trainer.wait(POLL)
    except subprocess.TimeoutExpired:
        return None


def main() -> int:
    """The exit code; every way out leaves ended.json, written last."""
    folder = Path.cwd() / f"i{os.environ.get('RATCHET_INCARNATION', '0')}"
    try:
        job = here()
        root = os.environ.get("RATCHET_ARTIFACTS")
        if not root:
            raise Permanent("RATCHET_ARTIFACTS is not set; the executor names the folder that checkpoints go to")
        wrapper = Wrapper(job, FolderArtifacts(Path(root)))
        if parallel.node() > 0:
            return CODES[wrapper.follow().outcome]
        result = wrapper.run()
        job.events.write("stopped", result.step, outcome=result.outcome.value, reason=result.reason)
    except Permanent as error:
        result = Result(Outcome.PERMANENT, str(error), 0, {})
    except (RatchetError, OSError) as error:
        result = Result(Outcome.FAILED, str(error), 0, {})
    except Exception as error:  # nobody foresaw it, but the attempt's end must be known; what it says may be of users' texts
        place = traceback.extract_tb(error.__traceback__)[-1]
        result = Result(Outcome.FAILED, f"{type(error).__name__} in {Path(place.filename).name}, line {place.lineno}", 0, {})
        traceback.print_exc()
    ended: dict[str, Any] = {"outcome": result.outcome.value, "reason": result.reason}
    if result.proposal is not None:
        ended["proposal"] = result.proposal.model_dump(mode="json")
    write_atomic(folder / "ended.json", canonical(ended))
    return CODES[result.outcome]


if __name__ == "__main__":
    sys.exit(main())
