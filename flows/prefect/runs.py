"""Which process a run of ours lives in, written beside the ledger: Prefect does not know when a process was killed.

A record is made when a flow begins and removed when it ends, so that after `kill -9` the reconciler sees at once that a run
which Prefect still calls Running has no process any more.
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
from contracts.files import write_atomic
from contracts.ids import canonical
from contracts.processes import process_identity
from flows.config.home import Home


def _ourselves() -> dict[str, Any]:
    return {"pid": os.getpid(), "identity": process_identity(os.getpid())}


def _lives(said: dict[str, Any]) -> bool:
    """Whether this machine still runs the process that left this record."""
    identity = said.get("identity")
    return identity is not None and process_identity(int(said["pid"])) == identity


def _record(home: Home, run: str) -> Path:
    return home.prefect / "runs" / f"{run}.json"


@contextmanager
def present(home: Home, run: str) -> Iterator[None]:
    """Says that this process carries `run` (a flow run's id), as long as the block lasts."""
    record = _record(home, run)
    write_atomic(record, canonical(_ourselves()))
    try:
        yield
    finally:
        record.unlink(missing_ok=True)


def process_of(home: Home, run: str) -> bool | None:
    """True: its process lives; False: it died without a word; None: it never said anything (not begun yet, or long gone)."""
    record = _record(home, run)
    try:
        said = json.loads(record.read_bytes())
    except FileNotFoundError:
        return None
    return _lives(said)


def forget(home: Home, run: str) -> None:
    """Drops the record of a run that is settled."""
    _record(home, run).unlink(missing_ok=True)


@contextmanager
def only_one(home: Home) -> Iterator[None]:
    """Retryable while another process serves this installation."""
    home.prefect.mkdir(parents=True, exist_ok=True)
    with (home.prefect / "serve.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Retryable(f"another `ratchet serve` works on {home.root}; stop it first (`ratchet serve --stop`)") from None
        write_atomic(home.prefect / "serve.json", canonical(_ourselves()))
        yield
        (home.prefect / "serve.json").unlink(missing_ok=True)


def serving_process(home: Home) -> psutil.Process | None:
    """The process that serves this installation now."""
    try:
        record = json.loads((home.prefect / "serve.json").read_bytes())
        return psutil.Process(int(record["pid"])) if _lives(record) else None
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
