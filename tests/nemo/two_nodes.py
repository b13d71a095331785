"""A Ray cluster of two nodes on loopback in the environment of the release, each with one logical GPU."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from ratchet.runtime.telemetry import NO_TELEMETRY
from tests.nemo.runs import PYTHON
from tests.ray_cluster import HEAD, OTHER, free_port


@contextmanager
def two_ray_nodes(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Start the cluster and yield its address. `folder` has a short path; `environment` is that of the job, which the workers inherit."""
    port, log = free_port(HEAD), folder / "nodes.log"
    address = f"{HEAD}:{port}"
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> None:
        program = [str(PYTHON), "-m", "ray.scripts.scripts", "start", *options, "--num-cpus=8", "--num-gpus=1", "--block"]
        memory = ["--object-store-memory=200000000", "--disable-usage-stats"]
        with log.open("ab") as file:
            own = {**os.environ, **NO_TELEMETRY, **environment}
            started.append(subprocess.Popen([*program, *memory], env=own, stdout=file, stderr=file, start_new_session=True))

    try:
        start("--head", f"--port={port}", f"--node-ip-address={HEAD}", "--include-dashboard=false")
        _await(port, log)
        start(f"--address={address}", f"--node-ip-address={OTHER}")
        yield address
    finally:
        children = [child for node in started for child in _tree(node.pid)]
        for process in children:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for node in started:
            node.wait()
        psutil.wait_procs(children, timeout=20)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _await(port: int, log: Path) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            socket.create_connection((HEAD, port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(f"Ray does not listen on {HEAD}:{port}: {log.read_text()[-2000:]}")
