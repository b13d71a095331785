"""Runs one Python program in a sandbox (`rewards/code/cell.py`), and returns what it wrote. Linux only."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

CELL = Path(__file__).with_name("cell.py")
Isolation = Literal["namespaces", "process"]


class End(StrEnum):
    """How a program ended."""

    EXITED = "exited"
    """By itself, with any exit code or signal. Exceeding a limit of CPU time or memory is such an end."""
    TIME = "time"
    """It was killed at the limit of wall-clock time."""
    OUTPUT = "output"
    """It was killed because it wrote more than it may."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program."""

    seconds: float = 5.0
    """CPU time. The limit of wall-clock time is four times as long, and five seconds."""
    memory: int = 512 << 20
    """Bytes of address space."""
    output: int = 1 << 20
    """Bytes that it may write to standard output and as results."""
    files: int = 16 << 20
    """Bytes of one file. All files together may have four times as many."""

    @property
    def wall(self) -> float:
        """Limit of wall-clock time in seconds. It is wide, because the machine may be busy."""
        return 4 * self.seconds + 5


@dataclass(frozen=True)
class Run:
    """What a program did."""

    end: End
    status: int | None
    """Exit code, or the negative number of the signal. None if it was killed at a limit."""
    output: bytes
    """Standard output."""
    results: bytes
    """What it wrote to descriptor 3."""


class Unavailable(Exception):
    """The sandbox cannot be set up. The message gives the reason; it contains nothing of the program."""


def run_program(script: str, stdin: str, limits: Limits, isolation: Isolation) -> Run:
    """Run the Python code `script` with the text `stdin` as its input. Raises Unavailable if the isolation cannot be set up."""
    with tempfile.TemporaryDirectory(prefix="ratchet-code-", ignore_cleanup_errors=True) as folder:
        if os.geteuid() == 0:
            Path(folder).chmod(0o777 if isolation == "process" else 0o755)  # the program is another user
        with _cell(_spec(script, stdin, limits, isolation, folder)) as (cell, results):
            return _collect(cell, results, limits)


_proven: set[Isolation] = set()
"""Isolations with which a program has run. A failure is not kept, because a full machine may have caused it."""
_TRIES = 3


def unavailable(isolation: Isolation) -> str:
    """Return why this machine cannot run programs with this isolation; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "the sandbox needs Linux"
    reason = ""
    for _ in range(0 if isolation in _proven else _TRIES):
        try:
            run = run_program("import os; os.write(3, b'yes')", "", Limits(), isolation)
        except Unavailable as error:
            reason = str(error)
            continue
        if run.results == b"yes":
            _proven.add(isolation)
            return ""
        reason = f"a trivial program failed in the sandbox ({run.end}, status {run.status})"
    return reason


def _spec(script: str, stdin: str, limits: Limits, isolation: Isolation, folder: str) -> bytes:
    python = Path(sys.executable).resolve()
    spec = {
        "script": script,
        "stdin": stdin,
        "namespaces": isolation == "namespaces",
        "folder": folder,
        "python": str(python),
        "prefix": str(Path(sys.base_prefix).resolve()),
        "seconds": limits.seconds,
        "wall": limits.wall,
        "memory": limits.memory,
        "files": limits.files,
    }
    return json.dumps(spec).encode() + b"\n"


@contextmanager
def _cell(spec: bytes) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the supervisor, and yield it and the descriptor of the results. At the end, nothing of it is left."""
    results, writer = os.pipe()
    try:
        command = [sys.executable, "-I", "-S", "-B", str(CELL), str(writer)]
        cell = subprocess.Popen(
            command,
            env={"LANG": "C.UTF-8"},
            pass_fds=(writer,),
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except BaseException:
        os.close(results)
        raise
    finally:
        os.close(writer)
    try:
        with contextlib.suppress(BrokenPipeError):
            assert cell.stdin is not None
            cell.stdin.write(spec)
            cell.stdin.flush()
        yield cell, results
    finally:
        os.close(results)
        with contextlib.suppress(OSError):
            assert cell.stdin is not None
            cell.stdin.close()  # the supervisor then kills the program, if it still runs
        with contextlib.suppress(subprocess.TimeoutExpired):
            cell.wait(10)
        cell.kill()
        cell.wait()
        for pipe in (cell.stdout, cell.stderr):
            if pipe is not None:
                pipe.close()


def _collect(cell: subprocess.Popen[bytes], results: int, limits: Limits) -> Run:
    assert cell.stdout is not None
    assert cell.stderr is not None
    written: dict[int, bytearray] = {cell.stdout.fileno(): bytearray(), results: bytearray(), cell.stderr.fileno(): bytearray()}
    poll = select.poll()
    for descriptor in written:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    opened, end = set(written), time.monotonic() + limits.wall + 30
    killed = None
    while opened and killed is None:
        ready = poll.poll(max(0.0, end - time.monotonic()) * 1000)
        if not ready:
            raise Unavailable("the supervisor of the sandbox did not answer")
        for descriptor, _ in ready:
            chunk = os.read(descriptor, 1 << 16)
            written[descriptor] += chunk
            if not chunk:
                poll.unregister(descriptor)
                opened.discard(descriptor)
            elif len(written[descriptor]) > limits.output:
                killed = End.OUTPUT
    return _run_of(bytes(written[cell.stdout.fileno()]), bytes(written[results]), bytes(written[cell.stderr.fileno()]), killed)


def _run_of(output: bytes, results: bytes, report: bytes, killed: End | None) -> Run:
    first, _, rest = results.partition(b"\n")
    if killed is not None and first == b"ready":
        return Run(killed, None, output, rest)
    try:
        words = json.loads(report)
    except ValueError:
        raise Unavailable("the supervisor of the sandbox ended without a report") from None
    if first != b"ready":
        reason = words.get("refused") or first.decode(errors="replace").removeprefix("refused ")
        raise Unavailable(reason or f"the program did not start ({words})")
    return Run(End.TIME if words["killed"] else End.EXITED, None if words["killed"] else words["status"], output, rest)
