"""Records which process executes each flow run, because Prefect does not detect that a process was killed.

A record is created when a flow run starts and removed when it ends. After `kill -9`, the reconciler can therefore see immediately
that a run in Prefect's state Running no longer has a process.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from contracts.errors import Retryable
from contracts.ids import canonical
from flows.config.home import Home
from runtime.artifacts import write_atomic
from runtime.process_identity import is_running, process_identity


def _ourselves() -> dict[str, Any]:
    return {"pid": os.getpid(), "identity": process_identity(os.getpid())}


def _lives(content: dict[str, Any]) -> bool:
    """Return whether the process that wrote this record is still running on this machine."""
    identity = content.get("identity")
    return identity is not None and is_running(int(content["pid"]), identity)


def _record(home: Home, run: str) -> Path:
    return home.prefect / "runs" / f"{run}.json"


@contextmanager
def present(home: Home, run: str) -> Iterator[None]:
    """Record that this process executes the flow run with id `run`, for the duration of the block."""
    record = _record(home, run)
    write_atomic(record, canonical(_ourselves()))
    try:
        yield
    finally:
        record.unlink(missing_ok=True)


def process_of(home: Home, run: str) -> bool | None:
    """Return the state of the process that executes the flow run with id `run`.

    True: the process is running. False: it disappeared without removing its record. None: there is no record, because the run has
    not started or has already ended.
    """
    record = _record(home, run)
    try:
        content = json.loads(record.read_bytes())
    except FileNotFoundError:
        return None
    return _lives(content)


def forget(home: Home, run: str) -> None:
    """Remove the process record of a flow run that has ended."""
    _record(home, run).unlink(missing_ok=True)


@contextmanager
def only_one(home: Home) -> Iterator[None]:
    """Hold the lock that allows one serving process per installation, for the duration of the block.

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
        write_atomic(home.prefect / "serve.json", canonical(_ourselves()))
        yield
        (home.prefect / "serve.json").unlink(missing_ok=True)


def serving_process(home: Home) -> psutil.Process | None:
    """Return the process that serves this installation, or None if none is running."""
    try:
        record = json.loads((home.prefect / "serve.json").read_bytes())
        return psutil.Process(int(record["pid"])) if _lives(record) else None
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
