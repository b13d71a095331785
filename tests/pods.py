"""The processes of an installation in pods, as real processes of this machine: replicas of the router, and receivers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from ratchet.materializer.receive.credentials import CredentialStore
from ratchet.runtime.serving.exchange import EXCHANGE
from tests.cluster.rig.site import free_ports
from tests.s3 import S3
from tests.waiting import until


class Pod:
    """A process that a test can kill and start again. Its folder is the volume of the pod."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], ready: str) -> None:
        self.name, self._command, self._environment, self._ready = name, command, environment, ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> Pod:
        """Start the process, and wait until it is ready."""
        self._process = subprocess.Popen([sys.executable, *self._command], env={**os.environ, **self._environment})
        if wait:
            until(self.is_ready, 30)
        return self

    def is_ready(self) -> bool:
        """Whether the process answers that it is ready."""
        try:
            return httpx.get(self._ready, timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, and wait until the process has ended."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None


class Replica(Pod):
    """A replica of the router of the line `line`, whose URL is `url`."""

    def __init__(self, folder: Path, keys: Path, s3: S3, name: str, receiver_port: int) -> None:
        port, control = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.control = f"http://127.0.0.1:{control}"
        given = ["--folder", str(folder / name), "--keys", str(keys), "--receiver", "127.0.0.1", "--line", f"line={port}"]
        given += ["--receiver-line", f"line={receiver_port}", "--control-port", str(control)]
        super().__init__(name, ["-m", "ratchet.router.replica", *given], {**exchange_of(s3), "HOSTNAME": name}, f"{self.control}/ready")


class ReceiverPod(Pod):
    """A receiver of the line `line`, whose port is `port`."""

    def __init__(self, folder: Path, s3: S3) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        given = ["--folder", str(folder), "--line", f"line={self.port}"]
        super().__init__("receiver", ["-m", "ratchet.materializer.receive.pod", *given], exchange_of(s3), f"{self.url}/healthz")


def exchange_of(s3: S3) -> dict[str, str]:
    """Return the environment variables by which a process finds the exchange in the bucket of a test."""
    return {EXCHANGE: s3.settings.url, "AWS_ENDPOINT_URL": s3.settings.endpoint or "", "AWS_DEFAULT_REGION": "us-east-1"}


def keys_of(store: CredentialStore, folder: Path) -> Path:
    """Write the router's token and keys for signatures as the Secret of an installation has them, and return the folder of keys."""
    token = store.ensure_router()
    (folder / "line").mkdir(parents=True)
    for file in (token, token.with_name("span-keys.json")):
        (folder / "line" / file.name).write_bytes(file.read_bytes())
    return folder
