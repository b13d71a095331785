"""Pod entrypoint (process 1 of a pod in a gang): determines its incarnation and node, writes a heartbeat, and runs the supervisor.

In a gang on Ray (NeMo RL), the head pod starts Ray, waits until all nodes have joined, and then runs the supervisor. The other pods
only provide their machine to Ray. A pod with a supervisor ends with its exit code. A failure is reported only after a delay, so that
the cluster can detect the loss of a peer first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.exit_codes import FAILURE, PERMANENT, PREEMPTED, STOPPED
from ratchet.runtime.jobs.gang_member import heartbeat, identity
from ratchet.runtime.jobs.job_protocol import (
    BACKEND,
    BEAT_SECONDS,
    GPUS,
    INCARNATION,
    MASTER_ADDRESS,
    MASTER_PORT,
    NODE,
    NODES,
    RAY_PORTS,
    SILENT_SECONDS,
    TrainerBackend,
    beat_file,
    incarnation_folder,
)
from ratchet.trainers.job.pod_environment import completed, umask_of

PEER_SECONDS = 45.0
"""Seconds that a pod of several waits after a failure, because the failure can be a consequence of a lost peer.

A silent peer counts as lost. The cluster itself needs about a minute to detect a lost machine."""
JOIN_SECONDS = 900.0
"""Seconds that the Ray head waits for the other nodes."""
WITHIN_RAY = "--within-ray"
"""Argument of a process that finds a running Ray cluster, such as the entrypoint of a KubeRay RayJob (`k8s/manifests/ray_job.py`)."""
HEAD_PORTS = {"dashboard-port": 8265}
"""A further port of Ray's head. The server for Ray clients takes 10001, and exists only where `ray[client]` is installed."""


class PodEntrypoint:
    """Runs one pod of a gang from start to end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        incarnation, self.node = identity(environment)
        self.environment = {**completed(environment), **INCARNATION.to_env(incarnation), **NODE.to_env(self.node)}
        self.nodes = NODES.get(environment)
        self.folder = Path.cwd() / incarnation_folder(incarnation)
        self.child: subprocess.Popen[bytes] | None = None
        self.stopped = False
        self._beats = 0
        self._beaten = 0.0
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopped = True
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                self.child.terminate()

    def run(self) -> int:
        """Run the pod to its end and return its exit code."""
        os.umask(umask_of(Path.cwd()))
        self.folder.mkdir(parents=True, exist_ok=True)
        if BACKEND.get(self.environment) is not TrainerBackend.NEMO_RL:
            return self._believed(self._attend([sys.executable, "-m", "ratchet.trainers.job.supervisor"]))
        return self._head() if self.node == 0 else self._worker()

    def _believed(self, code: int) -> int:
        """Return the exit code after a check whether a failure is a consequence of a lost peer.

        In that case, the cluster also stops this pod, or the heartbeat of the peer is missing. Both count as a preemption, not as a
        failure of the training.
        """
        until, heard = time.monotonic() + PEER_SECONDS, dict[int, tuple[str, float]]()
        while code == FAILURE and self.nodes > 1 and not self.stopped and time.monotonic() < until:
            self._beat()
            if self._deaf_to(heard):
                return PREEMPTED
            time.sleep(0.2)
        return STOPPED if code == FAILURE and self.stopped else code

    def _deaf_to(self, heard: dict[int, tuple[str, float]]) -> bool:
        """Whether the heartbeat of any peer is overdue. `heard` maps a node to its last heartbeat and the time of its observation."""
        now = time.monotonic()
        for node in set(range(self.nodes)) - {self.node}:
            beat = ""
            with contextlib.suppress(OSError):
                beat = (self.folder / beat_file(node)).read_text()
            if node not in heard or heard[node][0] != beat:
                heard[node] = (beat, now)
        return any(now - at > SILENT_SECONDS for _, at in heard.values())

    def _head(self) -> int:
        port = MASTER_PORT.get(self.environment)
        code = self._attend([*_RAY, "start", "--head", f"--port={port}", "--dashboard-host=127.0.0.1", *_ports(HEAD_PORTS), *self._offer()])
        try:
            if code == 0 and not self.stopped:
                code = self._train()
        finally:
            subprocess.run([*_RAY, "stop", "--grace-period=5"], env=self.environment, check=False, capture_output=True)
        return self._believed(code) if not self.stopped or code != 0 else STOPPED

    def within_ray(self) -> int:
        """Run the job on a Ray cluster that another system has started on the pods of the gang, and return the exit code."""
        os.umask(umask_of(Path.cwd()))
        self.folder.mkdir(parents=True, exist_ok=True)
        code = self._train()
        return self._believed(code) if not self.stopped or code != 0 else STOPPED

    def _train(self) -> int:
        """Wait until all nodes have joined, and run the supervisor. Return the exit code."""
        code = self._attend([sys.executable, "-m", "ratchet.trainers.job.pod_entrypoint", "--joined", str(self.nodes)])
        if code == 0 and not self.stopped:
            code = self._attend([sys.executable, "-m", "ratchet.trainers.job.supervisor"])
        return code

    def _worker(self) -> int:
        """Provide the machine to Ray until the head ends or the cluster stops the pod. Neither is a failure of this pod."""
        address = f"{MASTER_ADDRESS.get(self.environment)}:{MASTER_PORT.get(self.environment)}"
        until = time.monotonic() + JOIN_SECONDS
        while not self.stopped and time.monotonic() < until:
            began = time.monotonic()
            self._attend([*_RAY, "start", f"--address={address}", "--block", *self._offer()])
            if time.monotonic() - began > 60:
                break  # the node had joined, so the head has ended
            time.sleep(1)  # the head has not started yet
        return STOPPED

    def _offer(self) -> list[str]:
        """Ray options of this machine: its ports, and the number of GPUs of the job instead of the number that Ray detects."""
        return [f"--num-gpus={GPUS.get(self.environment)}", "--disable-usage-stats", *_ports(RAY_PORTS)]

    def _attend(self, command: list[str]) -> int:
        """Run a command to its end with a heartbeat, and return its exit code. After a signal, this is 128 + the number of the signal."""
        self.child = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL)
        if self.stopped:
            self.child.terminate()
        self._beat()
        while True:
            try:
                code = self.child.wait(0.2)
            except subprocess.TimeoutExpired:
                self._beat()
            else:
                return 128 - code if code < 0 else code

    def _beat(self) -> None:
        """Write the heartbeat if the last one is old enough."""
        if time.monotonic() - self._beaten < BEAT_SECONDS and self._beats:
            return
        self._beaten, self._beats = time.monotonic(), self._beats + 1
        with contextlib.suppress(OSError):  # an unavailable volume is detected by the observer of the heartbeat
            (self.folder / beat_file(self.node)).write_bytes(heartbeat(self._beats))


def _ports(ports: Mapping[str, int]) -> list[str]:
    return [f"--{name}={port}" for name, port in ports.items()]


_RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def joined(nodes: int) -> int:
    """Wait until the Ray cluster has `nodes` nodes with all their GPUs. Return 0, or STOPPED after JOIN_SECONDS.

    The process must run on the head, because it connects to the local Ray.
    """
    import ray

    ray.init(address="auto", log_to_driver=False)
    wanted = nodes * GPUS.get(os.environ)
    until = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < until:
        alive = [node for node in ray.nodes() if node["Alive"]]
        gpus = sum(node["Resources"].get("GPU", 0) for node in alive)
        if len(alive) >= nodes and gpus >= wanted:
            return 0
        time.sleep(1)
    sys.stderr.write(f"{len(alive)} of {nodes} nodes and {gpus:g} of {wanted} GPUs joined within {JOIN_SECONDS:g} s\n")
    return STOPPED  # not a failure of the training: the gang is restarted


def main() -> int:
    """Run the pod, or the wait for the nodes of Ray, and return the exit code."""
    if sys.argv[1:2] == ["--joined"]:
        return joined(int(sys.argv[2]))
    try:
        entrypoint = PodEntrypoint(os.environ)
        return entrypoint.within_ray() if sys.argv[1:2] == [WITHIN_RAY] else entrypoint.run()
    except Permanent as error:
        sys.stderr.write(f"{error}\n")
        return PERMANENT


if __name__ == "__main__":
    sys.exit(main())
