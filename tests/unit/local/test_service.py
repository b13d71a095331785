"""Tests of long-lived processes: found again after a crash of their starter, restarted after their own, and never started twice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.local.processes import kill_tree
from ratchet.local.service import ManagedProcess

SERVE = """
import os, pathlib, sys, time
sys.path.insert(0, {repo!r})
from ratchet.runtime.serving.announcement import announce
with open("starts", "a") as file: file.write(str(os.getpid()) + "\\n")
announce(4711)
while True: time.sleep(0.05)
"""
REPO = str(Path(__file__).resolve().parents[3])
DEAF = SERVE.format(repo=REPO).replace("announce(4711)", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); announce(4711)")
"""A service that ignores SIGTERM."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a service, and stop the service after the test."""
    yield tmp_path / "service"
    ManagedProcess(tmp_path / "service", []).stop(grace=1)


def service(folder: Path, code: str = SERVE.format(repo=REPO), timeout: float = 30) -> ManagedProcess:
    """Return a service that runs `code`, with a timeout of `timeout` seconds for its start."""
    return ManagedProcess(folder, ["-c", code], timeout=timeout)


def starts(folder: Path) -> list[str]:
    """Return the process ids of all starts so far."""
    return (folder / "starts").read_text().split()


def test_a_service_is_started_once_and_found_again(folder: Path) -> None:
    first = service(folder).ensure()
    assert first["port"] == 4711
    assert service(folder).ensure() == service(folder).ready() == first
    assert starts(folder) == [str(first["pid"])]


@pytest.mark.slow
def test_a_service_that_is_killed_before_it_is_ready_is_started_again(folder: Path) -> None:
    dies_once = SERVE.format(repo=REPO).replace(
        "announce(4711)", "len(open('starts').readlines()) > 1 or os.kill(os.getpid(), 9); announce(4711)"
    )
    assert service(folder, dies_once).ensure()["port"] == 4711
    assert len(starts(folder)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("again", "fails", "expected"), [(0, 1, None), (1, 1, 4711), (1, 2, None)])
def test_a_service_that_ends_by_itself_is_started_again_as_often_as_asked(
    folder: Path, again: int, fails: int, expected: int | None
) -> None:
    code = SERVE.format(repo=REPO).replace(
        "announce(4711)", f"len(open('starts').readlines()) > {fails} or sys.exit('no memory'); announce(4711)"
    )
    process = ManagedProcess(folder, ["-c", code], timeout=30, again=again)
    if expected is None:
        with pytest.raises(Permanent, match="ended before it was ready: no memory"):
            process.ensure()
    else:
        assert process.ensure()["port"] == expected
    assert len(starts(folder)) == again + 1


@pytest.mark.slow
def test_a_service_that_is_always_killed_before_it_is_ready_is_given_up(folder: Path) -> None:
    with pytest.raises(Permanent, match="was killed 3 times before it was ready; the machine may lack memory"):
        service(folder, SERVE.format(repo=REPO).replace("announce(4711)", "os.kill(os.getpid(), 9)")).ensure()
    assert len(starts(folder)) == 3


def test_a_service_gets_no_credentials_of_its_starter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-word")
    monkeypatch.setenv("RATCHET_LEDGER_URL", "postgresql://u:secret-word@h/d")
    pid = ManagedProcess(folder, ["-c", SERVE.format(repo=REPO)], {"OMP_NUM_THREADS": "2"}, timeout=30).ensure()["pid"]
    seen = psutil.Process(pid).environ()
    assert not [name for name, value in seen.items() if "secret-word" in value]
    assert (seen["OMP_NUM_THREADS"], seen["PATH"]) == ("2", os.environ["PATH"])


@pytest.mark.slow
def test_a_service_outlives_its_starter(folder: Path) -> None:
    code = f"import os, signal, sys; sys.path.insert(0, {REPO!r})\n"
    code += "from pathlib import Path\nfrom ratchet.local.service import ManagedProcess\n"
    code += f"ManagedProcess(Path({str(folder)!r}), ['-c', {SERVE.format(repo=REPO)!r}]).ensure()\nos.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    found = service(folder).ready()
    assert found is not None
    assert service(folder).ensure() == found


@pytest.mark.slow
def test_a_killed_service_is_started_again(folder: Path) -> None:
    first = service(folder).ensure()
    os.kill(first["pid"], signal.SIGKILL)
    psutil.Process(first["pid"]).wait(10)
    assert service(folder).ready() is None
    second = service(folder).ensure()
    assert second["pid"] != first["pid"]
    assert starts(folder) == [str(first["pid"]), str(second["pid"])]


def test_concurrent_starters_start_one_process(folder: Path) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(service(folder).ensure()["pid"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == len(starts(folder)) == 1


def test_a_reused_pid_is_not_the_service(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "started.json").write_text(f'{{"pid": {os.getpid()}, "started": {psutil.Process().create_time() - 3600}}}')
    (folder / "ready.json").write_text(f'{{"pid": {os.getpid()}, "port": 1}}')
    assert service(folder).ready() is None
    service(folder).stop()  # must not kill this process
    assert service(folder).ensure()["port"] == 4711


def test_a_service_that_exits_at_once_is_permanent_with_its_output(folder: Path) -> None:
    with pytest.raises(Permanent, match="no such model"):
        service(folder, "import sys; sys.exit('there is no such model')").ensure()


@pytest.mark.slow
def test_a_slow_service_is_retryable_and_not_started_again(folder: Path) -> None:
    slow = "import time; open('starts', 'a').write('x\\n'); time.sleep(60)"
    for _ in range(2):
        with pytest.raises(Retryable, match="not ready"):
            service(folder, slow, timeout=1).ensure()
    assert starts(folder) == ["x"]


@pytest.mark.slow
def test_stop_ends_the_service_and_can_be_repeated(folder: Path) -> None:
    pid = service(folder, DEAF).ensure()["pid"]
    service(folder).stop(grace=0.2)
    service(folder).stop()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    service(folder).remove()
    assert not folder.exists()


@pytest.mark.slow
def test_stop_returns_after_the_end_of_a_killed_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = service(folder, DEAF).ensure()["pid"]
    family = [psutil.Process(pid)]
    monkeypatch.setattr("ratchet.local.service.kill_tree", lambda process: threading.Timer(0.3, kill_tree, [process]).start() or family)
    service(folder).stop(grace=0.1)
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_stop_of_a_service_that_survives_sigkill_is_retryable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = service(folder, DEAF).ensure()["pid"]
    with monkeypatch.context() as patched:
        patched.setattr("ratchet.local.service.kill_tree", lambda process: [process])
        patched.setattr("ratchet.local.service.KILL_SECONDS", 0.1)
        with pytest.raises(Retryable, match=f"after SIGKILL.*{pid}"):
            service(folder).stop(grace=0.1)
    assert service(folder).ready() is not None, "a service that still runs is not forgotten"


def test_a_process_without_a_record_of_its_start_ends_itself(folder: Path) -> None:
    folder.mkdir(parents=True)
    environment = {**os.environ, "RATCHET_SERVICE": str(folder)}
    orphan = subprocess.Popen([sys.executable, "-c", SERVE.format(repo=REPO)], cwd=folder, env=environment)
    assert orphan.wait(20) == -signal.SIGTERM
    assert not (folder / "ready.json").exists()


def test_a_port_in_use_is_refused_with_a_remedy() -> None:
    from ratchet.runtime.serving.line_server import bind

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Permanent, match=f"127.0.0.1:{port}.*choose another"):
            bind(port, "the thing", "choose another")


def test_a_folder_that_cannot_be_created_is_retryable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Retryable):
        service(tmp_path / "file" / "service").ensure()
