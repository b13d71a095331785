"""A Ray cluster in pods ingests what the service alone ingests, also if its pods are killed in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.whole import LINE, RELEASE, Whole
from tests.made_up_traces import made_up_lines
from tests.soak_results import record
from tests.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400)]

ALONE = "alone"
"""The line with the same sources whose work the service does itself."""
RECORDS = 3000
SUMS = """
import json, sys
from ratchet.contracts.ids import digest
from ratchet.flows.config.home import Home
from ratchet.materializer.lake.tables import Lake
found = {}
for line in sys.argv[1:]:
    lake = Lake(Home.from_environment().lake(line))
    tables = {name: lake.scan(name).drop("ingested") for name in ("traces", "feedback", "quarantine", "consent")}
    rows = {name: sorted(json.dumps(row, default=str) for row in table.to_dicts()) for name, table in tables.items()}
    found[line] = {name: [len(some), digest(some)] for name, some in rows.items()}
print(json.dumps(found))
"""
"""Program that prints for each line and each table of its lake the number of rows and their digest."""


def test_ray_in_pods_gives_what_the_service_alone_gives(whole: Whole) -> None:
    whole.lines = (LINE, ALONE)
    token = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ratchet-ray"}, "stringData": {"token": "t" * 64}}
    whole.rig.apply(token, namespace=whole.namespace)
    whole.install(by_gateway=True, change=lambda values: with_ray(whole, values))
    whole.wait_ready("service", 1)
    whole.wait_ready("ray-head", 1)
    whole.wait_ready("ray-worker", 2)
    loop = f"/lines/{LINE}/loop.toml"
    until(lambda: "nodes: 3, CPUs: 2" in whole.ratchet("check", loop, check=False), 300, 2.0, whole.story)

    began = time.monotonic()
    figures: dict[str, Any] = {"files": upload(whole, range(6)), "records": 6 * RECORDS}
    killed = kill_busy_worker(whole)
    whole.told(f"{killed} is killed at a task")
    until(lambda: len(whole.ready("ray-worker")) == 2 and not is_there(whole, killed), 240, 1.0, whole.story)
    figures["worker_back_s"] = round(time.monotonic() - began, 1)
    sums = until_same(whole, 6 * RECORDS)
    figures["ingested_s"] = round(time.monotonic() - began, 1)
    whole.told(f"both lines have the same rows: {sums}")
    exports = {line: exported(whole, line) for line in whole.lines}
    assert exports[LINE] == exports[ALONE], "the same training set"
    assert exports[LINE]["rows"]

    began = time.monotonic()
    figures["files"] += upload(whole, range(6, 10))
    busy_worker(whole)
    head = whole.ready("ray-head")[0]["metadata"]["name"]
    whole.rig.kubectl("delete", "pod", head, "-n", whole.namespace, "--grace-period=0", "--force")
    whole.told("the head is killed")
    sums = until_same(whole, 10 * RECORDS)
    figures |= {"records": 10 * RECORDS, "after_head_s": round(time.monotonic() - began, 1)}
    whole.told(f"both lines have the same rows again: {sums}")
    log = whole.rig.kubectl("logs", f"{RELEASE}-service-0", "--tail=-1", "-n", whole.namespace)
    assert "local Ray instance" not in log, "the service does not become a cluster of its own"
    rows = {name: count for name, (count, _) in sums.items()}
    record("cluster_ray", {**figures, "rows": rows, "training_set": exports[LINE]["rows"], "differences": 0})


def with_ray(whole: Whole, values: dict[str, Any]) -> None:
    """Change the values: a Ray cluster of two workers, the line that uses it, and beside it a line that does not."""
    small = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "3Gi"}}
    values["ray"] = {"workers": 2, "secret": "ratchet-ray", "objects": "512Mi", "resources": small, "head": {"resources": small}}
    [line] = values["lines"]
    address = f"ray://{RELEASE}-ray.{whole.namespace}.svc:10001"
    alone = {**line, "name": ALONE, "receiverPort": line["receiverPort"] + 1}
    alone["loop"] = line["loop"].replace(f'name = "{LINE}"', f'name = "{ALONE}"').replace(f'model = "{LINE}"', f'model = "{ALONE}"')
    line["loop"] += f'[compute]\nengine = "ray"\naddress = "{address}"\nworkers = 2\n'
    values["lines"] = [line, alone]


def upload(whole: Whole, seeds: range) -> int:
    """Put a file per seed beside the traffic of the lines, and return their number."""
    for seed in seeds:
        body = made_up_lines(seed, RECORDS)
        whole.s3.client.put_object(Bucket=whole.s3.bucket, Key=f"traces/made-up-{seed}.jsonl", Body=body)
    return len(seeds)


def busy_worker(whole: Whole) -> tuple[int, str]:
    """Wait until a pod of Ray is at a task, and return the process and the name of the pod."""

    def found() -> tuple[int, str] | None:
        pods = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in whole.ready("ray-worker")}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                name, groups = (folder / "cmdline").read_bytes(), (folder / "cgroup").read_text()
            except OSError:
                continue
            uid = re.search(r"/pod([0-9a-f-]{36})/", groups)
            if name.startswith(b"ray::ratchet") and uid and uid[1] in pods:
                return int(folder.name), pods[uid[1]]
        return None

    return until(found, 300, 0.05, whole.story)


def kill_busy_worker(whole: Whole) -> str:
    """Kill -9 a process of Ray in the middle of its task, then its pod, and return the name of the pod."""
    process, pod = busy_worker(whole)
    os.kill(process, signal.SIGKILL)
    whole.rig.kubectl("delete", "pod", pod, "-n", whole.namespace, "--grace-period=0", "--force")
    return pod


def is_there(whole: Whole, name: str) -> bool:
    """Whether a pod exists."""
    return any(pod["metadata"]["name"] == name for pod in whole.rig.pods(whole.namespace))


def in_service(whole: Whole, *command: str) -> str:
    """Run a Python program in the service's pod, and return the last line of its output."""
    found = whole.rig.kubectl("exec", f"{RELEASE}-service-0", "-n", whole.namespace, "--", sys.executable, *command)
    return found.strip().splitlines()[-1]


def until_same(whole: Whole, traces: int) -> dict[str, tuple[int, str]]:
    """Wait until both lakes have at least that many traces, and return what is in them. It must be the same."""
    sums: dict[str, dict[str, tuple[int, str]]] = {}

    def complete() -> bool:
        sums.update(json.loads(in_service(whole, "-c", SUMS, *whole.lines)))
        return all(tables["traces"][0] >= traces for tables in sums.values())

    until(complete, 900, 5.0, lambda: f"{sums}\n{whole.story()}")
    assert sums[LINE] == sums[ALONE]
    assert all(count for count, _ in sums[LINE].values()), "every table has rows"
    return sums[LINE]


def exported(whole: Whole, line: str) -> dict[str, Any]:
    """Return the numbers of rows and the digests of the training set that a line has now."""
    folder = f"/tmp/export-{line}"
    whole.ratchet("dataset", "export", f"/lines/{line}/loop.toml", "--now", "--format", "trl", "--out", folder, "--by", "ada")
    found = json.loads(whole.rig.kubectl("exec", f"{RELEASE}-service-0", "-n", whole.namespace, "--", "cat", f"{folder}/manifest.json"))
    return {name: found[name] for name in ("rows", "sha256", "left_out")}
