"""Tests of `ratchet k8s logs`, which shows the output of a job's pods and trainers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ratchet.contracts.jobs.training import JobState
from ratchet.flows.composition.cluster import open_cluster
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop
from ratchet.k8s.manifests.policies import CONTROLLER, JOB_ACCOUNT
from tests.cluster.bench import REAL, Bench
from tests.cluster.loop_files import MACHINE, SECTION, line_of
from tests.cluster.prepared_namespace import PreparedNamespace
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import REPO, Rig
from tests.cluster.rig.images import HOST
from tests.command import ratchet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROCESS = """#!/bin/sh
mkdir -p i1
echo said by the pod
for step in 1 2 3; do echo step $step >> i1/trainer.log; sleep 1; done
printf half >> i1/trainer.log; sleep 2; echo ' a line' >> i1/trainer.log
echo '{"outcome": "done", "reason": "three steps"}' > i1/ended.json
"""


def test_the_newest_job_is_followed_to_its_end(real_rig: Rig, real_namespace: str, tmp_path: Path) -> None:
    bench, loop, home = Bench(real_rig, real_namespace, tmp_path / "bench", REAL), tmp_path / "loop.toml", Home(tmp_path / "home")
    process = tmp_path / "process"
    process.write_text(PROCESS)
    process.chmod(0o755)
    home.artifacts.mkdir(parents=True)
    words = {"namespace": real_namespace, "image": HOST, "python": process, "home": home.root}
    loop.write_text(line_of("receiver") + SECTION.format(**words))
    (tmp_path / "machine.toml").write_text(MACHINE.format(mounts=[*REAL.mounts, str(tmp_path)], repo=REPO))
    found = load_loop(loop)
    assert found.cluster is not None
    bench.executor = open_cluster(found, found.cluster, tmp_path, home)

    def logs(*arguments: str) -> subprocess.CompletedProcess[str]:
        return ratchet("k8s", "logs", loop, *arguments, home=home.root, timeout=120, KUBECONFIG=str(real_rig.kubeconfig))

    none = logs()
    assert none.returncode != 0
    assert "has had no job on this cluster yet" in none.stderr
    spec = bench.spec(nodes=1, gpus=0)
    bench.executor.submit(spec, 1)
    bench.until(spec, lambda status: (bench.executor.folders.run(spec) / "i1" / "trainer.log").exists())
    first, *lines = logs("--follow").stdout.splitlines()
    assert first == f"{spec.name}:"
    trainers = [line for line in lines if line.startswith("i1/trainer.log: ")]
    assert trainers == [f"i1/trainer.log: {line}" for line in ("step 1", "step 2", "step 3", "half a line")]
    pods = [line for line in lines if line not in trainers]
    # The log of a pod may arrive from the API server later than the file on the volume, so its position is not checked.
    assert [line.rpartition("-worker-0: ")[2] for line in pods] == ["said by the pod"]
    bench.until(spec, lambda status: status.state is JobState.ENDED)
    until(lambda: not real_rig.pods(real_namespace), 60, "the end of the pod")
    again = logs(spec.name, "--lines", "1").stdout.splitlines()
    assert again == [f"{spec.name}:", "i1/trainer.log: half a line"], "only the file is left after the pods are gone"


def test_the_service_may_read_logs_and_its_jobs_may_not(prepared: PreparedNamespace) -> None:
    prepared.prepare()
    words = ("auth", "can-i", "get", "pods", "--subresource=log", "--namespace", prepared.name)
    may = {
        account: prepared.rig.kubectl(*words, f"--as=system:serviceaccount:{prepared.name}:{account}", check=False).strip()
        for account in (CONTROLLER, JOB_ACCOUNT)
    }
    assert may == {CONTROLLER: "yes", JOB_ACCOUNT: "no"}
