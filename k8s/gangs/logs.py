"""Logs of a job's newest incarnation for operators: trainer logs from the volume, and pod output from the API server.

Reads only. With a bucket, it downloads the run's small files in the same way as the executor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ratchet.contracts.errors import Permanent, RatchetError, Retryable
from ratchet.k8s.api.client import JOB, POD
from ratchet.k8s.gangs.executor import KubernetesExecutor
from ratchet.k8s.gangs.gang_state import ENDED_PHASES, phase_of
from ratchet.k8s.manifests.gang_manifest import GANG, RATCHET
from ratchet.runtime.jobs.job_files import BadJobFile, read_tail
from ratchet.runtime.jobs.run_folder import disk, incarnations

SIZE = 65_536
"""Maximum bytes of one pod's log."""
LOG_BYTES = 64 << 20
"""Maximum bytes of a log in the run folder that are read, from its end."""
MARK = 4096
"""Number of bytes from the end of the shown part of a log that are kept to find the position again."""


def newest_job(executor: KubernetesExecutor) -> str:
    """Return the job that was submitted last. Raises Permanent if there has been none."""
    newest = max(((submissions[-1].at, job) for job, submissions in executor.submissions.all() if submissions), default=None)
    if newest is None:
        raise Permanent(f"line {executor.line} has had no job on this cluster yet")
    return newest[1]


def log_lines(executor: KubernetesExecutor, name: str, lines: int, follow: bool, sleep: Callable[[float], None]) -> Iterator[str]:
    """Yield the last `lines` lines of each pod's output as `pod: line`, and of each log of the newest incarnation as `iM/log: line`.

    Pods that no longer exist are left out. With `follow`, also yield new lines of the logs, the logs of later incarnations and the
    output of their pods until the job has ended. `sleep` waits for the given seconds between two rounds. Raises Permanent for an
    unknown job.
    """
    if not executor.submissions.of(name):
        raise Permanent(f"there is no job {name} on this cluster; omit the name to show the newest job")
    shown: set[str] = set()
    read: dict[Path, tuple[int, bytes]] = {}
    while True:
        ended = not follow or _ended(executor, name)
        yield from _pods(executor, name, lines, shown, ended)
        with disk(f"read the logs of {name}"):
            for path in _logs(executor, name, ended):
                text = _text(path)
                whole = len(text) if ended else text.rfind(b"\n") + 1
                added = text[_after(text, *read[path]) : whole].splitlines() if path in read else text[:whole].splitlines()[-lines:]
                if added:
                    read[path] = (whole, text[:whole][-MARK:])
                yield from (f"{path.parent.name}/{path.name}: {line.decode(errors='replace')}" for line in added)
        if ended:
            return
        sleep(1)


def _pods(executor: KubernetesExecutor, name: str, lines: int, shown: set[str], ended: bool) -> Iterator[str]:
    """Yield the output of pods that are not in `shown`. A pod without a log may be starting and is retried until the job has `ended`."""
    space = executor.settings.namespace
    try:
        pods = executor.cluster.list(POD, space, {**RATCHET, GANG: executor.submissions.of(name)[-1].name}).items
    except Retryable:
        if ended:
            raise
        pods = []  # the server is away: retry in the next round
    for pod in pods:
        pod_name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if uid in shown:
            continue
        try:
            output = executor.cluster.log(pod_name, space, lines, SIZE).splitlines()
        except RatchetError as error:
            output = [f"no log: {error}"] if ended else []
        shown |= {uid} if output else set()
        yield from (f"{pod_name}: {line}" for line in output)


def _after(text: bytes, at: int, shown: bytes) -> int:
    """Return the position of the first byte that was not shown: `at` if `shown` ends there.

    Otherwise search for `shown`. With a bucket, only the end of a long log is available, so positions shift.
    """
    if text[:at].endswith(shown):
        return at
    found = text.rfind(shown)
    return found + len(shown) if found >= 0 else 0


def _logs(executor: KubernetesExecutor, name: str, ended: bool) -> list[Path]:
    spec = executor.folders.spec(name)
    if spec:
        with contextlib.suppress(*() if ended else (Retryable,)):  # retried in the next round
            executor.pull(executor.folders.run(spec), fresh=ended)
    folders = incarnations(executor.folders.run(spec), executor.submissions.highest(name)) if spec else []
    return sorted(folders[-1][1].glob("*.log")) if folders else []


def _text(path: Path) -> bytes:
    """Return the last LOG_BYTES of a log; none if it is not a regular file."""
    with contextlib.suppress(BadJobFile):
        return read_tail(path, LOG_BYTES)
    return b""


def _ended(executor: KubernetesExecutor, name: str) -> bool:
    """Return whether the job has ended, according to the API server.

    This is one request, whereas the executor would list and watch all objects of the namespace.
    """
    submission = executor.submissions.of(name)[-1]
    with contextlib.suppress(Retryable):
        job = None if submission.ended else executor.cluster.get(JOB, submission.name, executor.settings.namespace)
        return job is None or phase_of(job) in ENDED_PHASES
    return False
