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


class RayCluster:
    """The cluster. Each node has one CPU, and so one worker at a time."""

    def __init__(self, folder: Path) -> None:
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        """What a driver needs in its environment."""
        port, client = free_port(HEAD), free_port(HEAD)
        self.address, self.client_address = f"{HEAD}:{port}", f"ray://{HEAD}:{client}"
        ports = ["--port", str(port), "--ray-client-server-port", str(client)]
        self._log = (folder / "log").open("wb")
        self._nodes = [
            self._node("--head", *ports, "--node-ip-address", HEAD, "--temp-dir", str(folder / "r"), "--include-dashboard=false")
        ]
        _await_port(port)
        _await_port(client)
        self._nodes.append(self._node("--address", self.address, "--node-ip-address", OTHER))
        self._processes: list[psutil.Process] = []

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
        started = [process for node in self._nodes for process in psutil.Process(node.pid).children(recursive=True)]
        for process in [*(psutil.Process(node.pid) for node in self._nodes), *started]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for node in self._nodes:
            node.wait()
        psutil.wait_procs(started, timeout=20)
        self._log.close()


def free_port(host: str) -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


def _await_port(port: int) -> None:
    end = time.monotonic() + 240
    while time.monotonic() < end:
        try:
            socket.create_connection((HEAD, port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"Ray does not listen on {HEAD}:{port}")


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Start a cluster. Its folder has a short path, because Ray's sockets are in it."""
    with TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = RayCluster(Path(folder))
        try:
            yield cluster
        finally:
            cluster.stop()
