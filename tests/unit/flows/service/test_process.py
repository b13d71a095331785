"""Tests of the lock of the serving process, and of its signs of life, with a process that is really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import canonical
from ratchet.flows.config.home import Home
from ratchet.flows.service import process
from ratchet.flows.service.process import SILENT_SECONDS, Sign, _path, mark_stopped, only_one, read_sign, serving_process
from tests.command import ROOT, environment
from tests.waiting import until

SERVING = """
import sys, time
from pathlib import Path
from ratchet.flows.config.home import Home
from ratchet.flows.service.process import only_one
with only_one(Home(Path(sys.argv[1]))) as beat:
    beat("the ledger is away")
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_only_one_process_serves_an_installation(home: Home) -> None:
    assert (serving_process(home), read_sign(home)) == (None, (None, False))
    with only_one(home):
        serving = serving_process(home)
        assert serving is not None
        assert serving.pid == os.getpid()
        with pytest.raises(Retryable, match="another `ratchet serve`"), only_one(home):
            pass
        assert serving_process(home) is not None, "the refused process changes nothing"
    assert serving_process(home) is None
    sign, alive = read_sign(home)
    assert sign is not None
    assert (sign.stopped, alive) == (True, False)


def test_a_sign_tells_the_trouble_once_it_changes(home: Home) -> None:
    with only_one(home) as beat:
        for trouble in ("", "the ledger is away", "the ledger is away", ""):
            beat(trouble)
            sign, alive = read_sign(home)
            assert sign is not None
            assert (sign.trouble, sign.stopped, alive) == (trouble, False, True)
        sign, _ = read_sign(home)
        beat("")
        assert read_sign(home)[0] == sign, "there was a sign less than ten seconds ago"


def test_a_full_disk_ends_no_thread_that_gives_signs(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path, _data: bytes) -> None:
        raise Retryable("cannot write: No space left on device")

    with only_one(home) as beat:
        monkeypatch.setattr(process, "write_atomic", full)
        beat("the ledger is away")


def test_an_operator_can_stop_what_was_killed(home: Home) -> None:
    mark_stopped(home)
    assert read_sign(home) == (None, False), "no service has run"
    with only_one(home):
        mark_stopped(home)
        assert read_sign(home)[1], "a process that runs is not stopped by a note"
        left = sign_of(home)
    _path(home).write_bytes(canonical(left.model_copy(update={"identity": "another boot-1"})))
    assert read_sign(home)[1] is False
    mark_stopped(home)
    assert sign_of(home).stopped


def test_a_process_of_another_container_runs_while_its_signs_are_new(home: Home) -> None:
    with only_one(home, "http://prefect/api"):
        sign = sign_of(home)
    assert sign.prefect == "http://prefect/api"
    for age, runs in ((1, True), (SILENT_SECONDS + 1, False)):
        elsewhere = {"place": "other pid:[1]", "identity": "x-1", "stopped": False, "at": datetime.now(UTC) - timedelta(seconds=age)}
        _path(home).write_bytes(canonical(sign.model_copy(update=elsewhere)))
        assert read_sign(home)[1] is runs
        assert serving_process(home) is None, "its process id means nothing here"


def sign_of(home: Home) -> Sign:
    """Return the newest sign of life."""
    sign, _ = read_sign(home)
    assert sign is not None
    return sign


def test_a_killed_process_leaves_a_sign_that_it_did_not_stop(home: Home) -> None:
    command = [sys.executable, "-c", SERVING, str(home.root)]
    with subprocess.Popen(command, cwd=ROOT, env=environment(home.root), stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "ready\n"
        assert serving_process(home) is not None
        killed.send_signal(signal.SIGKILL)
        until(lambda: not read_sign(home)[1])  # before its parent has noticed the end
    until(lambda: not read_sign(home)[1])
    sign, _ = read_sign(home)
    assert sign is not None
    assert (sign.stopped, sign.trouble) == (False, "the ledger is away")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "identity": null, "at": "2026-01-01T00:00:00Z"}'])
def test_a_damaged_record_counts_as_none(home: Home, content: str) -> None:
    home.prefect.mkdir(parents=True)
    (home.prefect / "serve.json").write_text(content)
    assert read_sign(home) == (None, False)
