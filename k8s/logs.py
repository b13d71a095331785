"""What a job's newest incarnation has written, for a person to read: its trainers' logs on the volume, and what its pods said before or
beside them. It reads; where they come through a bucket, it lays them down as the executor does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from contracts.errors import Permanent, RatchetError, Retryable
from contracts.runfolder import disk, incarnations
from k8s.client import JOB, POD
from k8s.executor import KubernetesExecutor
from k8s.gang import GANG, RATCHET
from k8s.gangs import ENDED_PHASES, phase_of

SIZE = 65_536
"""Most bytes of one pod's log."""
MARK = 4096
"""Bytes at the end of what was told of a log, by which its place is found again."""


def newest_job(executor: KubernetesExecutor) -> str:
    """The one that was asked for last. Permanent where none ever was."""
    newest = max(((notes[-1].at, job) for job, notes in executor.notes.all() if notes), default=None)
    if newest is None:
        raise Permanent(f"line {executor.line} has had no job on this cluster yet")
    return newest[1]


def words(executor: KubernetesExecutor, name: str, lines: int, follow: bool, sleep: Callable[[float], None]) -> Iterator[str]:
    """The end of what each pod said that is still there, `pod: line` by line, and of the newest incarnation's logs on the volume,
    `iM/log: line`; with `follow`, what is added to those, what later incarnations write and what their pods said, until the job has
    ended."""
    if not executor.notes.of(name):
        raise Permanent(f"there is no job {name} on this cluster; without a name, the newest is shown")
    told: set[str] = set()
    read: dict[Path, tuple[int, bytes]] = {}
    while True:
        ended = not follow or _ended(executor, name)
        yield from _pods(executor, name, lines, told, ended)
        with disk(f"read the logs of {name}"):
            for path in _logs(executor, name, ended):
                text = path.read_bytes()
                whole = len(text) if ended else text.rfind(b"\n") + 1
                added = text[_after(text, *read[path]) : whole].splitlines() if path in read else text[:whole].splitlines()[-lines:]
                if added:
                    read[path] = (whole, text[:whole][-MARK:])
                yield from (f"{path.parent.name}/{path.name}: {line.decode(errors='replace')}" for line in added)
        if ended:
            return
        sleep(1)


def _pods(executor: KubernetesExecutor, name: str, lines: int, told: set[str], ended: bool) -> Iterator[str]:
    """What pods said that have not been `told`. One without a log may be starting: it is asked again, until the job has `ended`."""
    space = executor.settings.namespace
    try:
        pods = executor.cluster.list(POD, space, {**RATCHET, GANG: executor.notes.of(name)[-1].name}).items
    except Retryable:
        if ended:
            raise
        pods = []  # the server is away: asked again
    for pod in pods:
        called, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if uid in told:
            continue
        try:
            said = executor.cluster.log(called, space, lines, SIZE).splitlines()
        except RatchetError as error:
            said = [f"no log: {error}"] if ended else []
        told |= {uid} if said else set()
        yield from (f"{called}: {line}" for line in said)


def _after(text: bytes, at: int, told: bytes) -> int:
    """Where what was not told begins: `at`, if `told` ends there. Of a long log that came through a bucket only the end is there, and that
    moves on."""
    if text[:at].endswith(told):
        return at
    found = text.rfind(told)
    return found + len(told) if found >= 0 else 0


def _logs(executor: KubernetesExecutor, name: str, ended: bool) -> list[Path]:
    spec = executor.folders.spec(name)
    if spec:
        with contextlib.suppress(*() if ended else (Retryable,)):  # asked again
            executor.pull(executor.folders.run(spec), fresh=ended)
    folders = incarnations(executor.folders.run(spec)) if spec else []
    return sorted(folders[-1][1].glob("*.log")) if folders else []


def _ended(executor: KubernetesExecutor, name: str) -> bool:
    """Asked of the server, and not of the executor: who reads a log takes nothing away."""
    note = executor.notes.of(name)[-1]
    with contextlib.suppress(Retryable):
        job = None if note.ended else executor.cluster.get(JOB, note.name, executor.settings.namespace)
        return job is None or phase_of(job) in ENDED_PHASES
    return False
