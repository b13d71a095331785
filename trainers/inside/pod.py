"""Process 1 of a pod of a gang: works out which incarnation and which node it is, keeps a heartbeat, and runs the job's wrapper.

In a gang on Ray (NeMo RL) the head also starts Ray, waits until all nodes have joined, and ends with the wrapper's exit code;
the other pods only offer their machine. It judges nothing: a pod that is not the gang's first says what the wrapper says, and a
failure is believed only when the cluster has had the time to tell that a peer was lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from contracts.exits import FAILURE, PREEMPTED, STOPPED
from contracts.pod import identity
from contracts.runfolder import BEAT, BEAT_SECONDS

PEER_SECONDS, SILENT_SECONDS = 45.0, 4 * BEAT_SECONDS
"""How long a failure in a gang of several nodes may turn out to be the echo of a peer's death, and after how long without a heartbeat a
peer counts as dead. The cluster itself takes a minute to notice a machine that is gone."""
JOIN_SECONDS = 900.0
"""How long Ray's head waits for the other nodes."""


class Pod:
    """One pod's life."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        incarnation, self.node = identity(environment)
        self.environment = {**environment, "RATCHET_INCARNATION": str(incarnation), "RATCHET_NODE": str(self.node)}
        self.nodes = int(self.environment.get("RATCHET_NODES", "1"))
        self.folder = Path.cwd() / f"i{incarnation}"
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
        """The pod's exit code."""
        os.umask(0o077)  # a job's files hold what users said
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.environment.get("RATCHET_BACKEND") != "nemo-rl":
            return self._believed(self._attend([sys.executable, "-m", "trainers.inside.wrapper"]))
        return self._head() if self.node == 0 else self._worker()

    def _believed(self, code: int) -> int:
        """A failure of one node of many may be the echo of another's death: then the cluster stops this pod too, or the other's heart has
        stopped. Both are a preemption and no failure of the training."""
        until, heard = time.monotonic() + PEER_SECONDS, dict[int, tuple[str, float]]()
        while code == FAILURE and self.nodes > 1 and not self.stopped and time.monotonic() < until:
            self._beat()
            if self._deaf_to(heard):
                return PREEMPTED
            time.sleep(0.2)
        return STOPPED if code == FAILURE and self.stopped else code

    def _deaf_to(self, heard: dict[int, tuple[str, float]]) -> bool:
        """Whether some peer has been silent for too long, by what was heard so far."""
        now = time.monotonic()
        for node in set(range(self.nodes)) - {self.node}:
            beat = ""
            with contextlib.suppress(OSError):
                beat = (self.folder / f"{BEAT}{node}").read_text()
            if node not in heard or heard[node][0] != beat:
                heard[node] = (beat, now)
        return any(now - at > SILENT_SECONDS for _, at in heard.values())

    def _head(self) -> int:
        port = self.environment["MASTER_PORT"]
        code = self._attend([*_RAY, "start", "--head", f"--port={port}", "--dashboard-host=127.0.0.1", *self._offer()])
        try:
            if code == 0 and not self.stopped:
                code = self._attend([sys.executable, "-m", "trainers.inside.pod", "--joined", str(self.nodes)])
            if code == 0 and not self.stopped:
                code = self._attend([sys.executable, "-m", "trainers.inside.wrapper"])
        finally:
            subprocess.run([*_RAY, "stop", "--grace-period=5"], env=self.environment, check=False, capture_output=True)
        return self._believed(code) if not self.stopped or code != 0 else STOPPED

    def _worker(self) -> int:
        """Its machine is Ray's until the head is gone or the cluster stops it; neither is a failure of its own."""
        address = f"{self.environment['MASTER_ADDR']}:{self.environment['MASTER_PORT']}"
        until = time.monotonic() + JOIN_SECONDS
        while not self.stopped and time.monotonic() < until:
            began = time.monotonic()
            self._attend([*_RAY, "start", f"--address={address}", "--block", *self._offer()])
            if time.monotonic() - began > 60:
                break  # it had joined: the head has ended
            time.sleep(1)  # the head is not up yet
        return STOPPED

    def _offer(self) -> list[str]:
        """What this machine gives to the cluster: the GPUs that the job was promised, whatever Ray would find."""
        return [f"--num-gpus={self.environment.get('RATCHET_GPUS', '0')}", "--disable-usage-stats"]

    def _attend(self, command: list[str]) -> int:
        """Runs a command to its end, with a heartbeat. Killed by a signal: 128 + its number, as a shell says it."""
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
        """A number that grows: who watches goes by its change, not by anybody's clock."""
        if time.monotonic() - self._beaten < BEAT_SECONDS and self._beats:
            return
        self._beaten, self._beats = time.monotonic(), self._beats + 1
        with contextlib.suppress(OSError):  # a volume that is away for a moment is the watcher's business
            (self.folder / f"{BEAT}{self.node}").write_text(json.dumps({"beat": self._beats, "host": os.uname().nodename}))


_RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def joined(nodes: int) -> int:
    """Waits until so many nodes, and the GPUs that each should have, are in the Ray cluster on this machine."""
    import ray

    ray.init(address="auto", log_to_driver=False)
    wanted = nodes * int(os.environ.get("RATCHET_GPUS", "0"))
    until = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < until:
        alive = [node for node in ray.nodes() if node["Alive"]]
        gpus = sum(node["Resources"].get("GPU", 0) for node in alive)
        if len(alive) >= nodes and gpus >= wanted:
            return 0
        time.sleep(1)
    sys.stderr.write(f"{len(alive)} of {nodes} nodes and {gpus:g} of {wanted} GPUs joined within {JOIN_SECONDS:g} s\n")
    return STOPPED  # not a failure of the training: the gang starts anew


if __name__ == "__main__":
    sys.exit(joined(int(sys.argv[2])) if sys.argv[1:2] == ["--joined"] else Pod(os.environ).run())
