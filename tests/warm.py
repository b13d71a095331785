"""Processes that start without the time to load libraries, for tests of what a process does after that.

Loading torch and TRL costs a training job eight seconds of CPU, a run of the tiny model less than one; loading the libraries of the lake,
of the registry and of the gate costs a command up to five. So one process loads them once, and forks for each job or command. The
supervisor of a job forks once more for its trainer. Apart from that, everything is as in the product: each is a process of its own, with
its own environment, session and process group, that can be killed, and each imports the product's modules and `sitecustomize` afresh.

Other tests start the same programs in interpreters of their own: the undisturbed runs of the trainers and the runs with several processes,
the demo, the quickstart, the service, and all jobs and servers that a command starts.

    python -m tests.warm SOCKET LIBRARY...        accepts one program per connection
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from ratchet.local.executor import LocalExecutor
from ratchet.runtime.telemetry import NO_TELEMETRY
from ratchet.runtime.threads import threads_of

TRAINER = ("datasets", "peft", "transformers", "trl.trainer.dpo_trainer", "trl.trainer.sft_trainer", "trl.trainer.grpo_trainer")
"""The libraries of a training job."""
COMMAND = (
    "httpx", "mlflow.store.tracking.sqlalchemy_store", "pandas", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet",
    "pyiceberg.catalog.sql", "pyiceberg.table", "rich.table", "scipy.special", "sqlalchemy.orm",
)  # fmt: skip
"""The libraries of `ratchet` commands, except torch, which a test hides, and Prefect, which reads variables when it loads."""
THREADED = "polars"
"""A library that starts threads when it is loaded. A forked process would lack them, so each process loads it by itself."""
FRESH = ("ratchet", "sitecustomize", "tests")
"""Top-level modules that every process imports again."""
FORKING = ("ratchet.local.processes", "ratchet.trainers.job.supervisor", "ratchet.trainers.job.nemo")
"""Programs whose children are forked, too."""
PLAIN = subprocess.Popen
ROOT = Path(__file__).resolve().parents[1]


class Forked:
    """A forked child process, with those arguments and methods of `subprocess.Popen` that its users need.

    With `fresh`, the child imports the product's modules again.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: Any = None,
        process_group: int | None = None,
        start_new_session: bool = False,
        pass_fds: Sequence[int] = (),
        fresh: bool = True,
        **_: Any,
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            if process_group is not None:
                os.setpgid(0, process_group)
            if start_new_session:
                os.setsid()
            if cwd is not None:
                os.chdir(cwd)
            outputs = (1, 2) if stdout is None else (stdout.fileno(), stdout.fileno())
            _become(command, dict(os.environ) if env is None else env, *outputs, pass_fds, fresh)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises TimeoutExpired."""
        limit = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if limit is not None and time.monotonic() > limit:
                raise subprocess.TimeoutExpired("forked", timeout or 0.0)
            time.sleep(0.01)
        return code

    def terminate(self, number: int = signal.SIGTERM) -> None:
        """Send SIGTERM, or another signal."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.terminate(signal.SIGKILL)


class _Exec(Exception):
    """Replaces `os.execvp`."""


def _execvp(_file: str, command: Sequence[str]) -> NoReturn:
    raise _Exec(command)


def _become(
    command: Sequence[str], environment: Mapping[str, str], out: int, err: int, kept: Sequence[int] = (), fresh: bool = True
) -> NoReturn:
    """Go on as `command`, which is `python -m MODULE …` or `python FILE …`, with this environment and these outputs, as after `exec`.

    Closes all other files except `kept`, because an inherited lock would still be held. /dev/null takes their numbers: an object of the
    forking process closes its number when it is collected, which must not be that of a new file.
    """
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        atexit._clear()
        for given, number in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
            os.dup2(given, number)
        nothing = os.open(os.devnull, os.O_RDWR)
        for other in [int(name.name) for name in Path("/proc/self/fd").iterdir()]:
            if other > 2 and other not in kept:
                with contextlib.suppress(OSError):
                    os.fstat(other)  # fails for the folder that was listed, which is closed again
                    os.dup2(nothing, other, inheritable=False)
        while True:
            try:
                code = _run(command, environment, fresh)
            except _Exec as following:
                (command,), environment = following.args, dict(os.environ)
                continue
            break
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(SystemExit):
            atexit._run_exitfuncs()  # may end the process, as `fast_exit.brief` does
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(command: Sequence[str], environment: Mapping[str, str], fresh: bool) -> int:
    _python, *program = command
    module, *arguments = program[1:] if program[0] == "-m" else program
    os.environ.clear()
    os.environ.update(environment)
    for name in [name for name in sys.modules if fresh and name.partition(".")[0] in FRESH]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "Meddler"]  # of tests/unit/trainers/troubled.py
    own = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*own, *(entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix)))]
    importlib.invalidate_caches()
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    subprocess.Popen = Forked if module in FORKING else PLAIN  # type: ignore[assignment,misc]
    if module in FORKING:
        os.execvp = _execvp  # type: ignore[assignment]
    sys.argv = [module, *arguments]
    try:
        if program[0] == "-m":
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(module, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _started(connection: socket.socket) -> None:
    """Start the program of a connection, and send its process id, and then its exit code."""
    size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    asked = json.loads(connection.recv(size, socket.MSG_WAITALL))
    _, (out, err), _, _ = socket.recv_fds(connection, 1, 2)
    child = os.fork()
    if child == 0:
        connection.close()
        os.setsid()
        os.chdir(asked["cwd"])
        _become(asked["command"], asked["environment"], out, err)
    os.close(out)
    os.close(err)
    connection.sendall(b"%d\n" % child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(b"%d\n" % code)


def serve(path: str, libraries: Sequence[str]) -> None:
    """Load the libraries, then fork for each connection. Ends with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    gc.disable()
    sys.modules[THREADED] = None  # type: ignore[assignment]
    for name in libraries:
        importlib.import_module(name)
    del sys.modules[THREADED]
    gc.freeze()
    tasks = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    assert set(tasks) <= {"jemalloc_bg_thd"}, f"a forked process would lack threads of the libraries: {tasks}"  # jemalloc handles forks
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.new")
        server.listen()
        Path(f"{path}.new").rename(path)  # its users wait for the path, and a connection before `listen` is refused
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _started(connection)
                os._exit(0)
            connection.close()


_PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys

command = {command!r} + sys.argv[1:]
if sys.argv[1:] and sys.argv[1] in {fresh!r}:
    os.execv(command[0], command)
connection = socket.socket(socket.AF_UNIX)
connection.connect({socket!r})
request = json.dumps(dict(command=command, cwd=os.getcwd(), environment=dict(os.environ))).encode()
connection.sendall(len(request).to_bytes(8, "big") + request)
socket.send_fds(connection, [b"."], [1, 2])
answers = connection.makefile("r")
child = int(answers.readline())
signal.signal(signal.SIGTERM, lambda *_: os.killpg(child, signal.SIGTERM))
code = int(answers.readline() or -9)
sys.exit(code if code >= 0 else 128 - code)
"""
"""A program that asks the warm process to run a command, as `Started` does, which would load the product's libraries first."""


class Started:
    """A program that the warm process has started, with the methods of `subprocess.Popen` that the executor calls."""

    def __init__(self, path: Path, command: Sequence[str], cwd: Path, env: Mapping[str, str], out: int, err: int) -> None:
        self.returncode: int | None = None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        request = json.dumps({"command": list(command), "cwd": str(cwd), "environment": dict(env)}).encode()
        self._socket.sendall(len(request).to_bytes(8, "big") + request)
        socket.send_fds(self._socket, [b"."], [out, err])
        self._answers = self._socket.makefile("r")
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("warm", timeout or 0.0)
            self.returncode = int(self._answers.readline() or -signal.SIGKILL)
            self._answers.close()
            self._socket.close()
        return self.returncode


class Warm:
    """A process that has loaded `libraries`. It is started by the first program, and ends with this process."""

    def __init__(self, folder: Path, libraries: Sequence[str]) -> None:
        self._libraries = libraries
        self._socket, self._log, self._cache = folder / "warm", folder / "warm.log", folder / "huggingface"
        self._process: subprocess.Popen[bytes] | None = None

    def ready(self) -> None:
        """Start the process, unless it runs, and wait until it has loaded the libraries."""
        if self._process is None:
            quiet = {**NO_TELEMETRY, **threads_of(1), "DISABLE_MLFLOW_INTEGRATION": "TRUE", "HF_HOME": str(self._cache)}
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(self._socket), *self._libraries],
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **quiet, "PYTHONPATH": str(ROOT)},
                )
        limit = time.monotonic() + 120
        while not self._socket.exists():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < limit, self._log.read_text()
            time.sleep(0.05)

    def start(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], stdout: Any, stderr: Any, **_: Any) -> Started:
        """Start a program with the arguments of `subprocess.Popen`."""
        return Started(self._socket, command, cwd, env, stdout.fileno(), stderr.fileno())

    def run(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a program to its end and return its exit code and output. Raises TimeoutExpired after `timeout` seconds."""
        self.ready()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            started = self.start(command, cwd, env, out, err)
            try:
                code = started.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                raise
            texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
        return subprocess.CompletedProcess(command, code, *texts)

    def write_program(self, path: Path, command: Sequence[str], fresh: Sequence[str]) -> None:
        """Write a program to `path` that runs `command` and its own arguments from the warm process.

        If the first of its arguments is one of `fresh`, it runs them in an interpreter of their own instead.
        """
        self.ready()
        path.write_text(_PROGRAM.format(python=sys.executable, socket=str(self._socket), command=list(command), fresh=list(fresh)))
        path.chmod(0o755)

    def stop(self) -> None:
        """End the process. Programs that still run are not affected."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class WarmExecutor(LocalExecutor):
    """A local executor whose jobs start from the warm process."""

    def __init__(self, root: Path, artifacts_root: Path, warm: Warm) -> None:
        super().__init__(root, artifacts_root)
        self._warm = warm

    def _spawn(self, *given: Any) -> None:
        self._warm.ready()
        with patch.object(subprocess, "Popen", self._warm.start):
            super()._spawn(*given)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
