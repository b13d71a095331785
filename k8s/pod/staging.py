"""Process 1 of a pod whose gang has no shared file system.

It downloads the job's inputs to the pod's own disk (`download.py`), runs the job's process there (`trainers/job/pod_entrypoint.py`), and
uploads the job's output (`upload.py`). The job sees the same folders as on a shared volume. The exit code is the job's.
"""

from __future__ import annotations

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

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.jobs.exit_codes import PERMANENT, PREEMPTED, STOPPED, Outcome
from ratchet.k8s.pod import download
from ratchet.k8s.pod.pod_context import PodContext
from ratchet.k8s.pod.upload import Outbound
from ratchet.runtime.bucket import Bucket
from ratchet.runtime.jobs.gang_member import heartbeat
from ratchet.runtime.jobs.job_protocol import APART, BEAT_SECONDS, BUCKET, GRACE, beat_file

POLL_SECONDS = 2.0
"""Seconds between two checks for files to upload, and between retries."""
FAILURE_SECONDS = 600.0
"""Timeout in seconds after the first failure of the bucket, at the start and at the end. Any transferred file resets it."""
SHARE, RESERVE = 0.6, 4.0
"""Fraction of a stopped pod's grace period that the job has for its checkpoint, and the seconds that are reserved for the end marker."""


class FailureTimeout:
    """Timeout for a failing bucket. It counts from the first failure after the last transferred file."""

    def __init__(self, place: PodContext) -> None:
        self.place, self.moved = place, place.moved
        self.failing: float | None = None

    def ends(self) -> bool:
        """Record a failure and return whether the timeout has expired."""
        if self.place.moved != self.moved:
            self.moved, self.failing = self.place.moved, None
        self.failing = self.failing or time.monotonic()
        return time.monotonic() - self.failing > FAILURE_SECONDS


class Staging:
    """Runs one pod: download, job process and upload."""

    def __init__(self, environment: Mapping[str, str], bucket: Bucket, run: Path) -> None:
        self.environment = environment
        self.place = PodContext(environment, bucket, run)
        self.outbound = Outbound(self.place, self._say)
        self.child: subprocess.Popen[bytes] | None = None
        self.attended = threading.Event()
        """Set while the job's process runs and sends heartbeats itself."""
        self.done = threading.Event()
        """Set when the job's process has ended."""
        self.sent = threading.Event()
        """Set when all its files are in the bucket."""
        self.over = threading.Event()
        """Set when the pod's run is over."""
        self.deadline = math.inf
        """End of uploads after the pod was told to stop, by the monotonic clock."""
        self.problem = ""
        """Last reported problem; the same one is not reported twice in a row."""
        self.lost: Retryable | None = None
        """Error for which the upload was given up."""

    def live(self, command: list[str]) -> int:
        """Run the pod to its end and return its exit code."""
        signal.signal(signal.SIGTERM, _stop)  # before the job starts, nothing needs to be saved
        self._keep(BEAT_SECONDS, self.beat, self.over)
        try:
            try:
                self._until(lambda: download.bring(self.place))
                self._until(lambda: download.bring_past(self.place))
            except Permanent as error:
                sys.stderr.write(f"{error}\n")
                return PERMANENT
            code = self._attend(command)
            return code if self._finish() else STOPPED
        except Exception:  # any error here is not a failure of the training, so the gang must restart
            traceback.print_exc()
            return PREEMPTED
        finally:
            self.over.set()

    def _attend(self, command: list[str]) -> int:
        """Run the job's process to its end. After SIGTERM, it has the first part of the pod's grace period."""
        signal.signal(signal.SIGTERM, self._hear)
        given = {**self.environment, **APART.to_env(True), **GRACE.to_env(self.place.grace * SHARE)}
        self.child = subprocess.Popen(command, cwd=self.place.run, env=given)
        if math.isfinite(self.deadline):
            self.child.terminate()
        self.attended.set()
        small_files = self._keep(POLL_SECONDS, self.outbound.upload_small_files, self.done)
        threading.Thread(target=self._send, daemon=True).start()
        code = self.child.wait()
        self.attended.clear()
        self.done.set()
        small_files.join(max(0.0, self.deadline - time.monotonic()) if math.isfinite(self.deadline) else None)
        return 128 - code if code < 0 else code

    def _hear(self, *_: object) -> None:
        self.deadline = min(self.deadline, time.monotonic() + self.place.grace - RESERVE)
        if self.child is not None:
            self.child.terminate()

    def _send(self) -> None:
        """Upload steps and artifacts as they appear, until all are uploaded after the job's end."""
        timeout = FailureTimeout(self.place)
        while not self.sent.is_set():
            last, more = self.done.is_set(), True
            try:
                more = self.outbound.bulk()
                timeout.failing = None
            except Exception as error:
                self._say(str(error) or type(error).__name__)
                if timeout.ends() and last:
                    self.lost = Retryable(self.problem)
                    return
                time.sleep(POLL_SECONDS)
            if last and not more:
                self.sent.set()
            self.done.wait(POLL_SECONDS / 2)

    def _finish(self) -> bool:
        """Upload the remaining files and then the end marker.

        If a stopped pod's grace period ends first, remaining steps and artifacts are given up. Returns False if the trained model is
        among them; then the end marker is not uploaded. Raises Retryable if the bucket fails for longer than the timeout.
        """
        while not self.sent.wait(0.2) and time.monotonic() < self.deadline:
            if self.lost:
                raise self.lost
        self._until(lambda: self.outbound.upload_small_files(last=True))
        if not self.sent.is_set() and self.outbound.outcome() is Outcome.DONE:
            return False
        self._until(self.outbound.upload_end_marker)
        return True

    def beat(self) -> None:
        """Send a heartbeat while the job's own process does not run, because downloads and uploads may take minutes."""
        if not self.attended.is_set():
            now = int(time.monotonic() / BEAT_SECONDS)
            self.place.bucket.put(self.place.key(self.place.folder / beat_file(self.place.node)), heartbeat(-now))

    def _keep(self, seconds: float, work: Callable[[], None], end: threading.Event) -> threading.Thread:
        """Repeat the work in its own thread every `seconds` until `end` is set. Errors are reported once and the work is retried."""

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
        """Do the work and repeat it while the bucket fails. Raises Retryable if it fails for longer than the timeout."""
        timeout = FailureTimeout(self.place)
        while True:
            try:
                work()
                return
            except Retryable as error:
                self._say(str(error))
                if timeout.ends():
                    raise
                time.sleep(POLL_SECONDS)

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            sys.stderr.write(problem + "\n")


def _stop(*_: object) -> None:
    raise SystemExit(STOPPED)


def main() -> int:
    """Run the pod with the settings from its environment and return its exit code."""
    os.umask(0o077)  # a job's files contain user data
    bucket = Bucket(BUCKET.get(os.environ))
    return Staging(os.environ, bucket, Path.cwd()).live([sys.executable, "-m", "ratchet.trainers.job.pod_entrypoint"])


def leave(code: int) -> NoReturn:
    """Exit at once. Threads of the SDK may still be uploading files that were given up, and a normal exit would wait for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
