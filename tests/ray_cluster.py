"""A Ray cluster of two nodes on loopback, with a token, without dashboard and usage statistics."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from ratchet.runtime.telemetry import NO_TELEMETRY

ROOT = Path(__file__).resolve().parents[1]
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
"""Ray replaces 127.0.0.1 by an address of the machine."""
_TRIES = 3
"""Between the choice of a free port and its use, another process may take it: Ray itself takes a dozen at random."""


class RayCluster:
    """The cluster. Each node has one CPU, and so one worker at a time."""

    def __init__(self, folder: Path) -> None:
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        """What a driver needs in its environment."""
        self._log_file = folder / "log"
        self._log = self._log_file.open("wb")
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._processes: list[psutil.Process] = []
        for left in reversed(range(_TRIES)):
            try:
                self._start_head(folder / f"r{left}")
                break
            except ChildProcessError:  # another process has taken one of its ports
                self._kill()
                if not left:
                    raise
        self._nodes.append(self._node("--address", self.address, "--node-ip-address", OTHER))

    def _start_head(self, folder: Path) -> None:
        """Start the head node and wait until it listens. Raises ChildProcessError if it ends, or does not listen."""
        port, client = free_port(HEAD), free_port(HEAD)
        self.address, self.client_address = f"{HEAD}:{port}", f"ray://{HEAD}:{client}"
        ports = ["--port", str(port), "--ray-client-server-port", str(client)]
        head = self._node("--head", *ports, "--node-ip-address", HEAD, "--temp-dir", str(folder), "--include-dashboard=false")
        self._nodes = [head]
        for one in (port, client):
            if not _listens(one, head):
                told = self._log_file.read_text(errors="replace")[-2000:]
                raise ChildProcessError(
                    f"Ray does not listen on {HEAD}:{one}; it has {'ended' if head.poll() is not None else 'not ended'}: {told}"
                )

    def _node(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--num-cpus", "1", "--object-store-memory", "200000000"]
        # With gRPC's support for forks, the client server fails at one connection in ten (docs/howto/scale-out.md).
        environment = {**os.environ, **NO_TELEMETRY, **self.environment, "PYTHONPATH": str(ROOT), "GRPC_ENABLE_FORK_SUPPORT": "0"}
        output = {"stdout": self._log, "stderr": self._log}
        return subprocess.Popen([*command, "--disable-usage-stats", "--block"], env=environment, cwd=ROOT, start_new_session=True, **output)

    def workers(self) -> list[psutil.Process]:
        """Return the processes that run tasks, or wait for one."""
        found = []
        for child in (child for node in self._nodes for child in psutil.Process(node.pid).children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it may have ended
                if child.name().startswith("ray::") and "Agent" not in child.name():
                    found.append(child)
        return found

    def stop(self) -> None:
        """End all processes of the nodes."""
        self._kill()
        self._log.close()

    def _kill(self) -> None:
        started = list[psutil.Process]()
        for node in self._nodes:
            with contextlib.suppress(psutil.NoSuchProcess):  # a node that has ended by itself
                started += [(root := psutil.Process(node.pid)), *root.children(recursive=True)]
        for process in started:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for node in self._nodes:
            node.wait()
        psutil.wait_procs(started, timeout=20)


def free_port(host: str) -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the port answers. Return False if the process ends before, or after 100 s."""
    end = time.monotonic() + 100
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection((HEAD, port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return True
    return False


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Start a cluster. Its folder has a short path, because Ray's sockets are in it."""
    with TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = RayCluster(Path(folder))
        try:
            yield cluster
        finally:
            cluster.stop()
