"""Programs that attack the sandbox of the reward `code`: its limits, the machine's files, its network and its processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from ratchet.rewards.code.sandbox import CELL, End, Limits, Run, _spec, run_program, unavailable
from tests.needs import Need, lacks


class Patient(Limits):
    """Limits whose wall-clock time does not end a program that gets little processor time."""

    wall = 60.0  # type: ignore[assignment]


class Quick(Limits):
    """Limits whose wall-clock time is short, for programs that wait."""

    wall = 1.0  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _needs_namespaces() -> None:
    if reason := unavailable("namespaces"):
        lacks(Need.NAMESPACES, reason)


def _run(program: str, limits: Limits | None = None) -> Run:
    return run_program(textwrap.dedent(program), "", limits or Limits(), "namespaces")


def _words(program: str) -> list[str]:
    """Run a program that prints words. Fails if it does not end by itself."""
    run = _run(program)
    assert (run.end, run.status) == (End.EXITED, 0)
    return run.output.decode().split()


def test_it_starts_no_process_and_no_thread() -> None:
    program = """
        import os, subprocess, threading
        for attempt in (os.fork, lambda: subprocess.run(["/bin/true"]), lambda: threading.Thread(target=print).start()):
            try:
                attempt()
            except (OSError, RuntimeError):
                print("refused")
    """
    assert _words(program) == ["refused"] * 3


@pytest.mark.slow
def test_a_fork_bomb_ends() -> None:
    run = _run("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", Limits(seconds=0.1))
    assert run.end is End.TIME or run.status == -signal.SIGKILL


def test_it_leaves_no_process_behind(tmp_path: Path) -> None:
    program = """
        import ctypes, os, time
        os.setsid()
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
        os.write(3, b"asleep\\n")
        time.sleep(300)
    """
    reader, writer = os.pipe()
    command = [sys.executable, "-I", "-S", "-B", str(CELL), str(writer)]
    if os.geteuid() == 0:
        tmp_path.chmod(0o755)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(writer,)) as cell, os.fdopen(reader) as results:
        os.close(writer)
        assert cell.stdin is not None
        cell.stdin.write(_spec(textwrap.dedent(program), "", Limits(), "namespaces", str(tmp_path)))
        cell.stdin.flush()
        assert [results.readline(), results.readline()] == ["ready\n", "asleep\n"]
        asleep = psutil.Process(cell.pid).children(recursive=True)
        assert len(asleep) == 1
        cell.stdin.close()  # as if the service had been killed
        cell.wait(20)
    assert [process for process in asleep if process.is_running()] == []


def test_it_reads_no_file_of_the_machine(tmp_path: Path) -> None:
    secret = tmp_path / "ledger.db"
    secret.write_text("secret")
    secret.chmod(0o644)
    places = [
        str(secret),
        "/etc/passwd",
        "/proc/1/environ",
        "/proc/self/environ",
        "/sys/kernel",
        "/dev/mem",
        "/old",
        str(Path.home() / ".ssh"),
    ]
    program = f"""
        import os
        for path in {places}:
            print(os.path.exists(path))
        print(sorted(os.listdir("/tmp")), sorted(os.environ))
    """
    assert _run(program).output.decode().split("\n")[:-2] == ["False"] * len(places)
    assert _run(program).output.decode().split("\n")[-2] == "[] ['HOME', 'LANG', 'TMPDIR']"


def test_it_changes_no_file_of_the_machine() -> None:
    program = """
        import os, sys
        for path in (os.path.dirname(os.__file__) + "/sitecustomize.py", "/usr/lib/x", "/x", os.path.realpath(sys.executable)):
            try:
                open(path, "a")
                print("opened")
            except OSError:
                print("refused")
    """
    assert _words(program) == ["refused"] * 4


def test_one_program_leaves_nothing_for_the_next() -> None:
    _words("open('/tmp/sitecustomize.py', 'w').write('print(1)'); open('/tmp/json.py', 'w').write('print(1)')")
    assert _words("import os, json; print(*os.listdir('/tmp'), 'none')") == ["none"]


def test_it_has_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"""
            import socket
            for address in (("127.0.0.1", {port}), ("::1", {port}), ("192.0.2.1", 80)):
                try:
                    socket.create_connection(address, 1)
                    print("connected")
                except OSError:
                    print("refused")
            abstract = socket.socket(socket.AF_UNIX)
            try:
                abstract.connect("\\0ratchet-test-socket")
                print("connected")
            except OSError:
                print("refused")
        """
        with socket.socket(socket.AF_UNIX) as local:
            local.bind("\0ratchet-test-socket")
            local.listen()
            assert _words(program) == ["refused"] * 4


def test_it_sees_no_other_process() -> None:
    program = f"""
        import os
        print(os.getpid(), os.getppid())
        try:
            os.kill({os.getpid()}, 0)
            print("seen")
        except ProcessLookupError:
            print("none")
    """
    assert _words(program) == ["1", "0", "none"]


def test_it_gets_no_privileges() -> None:
    program = """
        import ctypes, os
        libc = ctypes.CDLL(None)
        print(libc.unshare(0x10000000), libc.unshare(0x20000), libc.mount(b"none", b"/tmp", b"tmpfs", 0, b""), libc.chroot(b"/tmp"))
        print(libc.setuid(0), libc.sethostname(b"x", 1), libc.prctl(39, 0, 0, 0, 0))
    """
    assert _words(program) == ["-1"] * 6 + ["1"]


def test_memory_is_limited() -> None:
    program = "try:\n    print(len(bytearray(1 << 30)))\nexcept MemoryError:\n    print('refused')"
    assert _words(program) == ["refused"]


def test_files_are_limited() -> None:
    program = """
        done = 0
        try:
            for number in range(200):
                with open(f"/tmp/{number}", "w") as file:
                    done += file.write("x" * (1 << 20))
        except OSError:
            pass
        print(done <= 64 << 20)
    """
    assert _words(program) == ["True"]
    assert _run("open('/tmp/one', 'w').write('x' * (17 << 20))").status != 0


def test_descriptors_of_the_service_are_not_inherited(tmp_path: Path) -> None:
    with (tmp_path / "ledger.db").open("w+b") as ledger:
        os.set_inheritable(ledger.fileno(), True)
        program = """
            import os
            def is_open(number):
                try:
                    return bool(os.fstat(number))
                except OSError:
                    return False
            print([number for number in range(3, 1024) if is_open(number)])
        """
        assert _run(program).output == b"[3]\n"


@pytest.mark.parametrize("program", ["while True: print('x' * 1000)", "import os\nwhile True: os.write(3, b'x' * 1000)"])
def test_endless_output_is_cut(program: str) -> None:
    run = _run(program, Limits(output=100_000))
    assert run.end is End.OUTPUT
    assert max(len(run.output), len(run.results)) < 200_000


@pytest.mark.slow
def test_processor_time_is_limited() -> None:
    run = _run(
        "import signal\nfor n in range(1, 32):\n    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        Patient(seconds=0.1),
    )
    assert (run.end, run.status) == (End.EXITED, -signal.SIGKILL)


@pytest.mark.slow
def test_waiting_time_is_limited() -> None:
    assert _run("import time; time.sleep(300)", Quick()).end is End.TIME


def test_a_program_cannot_forge_the_report_about_its_end() -> None:
    forged = json.dumps({"killed": False, "status": 0})
    run = _run(f"import os, sys; sys.stderr.write({forged!r}); os._exit(7)")
    assert (run.end, run.status) == (End.EXITED, 7)
