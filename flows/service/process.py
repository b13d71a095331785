"""The process that serves an installation: its lock, and the record by which other commands find it and its signs of life."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import psutil
from pydantic import AwareDatetime, ValidationError

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import canonical
from ratchet.contracts.model import Frozen
from ratchet.flows.config.home import Home
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.process_identity import is_running, process_identity

BEAT_SECONDS = 10.0
"""Seconds between two signs of life."""

SILENT_SECONDS = 60.0
"""Seconds without a sign of life after which a running service counts as hanging."""


class Beat(Protocol):
    """Gives a sign of life, at most one every BEAT_SECONDS seconds unless a text about a trouble changes."""

    def __call__(self, trouble: str, prefect_trouble: str = "", waits_for: str | None = None) -> None:
        """`trouble` is why the lines are not kept, `prefect_trouble` why Prefect cannot be used; empty if there is none.

        `waits_for` is as in `Sign`.
        """


class Sign(Frozen):
    """The newest sign of life of a serving process."""

    pid: int
    identity: str | None
    at: AwareDatetime
    place: str = ""
    """The host and the process namespace in which `pid` is valid; empty if unknown."""
    prefect: str = ""
    """Address of the Prefect API that the process uses; empty before it is known."""
    trouble: str = ""
    """Why the process cannot work on its lines."""
    prefect_trouble: str = ""
    """Why the process cannot use the Prefect server."""
    stopped: bool = False
    """Whether an operator stopped the process."""
    waits_for: str | None = None
    """The pod whose place the process waits to take; empty if that is not known. None: it serves the lines."""


@contextmanager
def only_one(home: Home, prefect: str = "", waits: bool = False) -> Iterator[Beat]:
    """Hold the lock that allows one serving process per home, for the duration of the block. The block gives signs of life.

    `prefect` is the address of the Prefect API that the process uses. `waits`: the process begins as one that waits to lead.
    Raises Retryable if another process holds the lock. The operating system releases the lock when the process ends.
    """
    home.prefect.mkdir(parents=True, exist_ok=True)
    with (home.prefect / "serve.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Retryable(
                f"another `ratchet serve` is running for {home.root}; stop it first with `ratchet serve --stop LOOP.toml`"
            ) from None
        pid, last, waits_first = os.getpid(), float("-inf"), "" if waits else None
        told: tuple[str, str, str | None] = ("", "", waits_first)
        first = Sign(pid=pid, identity=process_identity(pid), at=datetime.now(UTC), place=_place(), prefect=prefect)

        def beat(trouble: str, prefect_trouble: str = "", waits_for: str | None = None) -> None:
            nonlocal last, told
            tells = (trouble, prefect_trouble, waits_for)
            if tells != told or time.monotonic() - last >= BEAT_SECONDS:
                last, told = time.monotonic(), tells
                with suppress(Retryable):  # a full disk; the missing sign says so
                    _store(home, first, trouble=trouble, prefect_trouble=prefect_trouble, waits_for=waits_for)

        _store(home, first, waits_for=waits_first)
        yield beat
        with suppress(Retryable):
            _store(home, first, stopped=True)


def _store(home: Home, sign: Sign, **changes: object) -> None:
    write_atomic(_path(home), canonical(sign.model_copy(update={"at": datetime.now(UTC), **changes})))


def mark_stopped(home: Home) -> None:
    """Note that an operator stopped the process that served, if it left no note of its own: it was killed, or it ended by an error."""
    sign, alive = read_sign(home)
    if sign is not None and not sign.stopped and not alive:
        _store(home, sign, stopped=True)


def _place() -> str:
    """Return the host and its process namespace: elsewhere, for example in another container, the process id names another process."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return f"{os.uname().nodename} {namespace}"


def read_sign(home: Home) -> tuple[Sign | None, bool]:
    """Return the newest sign of life, and whether the process that gave it runs. (None, False) if there is none.

    A process of another host or container cannot be looked up. It counts as running for SILENT_SECONDS after its sign.
    """
    try:
        sign = Sign.model_validate(json.loads(_path(home).read_bytes()))
    except (FileNotFoundError, ValueError, ValidationError):
        return None, False
    if sign.stopped or sign.identity is None:
        return sign, False
    if sign.place and sign.place != _place():
        return sign, (datetime.now(UTC) - sign.at).total_seconds() <= SILENT_SECONDS
    return sign, is_running(sign.pid, sign.identity) and not _is_zombie(sign.pid)


def _is_zombie(pid: int) -> bool:
    """Return whether the first thread of a process has ended. It runs the event loop, so the service has ended with it."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def serving_process(home: Home) -> psutil.Process | None:
    """Return the process that serves this installation, or None if none is running."""
    sign, alive = read_sign(home)
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(sign.pid) if sign is not None and alive and sign.place in ("", _place()) else None
    return None


def _path(home: Home) -> Path:
    return home.prefect / "serve.json"
