"""Process 1 of a pod whose gang has no shared file system: brings what the job reads from the bucket to the pod's own disk (inbound.py),
runs the job's process (trainers/inside/pod.py) there, and sends to the bucket what others read (outbound.py).

The job sees folders as on a shared volume and knows nothing of it. It judges nothing: its exit code is the job's.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from contracts.cluster import BucketSettings
from contracts.errors import Permanent, Retryable
from contracts.exits import PERMANENT, PREEMPTED, STOPPED, Outcome
from contracts.runfolder import BEAT, BEAT_SECONDS
from k8s import inbound
from k8s.bucket import Bucket
from k8s.outbound import Outbound
from k8s.place import Place

LOOK_SECONDS = 2.0
"""Between two looks at what is to be sent."""
PATIENCE = 600.0
"""Seconds after its first failure for which a bucket is asked again, at the start and at the end, while nothing arrives."""
SHARE, RESERVE = 0.6, 4.0
"""Of a stopped pod's grace, how much the job has for its checkpoint; and the seconds that are kept for the last word."""


class Patience:
    """With a bucket that fails: it counts from the first failure after something arrived."""

    def __init__(self, place: Place) -> None:
        self.place, self.moved = place, place.moved
        self.failing: float | None = None

    def ends(self) -> bool:
        """Asked at each failure."""
        if self.place.moved != self.moved:
            self.moved, self.failing = self.place.moved, None
        self.failing = self.failing or time.monotonic()
        return time.monotonic() - self.failing > PATIENCE


class Staging:
    """One pod's life."""

    def __init__(self, environment: Mapping[str, str], bucket: Bucket, run: Path) -> None:
        self.environment = environment
        self.place = Place(environment, bucket, run)
        self.outbound = Outbound(self.place, self._say)
        self.child: subprocess.Popen[bytes] | None = None
        self.attended = threading.Event()
        """The job's process runs, and beats."""
        self.done = threading.Event()
        """It has ended."""
        self.sent = threading.Event()
        """Everything that it left is in the bucket."""
        self.over = threading.Event()
        self.deadline = math.inf
        """When sending ends, in our own clock, once the pod was told to stop."""
        self.problem = ""
        self.lost: Retryable | None = None
        """Why sending was given up."""

    def live(self, command: list[str]) -> int:
        """The pod's exit code."""
        signal.signal(signal.SIGTERM, _stop)  # nothing is lost yet
        self._keep(BEAT_SECONDS, self.beat, self.over)
        try:
            try:
                self._until(lambda: inbound.bring(self.place))
                self._until(lambda: inbound.bring_past(self.place))
            except Permanent as error:
                sys.stderr.write(f"{error}\n")
                return PERMANENT
            code = self._attend(command)
            return code if self._finish() else STOPPED
        except Exception:  # whatever it is, the training did not fail, and the gang starts anew
            traceback.print_exc()
            return PREEMPTED
        finally:
            self.over.set()

    def _attend(self, command: list[str]) -> int:
        """Runs the job's process to its end. Of the time that a stopped pod has, the job has the first part."""
        signal.signal(signal.SIGTERM, self._hear)
        given = {**self.environment, "RATCHET_APART": "1", "RATCHET_GRACE": str(self.place.grace * SHARE)}
        self.child = subprocess.Popen(command, cwd=self.place.run, env=given)
        if math.isfinite(self.deadline):
            self.child.terminate()
        self.attended.set()
        words = self._keep(LOOK_SECONDS, self.outbound.words, self.done)
        threading.Thread(target=self._send, daemon=True).start()
        code = self.child.wait()
        self.attended.clear()
        self.done.set()
        words.join(max(0.0, self.deadline - time.monotonic()) if math.isfinite(self.deadline) else None)
        return 128 - code if code < 0 else code

    def _hear(self, *_: object) -> None:
        self.deadline = min(self.deadline, time.monotonic() + self.place.grace - RESERVE)
        if self.child is not None:
            self.child.terminate()

    def _send(self) -> None:
        """What is large, as it comes; to the last when the job has ended."""
        patience = Patience(self.place)
        while not self.sent.is_set():
            last, more = self.done.is_set(), True
            try:
                more = self.outbound.bulk()
                patience.failing = None
            except Exception as error:
                self._say(str(error) or type(error).__name__)
                if patience.ends() and last:
                    self.lost = Retryable(self.problem)
                    return
                time.sleep(LOOK_SECONDS)
            if last and not more:
                self.sent.set()
            self.done.wait(LOOK_SECONDS / 2)

    def _finish(self) -> bool:
        """What is left, the last word last. Where the pod was stopped and its grace ends, what is still on its way is given up; False: that
        was the trained model, and the job's word that it is done is kept back. Retryable where nothing arrives for too long."""
        while not self.sent.wait(0.2) and time.monotonic() < self.deadline:
            if self.lost:
                raise self.lost
        self._until(lambda: self.outbound.words(last=True))
        if not self.sent.is_set() and self.outbound.outcome() is Outcome.DONE:
            return False
        self._until(self.outbound.last_word)
        return True

    def beat(self) -> None:
        """While the job's own process does not: what it reads or leaves may take minutes on its way."""
        if not self.attended.is_set():
            now = int(time.monotonic() / BEAT_SECONDS)
            word = json.dumps({"beat": -now, "host": os.uname().nodename}).encode()
            self.place.bucket.put(self.place.key(self.place.folder / f"{BEAT}{self.place.node}"), word)

    def _keep(self, seconds: float, work: Callable[[], None], end: threading.Event) -> threading.Thread:
        """Does the work again and again, in a thread of its own, until the end. What fails is said once and tried again."""

        def run() -> None:
            while not end.wait(seconds):
                try:
                    work()
                except Exception as error:
                    self._say(str(error) or type(error).__name__)

        thread = threading.Thread(target=run, daemon=True, name=work.__name__)
        thread.start()
        return thread

    def _until(self, work: Callable[[], object]) -> None:
        """Does it, and where the bucket is away, again; Retryable where nothing arrives for too long."""
        patience = Patience(self.place)
        while True:
            try:
                work()
                return
            except Retryable as error:
                self._say(str(error))
                if patience.ends():
                    raise
                time.sleep(LOOK_SECONDS)

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            sys.stderr.write(problem + "\n")


def _stop(*_: object) -> None:
    raise SystemExit(STOPPED)


def main() -> int:
    os.umask(0o077)  # a job's files hold what users said
    bucket = Bucket(BucketSettings.model_validate_json(os.environ["RATCHET_BUCKET"]))
    return Staging(os.environ, bucket, Path.cwd()).live([sys.executable, "-m", "trainers.inside.pod"])


def leave(code: int) -> NoReturn:
    """At once: what was given up may still be on its way in threads of the SDK, which an ordinary end waits for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
