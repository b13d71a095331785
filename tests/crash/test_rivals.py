"""Tests of several processes that work on one cycle, and of a process that is stopped until its lease has expired.

Only the lease holder writes to the ledger.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from ratchet.flows.ledger.sql import SqlLedger
from tests.crash.driver import prepare, told
from tests.crash.processes import finished, start

pytestmark = [pytest.mark.slow]


@pytest.mark.parametrize("rivals", [3])
def test_concurrent_processes_take_every_effect_once(tmp_path: Path, calm: dict[str, Any], rivals: int) -> None:
    prepare(tmp_path / "home")
    processes = [start("live", tmp_path / "home", RATCHET_RUSH="1") for _ in range(rivals)]
    for process in processes:
        finished(process)
    after = told(tmp_path / "home")
    assert [list(row) for row in after["projection"]] == calm["projection"]
    assert Counter(after["effects"]) == Counter(calm["effects"])
    assert (after["route"], after["aliases"], after["starts"]) == (calm["route"], calm["aliases"], calm["starts"])


@pytest.mark.parametrize("boundary", [9, 24, 75])
def test_process_stopped_beyond_its_lease_writes_nothing(tmp_path: Path, calm: dict[str, Any], boundary: int) -> None:
    home = tmp_path / "home"
    prepare(home)
    sleeper = start("live", home, RATCHET_STOP_AT=str(boundary))
    try:
        _until_stopped(sleeper)
        before = told_rows(home)
        heir = start("live", home)
        time.sleep(1)
        assert heir.poll() is None
        assert told_rows(home) == before, "the second process took the lease of a living process before it expired"
        now = datetime.fromisoformat((home / "clock").read_text())
        (home / "part").write_text((now + timedelta(seconds=61)).isoformat())
        (home / "part").rename(home / "clock")
        finished(heir)
        ended = told_rows(home)
    finally:
        sleeper.send_signal(signal.SIGCONT)
    _, err = sleeper.communicate(timeout=60)
    assert told_rows(home) == ended, "the stopped process wrote to the ledger after it lost its lease"
    assert sleeper.returncode == 1
    assert "passed to another process" in err
    finished(start("live", home))  # the reconciler repairs any external effect of the stopped process from the ledger
    after = told(home)
    assert _undated(after) == _undated(calm)
    assert (after["route"], after["aliases"], after["starts"]) == (calm["route"], calm["aliases"], calm["starts"])


def told_rows(home: Path) -> int:
    """Return the number of rows in all streams of the ledger."""
    ledger = SqlLedger(f"sqlite:///{home / 'ledger.db'}")
    return sum(len(ledger.read(stream)) for stream in ledger.streams(""))


def _undated(life: dict[str, Any]) -> list[list[str]]:
    """Return the projection without the data of approval requests, whose expiry times differ because the clock was moved."""
    return [list(row) if row[1] != "asked" else list(row[:3]) for row in life["projection"]]


def _until_stopped(process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 60
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.05)
