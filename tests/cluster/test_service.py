"""Tests of `ratchet serve` with a loop file that uses a cluster.

The service repairs the line's gangs while no flow observes them, also after an outage of the API server, and ends on SIGTERM.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.composition.cluster import open_cluster
from flows.config.home import Home
from flows.config.load import load_loop
from tests.cluster.bench import PRETENDING, Bench
from tests.cluster.loop_files import line_of
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import REPO, Rig
from tests.command import RATCHET, environment, ratchet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECTIONS = """
[training]
nodes = 2
gpus = 8
[cluster]
namespace = "{namespace}"
queue = "default"
image = "pretended"
profile = "machine.toml"
half_alive = 10
volume = {{ mount = "{mount}", host_path = true }}
"""
AWAY = "the API server does not answer"


class Service:
    """An installation that runs `ratchet serve`, with its log."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.home, self.loop, self.log = Home(folder / "home"), folder / "loop.toml", folder / "serve.log"
        self.environment = environment(self.home.root, KUBECONFIG=str(bench.rig.kubeconfig))
        self.loop.write_text(line_of("jsonl", path="traces") + SECTIONS.format(namespace=bench.namespace, mount=folder))
        (folder / "traces").mkdir()
        words = {"provider": "any", "gpus": PRETENDING.gpus, "cpu": PRETENDING.cpu, "memory": PRETENDING.memory, "shm": PRETENDING.shm}
        (folder / "machine.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in words.items()))
        loop = load_loop(self.loop)
        assert loop.cluster is not None
        bench.executor = open_cluster(loop, loop.cluster, folder, self.home)

    def start(self) -> None:
        """Start `ratchet serve` and append its output to the log."""
        command = [*RATCHET, "serve", str(self.loop)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, cwd=REPO, env=self.environment, stdout=log, stderr=log, start_new_session=True)

    def says(self, words: str, seconds: float = 120) -> None:
        """Wait until the log contains these words."""
        until(lambda: words in self.log.read_text(), seconds, repr(words), self.log.read_text)

    def ended(self) -> None:
        """Wait for the end of the service and assert a normal end without errors in its threads."""
        code = self.process.wait(120)
        text = self.log.read_text()
        assert code == 0, text
        assert "Exception in thread" not in text, text
        assert "stopped; model servers" in text, text

    def stop(self) -> None:
        """Run `ratchet serve --stop`, which ends the service and its servers."""
        ratchet("serve", self.loop, "--stop", home=self.home.root, timeout=120)


@pytest.fixture
def bench(rig: Rig, namespace: str, tmp_path: Path) -> Bench:
    """An executor in a new namespace."""
    return Bench(rig, namespace, tmp_path / "bench")


@pytest.fixture
def service(bench: Bench, tmp_path: Path) -> Iterator[Service]:
    """An installation that is not started yet; it is stopped after the test."""
    made = Service(tmp_path, bench)
    yield made
    made.stop()


def test_the_service_mends_a_gang_that_no_flow_looks_at_and_starts_and_ends_without_its_cluster(bench: Bench, service: Service) -> None:
    """The API server is away when the service starts, and again when it is told to end."""
    bench.rig.fake_nodes(4)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    until(lambda: len(bench.rig.pods(bench.namespace, "Running")) == 2, 30, "the gang")

    def mended() -> bool:
        pods = bench.rig.pods(bench.namespace)
        fresh = [pod for pod in pods if int(pod["metadata"]["annotations"]["volcano.sh/job-version"]) >= 1]
        running = [pod for pod in fresh if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]
        return len(running) == 2 and bench.gang()["status"].get("retryCount", 0) >= 1

    bench.rig.kill("apiserver")
    try:
        service.start()
        service.says("Prefect UI")
        service.says(AWAY)
        bench.rig.restart("apiserver")
        until(lambda: bench.rig.api.items("/api/v1/nodes"), 30, "the nodes")
        bench.rig.silence(bench.rig.pods(bench.namespace, "Running")[0]["spec"]["nodeName"])
        until(mended, 120, "the repair", service.log.read_text)
        service.says("test: restarted ")
        bench.rig.kill("apiserver")
        until(lambda: service.log.read_text().count(AWAY) >= 2, 90, "the second outage", service.log.read_text)
        service.process.send_signal(signal.SIGTERM)
        service.ended()
    finally:
        bench.rig.restart("apiserver")
