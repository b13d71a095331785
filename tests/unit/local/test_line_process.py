"""Tests of a process that serves several lines: each on its port, with its own end, its own errors and its share of the connections."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import canonical
from ratchet.contracts.schema import stamped
from ratchet.local.line_process import LineProcess
from ratchet.runtime.json_files import read_json
from ratchet.runtime.serving.announcement import SERVICE
from ratchet.runtime.serving.settings import ServedLine
from tests.waiting import until

pytestmark = pytest.mark.slow

CODE = """
import asyncio, sys
from pathlib import Path
from ratchet.runtime.http_limits import HttpLimits
from ratchet.runtime.serving.line_server import Kind, LineServer
from ratchet.runtime.serving.settings import ServedLine

class Named(ServedLine):
    name: str

class Site:
    def __init__(self, line, base):
        self.line, self.file = line, base / line.name
        if line.name == "broken":
            raise ZeroDivisionError("a defect")

    async def app(self, scope, receive, send):
        if scope["path"] == "/slow":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"transfer-encoding", b"chunked")]})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            while not Path(str(self.file) + "-go").exists():
                await asyncio.sleep(0.01)
            await send({"type": "http.response.body", "body": b" ended"})
            return
        body = self.line.name.encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    def work(self):
        return [lambda: self.file.write_text("worked")] if not self.file.exists() else []

    async def close(self):
        self.file.write_text("closed")

kind = Kind("the test", "choose another port", Named, Site, 20.0)
LineServer(Path(sys.argv[1]), kind, HttpLimits()).run()
"""


class Named(ServedLine):
    """Settings of the test's process: it answers with the name."""

    name: str


def process_of(folder: Path) -> LineProcess:
    """Return a handle of the process with the folder."""
    return LineProcess(folder, ["-c", CODE], 20.0)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LineProcess]:
    yield process_of(tmp_path / "process")
    process_of(tmp_path / "process").process.stop(grace=1)


def ask(port: int) -> str:
    """Return what answers on a port; empty if nothing does."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=20).text
    except httpx.TransportError:  # also a connection that the process had not accepted when it closed the port
        return ""


def serve(process: LineProcess, line: str, port: int = 0) -> int:
    """Serve a line that answers with its own name."""
    return process.serve(line, Named(name=line, port=port))


def pid_of(process: LineProcess) -> int:
    """Return the id of the process, which must run."""
    pid = process.pid()
    assert pid is not None
    return pid


def kill(process: LineProcess) -> None:
    """Kill the process and wait for its end."""
    victim = psutil.Process(pid_of(process))
    victim.send_signal(signal.SIGKILL)
    victim.wait(10)


def test_all_lines_have_one_process_and_each_its_port(process: LineProcess) -> None:
    ports = {line: serve(process, line) for line in ("a", "b", "c")}
    assert len(set(ports.values())) == 3
    assert {line: ask(port) for line, port in ports.items()} == {line: line for line in ports}
    before = pid_of(process)
    assert serve(process, "a", port=1) == ports["a"], "a line that is served keeps its settings"
    assert pid_of(process) == before
    assert process.port("d") is None


def test_the_end_of_one_line_finishes_its_answers_and_does_not_touch_the_others(process: LineProcess, tmp_path: Path) -> None:
    a, b = serve(process, "a"), serve(process, "b")
    with httpx.stream("GET", f"http://127.0.0.1:{a}/slow", trust_env=False, timeout=20) as reply:
        parts = reply.iter_bytes()
        assert next(parts) == b"begun"
        ending = threading.Thread(target=process.remove, args=("a",))
        ending.start()
        until(lambda: ask(a) == "")
        assert ask(b) == "b"
        (process.settings / "a-go").write_text("")
        assert b"".join(parts) == b" ended"
    ending.join()
    assert (process.settings / "a").read_text() == "closed"
    assert process.port("a") is None
    assert ask(b) == "b"
    assert serve(process, "a", port=a) == a, "it can be served again"
    assert ask(a) == "a"


def test_the_process_ends_with_its_last_line(process: LineProcess) -> None:
    serve(process, "a")
    serve(process, "b")
    assert process.remove("a")
    assert process.pid() is not None
    assert process.remove("b")
    assert process.process.process() is None
    assert not process.remove("b"), "it can be repeated"
    assert (process.settings / "b").read_text() == "closed"


def test_a_port_that_is_taken_is_an_error_of_its_line_alone(process: LineProcess) -> None:
    a = serve(process, "a")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Permanent, match=f"the test cannot listen on 127.0.0.1:{port}.*choose another port"):
            serve(process, "b", port)
        assert ask(a) == "a"
        assert process.port("b") is None
        kill(process)
        assert serve(process, "a") == a, "nor does it keep the others from a new process"
    assert serve(process, "b", port) == port, "the next call tries again"
    assert ask(port) == "b"


@pytest.mark.parametrize("content", [b"{", b"{}", canonical({"name": "x", "schema_version": 1000}), stamped({"name": "broken", "port": 0})])
def test_settings_that_cannot_be_used_are_an_error_of_their_line_alone(process: LineProcess, content: bytes) -> None:
    a = serve(process, "a")
    (process.settings / "b.json").write_bytes(content)
    until(lambda: "error" in (read_json(process.settings.parent / "answers" / "b.json") or {}))
    kill(process)
    assert serve(process, "a") == a
    assert ask(a) == "a"
    assert ask(serve(process, "b")) == "b", "they are written again when the line is served"


def test_after_a_kill_all_lines_answer_again_on_their_ports_when_one_is_looked_at(process: LineProcess) -> None:
    ports = {line: serve(process, line) for line in ("a", "b", "c")}
    kill(process)
    assert [process.port(line) for line in ports] == [None] * 3
    assert serve(process_of(process.settings.parent), "b") == ports["b"]
    until(lambda: {line: ask(port) for line, port in ports.items()} == {line: line for line in ports})
    assert {line: process.port(line) for line in ports} == ports


def test_concurrent_starters_start_one_process(process: LineProcess) -> None:
    names, ports = ["a", "b", "c", "d"], {"a": serve(process, "a")}
    kill(process)
    threads = [threading.Thread(target=lambda name: ports.update({name: serve(process, name)}), args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: ask(port) for name, port in ports.items()} == {name: name for name in names}
    running = [one for one in psutil.process_iter() if str(process.settings.parent) in _command(one)]
    assert [one.pid for one in running] == [pid_of(process)]


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def test_what_a_crashed_starter_has_begun_is_finished_by_the_next_call(process: LineProcess) -> None:
    process.settings.mkdir(parents=True)
    (process.settings / "a.json").write_bytes(stamped(Named(name="a")))  # it crashed before the start of the process
    a = serve(process, "a")
    (process.settings / "b.json").write_bytes(stamped(Named(name="b")))  # it crashed before it saw the reply
    until(lambda: process.port("b") is not None)
    assert (ask(a), ask(serve(process, "b"))) == ("a", "b")
    (process.settings / "a.json").unlink()  # it crashed while it removed a line
    until(lambda: ask(a) == "")
    assert not process.remove("a")
    assert ask(serve(process, "a", a)) == "a"


def test_a_lost_reply_is_given_again_without_an_interruption(process: LineProcess) -> None:
    a = serve(process, "a")
    (process.settings.parent / "answers" / "a.json").unlink()
    assert process.port("a") is None
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"http://127.0.0.1:{a}/").text == "a"
        assert serve(process, "a") == a
        assert client.get(f"http://127.0.0.1:{a}/").text == "a"


@pytest.mark.slow
def test_a_process_that_its_starter_did_not_record_opens_no_port(process: LineProcess) -> None:
    folder = process.settings.parent
    process.settings.mkdir(parents=True)
    (process.settings / "a.json").write_bytes(stamped(Named(name="a")))
    environment = {**os.environ, SERVICE: str(folder)}
    assert subprocess.run([sys.executable, "-c", CODE, str(folder)], env=environment, check=False, timeout=60).returncode == 0
    assert not (folder / "answers").exists()


def test_a_copy_of_the_folder_serves_its_own_files(process: LineProcess, tmp_path: Path) -> None:
    serve(process, "a")
    process.process.stop()
    copy = tmp_path / "copy"
    shutil.copytree(process.settings.parent, copy)
    (process.settings / "a").unlink()
    other = process_of(copy)
    try:
        serve(other, "a")
        other.remove("a")
    finally:
        other.process.stop(grace=1)
    assert (other.settings / "a").read_text() == "closed"
    assert not (process.settings / "a").exists()


def test_one_line_cannot_take_the_connections_of_another(process: LineProcess) -> None:
    a, b = serve(process, "a"), serve(process, "b")
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(socket.create_connection(("127.0.0.1", a), timeout=20)) for _ in range(1100)]
        flood[-1].sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert flood[-1].recv(100).startswith(b"HTTP/1.1 503")
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", b), timeout=20))
        assert ask(b) == "b"


def test_only_the_owner_can_read_the_files(process: LineProcess) -> None:
    before = os.umask(0o077)
    try:
        serve(process, "a")
    finally:
        os.umask(before)
    until(lambda: (process.settings / "a").exists())
    open_to_others = [path for path in process.settings.parent.rglob("*") if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert not open_to_others
