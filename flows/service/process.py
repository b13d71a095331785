"""The process that serves an installation: its lock, and the record by which other commands find it and its signs of life."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

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

Beat = Callable[[str], None]
"""Gives a sign of life, at most one every BEAT_SECONDS seconds unless the text about the trouble changes; empty: there is none."""


class Sign(Frozen):
    """The newest sign of life of a serving process."""

    pid: int
    identity: str | None
    at: AwareDatetime
    trouble: str = ""
    """Why the process cannot work on its lines."""
    stopped: bool = False
    """Whether an operator stopped the process."""


@contextmanager
def only_one(home: Home) -> Iterator[Beat]:
    """Hold the lock that allows one serving process per installation, for the duration of the block. The block gives signs of life.

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
        pid, last, told = os.getpid(), float("-inf"), ""
        identity = process_identity(pid)

        def store(trouble: str, stopped: bool = False) -> None:
            sign = Sign(pid=pid, identity=identity, at=datetime.now(UTC), trouble=trouble, stopped=stopped)
            write_atomic(_path(home), canonical(sign))

        def beat(trouble: str) -> None:
            nonlocal last, told
            if trouble != told or time.monotonic() - last >= BEAT_SECONDS:
                last, told = time.monotonic(), trouble
                with suppress(OSError):  # a full disk; the missing sign says so
                    store(trouble)

        store("")
        yield beat
        with suppress(OSError):
            store("", stopped=True)


def read_sign(home: Home) -> tuple[Sign | None, bool]:
    """Return the newest sign of life, and whether the process that gave it runs. (None, False) if there is none."""
    try:
        sign = Sign.model_validate(json.loads(_path(home).read_bytes()))
    except (FileNotFoundError, ValueError, ValidationError):
        return None, False
    return sign, not sign.stopped and sign.identity is not None and is_running(sign.pid, sign.identity)


def serving_process(home: Home) -> psutil.Process | None:
    """Return the process that serves this installation, or None if none is running."""
    sign, alive = read_sign(home)
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(sign.pid) if sign is not None and alive else None
    return None


def _path(home: Home) -> Path:
    return home.prefect / "serve.json"
