"""Jobs whose processes have loaded torch and TRL already, for tests of what a job does after that.

Loading the libraries costs a job eight seconds of CPU, a run of the tiny model less than one. So one process per session loads them once,
and forks for each job. The supervisor forks once more for its trainer. Apart from that, everything is as in the product: the launcher, the
supervisor and the trainer are processes of their own that can be killed, in their own process groups, with their own environment, and each
imports the product's modules afresh. The undisturbed runs of the session and the runs with several processes start their interpreters in
the normal way, so that this remains tested, too.

    python -m tests.unit.trainers.warm SOCKET        accepts one job per connection
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
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from local.executor import LocalExecutor

LIBRARIES = ("datasets", "peft", "transformers", "trl.trainer.dpo_trainer", "trl.trainer.sft_trainer", "trl.trainer.grpo_trainer")
FRESH = ("contracts", "k8s", "local", "rewards", "runtime", "sitecustomize", "tests", "trainers")
"""Top-level modules that every process imports again."""
ROOT = Path(__file__).resolve().parents[3]


class Forked:
    """A forked child process, with the methods of `subprocess.Popen` that the supervisor calls."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], stdout: Any, process_group: int, **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, process_group)
            become(command, env, stdout.fileno())

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

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


class _Exec(Exception):
    """Replaces `os.execvp`."""


def _execvp(_file: str, command: Sequence[str]) -> NoReturn:
    raise _Exec(command)


def become(command: Sequence[str], environment: Mapping[str, str], log: int) -> NoReturn:
    """Go on as `command`, which is `python -m MODULE …`, with this environment and this log, as after `exec`."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        atexit._clear()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        while True:
            try:
                code = _run(command, environment)
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


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    _python, flag, module, *arguments = command
    assert flag == "-m", command
    os.environ.clear()
    os.environ.update(environment)
    for name in [name for name in sys.modules if name.partition(".")[0] in FRESH]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "Meddler"]  # of tests/unit/trainers/troubled.py
    own = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*own, *(entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix)))]
    importlib.invalidate_caches()
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    subprocess.Popen = Forked  # type: ignore[assignment,misc]
    os.execvp = _execvp  # type: ignore[assignment]
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _job(connection: socket.socket) -> None:
    """Start the job of a connection, and send its process id, and then its exit code."""
    request, (log,), _, _ = socket.recv_fds(connection, 1 << 20, 1)
    asked = json.loads(request)
    child = os.fork()
    if child == 0:
        connection.close()
        os.setsid()
        os.chdir(asked["cwd"])
        become(asked["command"], asked["environment"], log)
    os.close(log)
    connection.sendall(b"%d\n" % child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(b"%d\n" % code)


def serve(path: str) -> None:
    """Load the libraries, then fork for each connection. Ends with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    gc.disable()
    os.environ["DISABLE_MLFLOW_INTEGRATION"] = "TRUE"
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _job(connection)
                os._exit(0)
            connection.close()


class Started:
    """A job that the warm process has started, with the methods of `subprocess.Popen` that the executor calls."""

    def __init__(self, path: Path, command: Sequence[str], cwd: Path, env: Mapping[str, str], log: int) -> None:
        self.returncode: int | None = None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        request = json.dumps({"command": list(command), "cwd": str(cwd), "environment": dict(env)}).encode()
        socket.send_fds(self._socket, [request], [log])
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
    """The process that has loaded the libraries. The first job starts it."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "warm"
        self._log = folder / "warm.log"
        self._process: subprocess.Popen[bytes] | None = None

    def ready(self) -> None:
        """Start the process, unless it runs, and wait until it has loaded the libraries."""
        if self._process is None:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(self._socket)],
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "HF_HOME": str(self._log.parent / "huggingface"), "PYTHONPATH": str(ROOT)},
                )
        limit = time.monotonic() + 120
        while not self._socket.exists():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < limit, self._log.read_text()
            time.sleep(0.05)

    def start(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], stdout: Any, **_: Any) -> Started:
        """Start a job with the arguments of `subprocess.Popen`."""
        return Started(self._socket, command, cwd, env, stdout.fileno())

    def stop(self) -> None:
        """End the process. Jobs that still run are not affected."""
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
    serve(sys.argv[1])
