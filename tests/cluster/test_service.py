"""Tests of `ratchet serve` with a loop file that uses a cluster.

The service repairs the line's gangs while no flow observes them, also after an outage of the API server, and ends on SIGTERM.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ratchet.flows.composition.cluster import open_cluster
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop
from tests import prefect_database
from tests.cluster.bench import PRETENDING, Bench
from tests.cluster.gangs import JOBS, gang, pretended
from tests.cluster.loop_files import line_of
from tests.cluster.rig.api import until
from tests.cluster.rig.build import RigError
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


class Service:
    """An installation that runs `ratchet serve`, with its log."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.home, self.loop, self.log = Home(folder / "home"), folder / "loop.toml", folder / "serve.log"
        prefect_database.place(self.home)
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


def settled(bench: Bench) -> None:
    """Wait until Volcano places gangs again after an outage: run one and delete it.

    A gang that is created or restarted while the caches of Volcano's controller are still old loses its PodGroup, and stays pending. A
    guardian would repair it. This gang has none, so it is created again.
    """
    jobs = f"{JOBS}/namespaces/{bench.namespace}/jobs"

    def runs() -> bool:
        return any(pod["metadata"]["name"] == "probe-worker-0" for pod in bench.rig.pods(bench.namespace, "Running"))

    def placed() -> bool:
        with suppress(RigError, OSError):
            if bench.rig.api.get(f"{jobs}/probe") is None:
                bench.rig.api.call("POST", jobs, gang("probe", 1, pretended(gpus=8)))
            until(runs, 10, "the gang")
            return True
        with suppress(RigError, OSError):
            bench.rig.api.call("DELETE", f"{jobs}/probe?propagationPolicy=Background")
        return False

    until(placed, 90, "Volcano to place a gang")
    bench.rig.api.call("DELETE", f"{jobs}/probe?propagationPolicy=Background")
    until(lambda: len(bench.rig.pods(bench.namespace)) == 2 and len(bench.rig.api.items(jobs)) == 1, 60, "its end")


def test_the_service_mends_a_gang_that_no_flow_looks_at_also_after_an_outage(bench: Bench, service: Service) -> None:
    bench.rig.fake_nodes(4)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    until(lambda: len(bench.rig.pods(bench.namespace, "Running")) == 2, 30, "the gang")
    service.start()
    service.says("Prefect UI")

    def silence() -> None:
        quiet = bench.rig.pods(bench.namespace, "Running")[0]["spec"]["nodeName"]
        bench.rig.silence(quiet)

    def mended(restarts: int) -> bool:
        pods = bench.rig.pods(bench.namespace)
        fresh = [pod for pod in pods if int(pod["metadata"]["annotations"]["volcano.sh/job-version"]) >= restarts]
        running = [pod for pod in fresh if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]
        return len(running) == 2 and bench.gang()["status"].get("retryCount", 0) >= restarts

    silence()
    until(lambda: mended(1), 90, "the first repair", service.log.read_text)
    service.says("test: restarted ")
    bench.rig.kill("apiserver")
    service.says("the API server does not answer", 90)
    bench.rig.restart("apiserver")
    settled(bench)
    silence()
    until(lambda: mended(2), 120, "the second repair", service.log.read_text)
    service.process.send_signal(signal.SIGTERM)
    service.ended()


def test_a_service_whose_cluster_is_away_ends_when_it_is_told_to(bench: Bench, service: Service) -> None:
    bench.rig.kill("apiserver")
    try:
        service.start()
        service.says("Prefect UI")
        service.says("the API server does not answer", 90)
        service.process.send_signal(signal.SIGTERM)
        service.ended()
    finally:
        bench.rig.restart("apiserver")
