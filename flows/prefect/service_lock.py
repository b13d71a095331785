"""The lock that allows one serving process per installation, and the record with which another command finds that process."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import canonical
from ratchet.flows.config.home import Home
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.process_identity import is_running, process_identity


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
        ourselves = {"pid": os.getpid(), "identity": process_identity(os.getpid())}
        write_atomic(home.prefect / "serve.json", canonical(ourselves))
        yield
        (home.prefect / "serve.json").unlink(missing_ok=True)


def serving_process(home: Home) -> psutil.Process | None:
    """Return the process that serves this installation, or None if none is running."""
    try:
        record = json.loads((home.prefect / "serve.json").read_bytes())
        identity = record.get("identity")
        lives = identity is not None and is_running(int(record["pid"]), identity)
        return psutil.Process(int(record["pid"])) if lives else None
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
