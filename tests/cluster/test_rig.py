"""Tests of the test cluster itself: it starts, places gangs, simulates failures, and is removed completely."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.gangs import JOBS, gang, pretended, real
from tests.cluster.rig import cgroups
from tests.cluster.rig.api import until
from tests.cluster.rig.build import RigError
from tests.cluster.rig.cluster import REPO, Rig
from tests.cluster.rig.processes import Processes, born, send
from tests.cluster.rig.site import name_of

pytestmark = pytest.mark.slow

RESTART = {"event": "PodEvicted", "action": "RestartJob"}
WORKER = """
import signal, socket, sys, time
def stop(*_):
    open("{folder}/" + socket.gethostname() + ".stopped", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
peers = open("/etc/volcano/worker.host").read().split()
deadline = time.monotonic() + 40
for peer in peers:
    while True:
        try:
            socket.gethostbyname(peer)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
socket.create_connection(("{server}", {port}), timeout=20).close()
print("found", *peers, flush=True)
open("{folder}/" + socket.gethostname(), "w").write(" ".join(peers))
time.sleep(600)
"""
RUNNER = """
import pathlib, time
from tests.cluster.rig.cluster import Rig
Rig(pathlib.Path({folder!r})).up(volcano=False, guarded=True)
print("up", flush=True)
time.sleep(600)
"""


def submit(rig: Rig, namespace: str, job: dict) -> None:
    """Create a Volcano Job in the namespace."""
    rig.api.call("POST", f"{JOBS}/namespaces/{namespace}/jobs", job)


def job_state(rig: Rig, namespace: str, name: str) -> str:
    """Return the phase of a Volcano Job; empty before it has one."""
    return rig.api.get(f"{JOBS}/namespaces/{namespace}/jobs/{name}")["status"].get("state", {}).get("phase", "")


def running(rig: Rig, namespace: str) -> list[str]:
    """Return the names of the running pods."""
    return [pod["metadata"]["name"] for pod in rig.pods(namespace, "Running")]


def taints(rig: Rig, node: str) -> list[str]:
    """Return the keys of a node's taints."""
    return [taint["key"] for taint in rig.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])]


def leftovers(folder: Path) -> list[str]:
    """Return the processes, mounts, interfaces, files and control groups of the test cluster in `folder` that still exist."""
    name = name_of(folder)
    processes = [f"process {pid}" for pid, _ in Processes(folder).marked()]
    named = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and _speaks_of(entry, str(folder))]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    interfaces = [path.name for path in Path("/sys/class/net").iterdir() if path.name == name]
    files = [str(path) for path in folder.iterdir() if path.name != "log"] if folder.exists() else []
    return processes + named + mounts + interfaces + files + [str(path) for path in cgroups.groups(name)]


def _speaks_of(process: Path, folder: str) -> bool:
    """Return whether the command line of the process contains the folder."""
    if int(process.name) == os.getpid() or born(int(process.name)) is None:
        return False
    try:
        return f"{folder}/" in (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False


def test_a_gang_runs_when_its_last_node_comes_and_not_before(rig: Rig, namespace: str) -> None:
    rig.fake_nodes(2)
    submit(rig, namespace, gang("three", 3, pretended(gpus=8)))
    until(lambda: len(rig.pods(namespace)) == 3, 20, "the gang's pods")
    unplaced = "/apis/scheduling.volcano.sh/v1beta1/namespaces/" + namespace + "/podgroups"
    until(lambda: "Unschedulable" in str(rig.api.items(unplaced)), 20, "the scheduler to report the gang as unschedulable")
    assert running(rig, namespace) == []
    rig.fake_nodes(1)
    until(lambda: len(running(rig, namespace)) == 3, 20, "all pods of the gang")
    until(lambda: job_state(rig, namespace, "three") == "Running", 10, "the job's state")


@pytest.mark.parametrize(("code", "state"), [(0, "Completed"), (78, "Aborted"), (1, "Running")])
def test_a_pretended_pod_ends_as_its_annotations_say(rig: Rig, namespace: str, code: int, state: str) -> None:
    rig.fake_nodes(2)
    policies = (
        {"exitCode": 78, "action": "AbortJob"},
        {"event": "PodFailed", "action": "RestartJob"},
        {"event": "TaskCompleted", "action": "CompleteJob"},
    )
    submit(rig, namespace, gang("two", 2, pretended(gpus=8), policies))
    until(lambda: len(running(rig, namespace)) == 2, 20, "the gang")
    before = {pod["metadata"]["uid"] for pod in rig.pods(namespace)}
    for name in ("two-worker-0", "two-worker-1") if code == 0 else ("two-worker-0",):
        rig.end_pod(namespace, name, code, after="200ms")
    until(lambda: before != {pod["metadata"]["uid"] for pod in rig.pods(namespace, "Running")}, 10, "the end of the pods")
    until(lambda: job_state(rig, namespace, "two") == state, 20, f"state {state}")
    if state == "Running":
        until(lambda: len(running(rig, namespace)) == 2, 20, "the restart of the gang")
        assert not before & {pod["metadata"]["uid"] for pod in rig.pods(namespace, "Running")}


def test_a_silenced_node_is_lost_without_a_word(rig: Rig, namespace: str) -> None:
    quiet, loud = rig.fake_nodes(2)
    pod = pretended(gpus=8) | {"tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}]}
    submit(rig, namespace, gang("pair", 2, pod))
    until(lambda: len(running(rig, namespace)) == 2, 20, "the gang")
    rig.silence(quiet)

    def unreachable() -> bool:
        return any(
            taint["key"] == "node.kubernetes.io/unreachable" for taint in rig.api.get(f"/api/v1/nodes/{quiet}")["spec"].get("taints", [])
        )

    def stuck() -> list[str]:
        ending = [pod for pod in rig.pods(namespace) if "deletionTimestamp" in pod["metadata"]]
        return [pod["metadata"]["name"] for pod in ending if pod["spec"].get("nodeName") == quiet]

    until(unreachable, 40, "the node to be unreachable")
    until(stuck, 20, "the eviction")
    time.sleep(3)
    (ending,) = [pod for pod in rig.pods(namespace) if "deletionTimestamp" in pod["metadata"]]
    assert stuck() == [ending["metadata"]["name"]], "the pod must stay, because no kubelet confirms its end"
    assert taints(rig, loud) == []


def seen(rig: Rig, namespace: str) -> str:
    """Return the objects, events and scheduler log that explain why a gang does not run."""
    return rig.kubectl("get", "nodes,podgroups,vcjob,pods,events", "-n", namespace, "-o", "wide") + rig.processes.tail("vc-scheduler")


def test_the_control_plane_dies_and_comes_back_with_its_memory(rig: Rig, namespace: str) -> None:
    """The programs are killed one after the other. If both fail at once, a controller that lists again may wait for minutes.

    The pods belong to no Job, because Volcano's Job controller can miss an admission after an outage; see test_guardian.py.
    """
    rig.fake_nodes(2)
    for number, program in enumerate(("apiserver", "etcd"), 1):
        rig.kill(program)
        until(lambda: not rig.api.ready(), 20, f"the outage after killing {program}")
        rig.restart(program)
        pod = {"metadata": {"name": f"after-{program}"}, "spec": pretended(gpus=8) | {"schedulerName": "volcano"}}
        rig.api.call("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
        until(lambda n=number: len(running(rig, namespace)) == n, 30, "a pod after the outage", lambda: seen(rig, namespace))
    assert [name for name in rig.processes.names() if not rig.processes.alive(name)] == []


def test_a_static_pool_makes_the_nodes_of_a_gang(karpenter_rig: Rig, karpenter_namespace: str) -> None:
    kind = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    need = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5en.48xlarge"]}]
    template = {
        "metadata": {"annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {"nodeClassRef": kind, "requirements": need, "expireAfter": "Never"},
    }
    pool = {"replicas": 2, "limits": {"nodes": "2"}, "template": template}
    karpenter_rig.apply(
        {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}},
        {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "pool"}, "spec": pool},
    )
    submit(karpenter_rig, karpenter_namespace, gang("pair", 2, pretended(gpus=8)))
    until(lambda: len(running(karpenter_rig, karpenter_namespace)) == 2, 40, "the gang", lambda: karpenter_rig.processes.tail("karpenter"))
    assert len({pod["spec"]["nodeName"] for pod in karpenter_rig.pods(karpenter_namespace)}) == 2


def test_two_rigs_live_side_by_side_and_die_apart(rig: Rig, make_rig: Callable[[], Rig]) -> None:
    other = make_rig()
    other.up(volcano=False)
    with pytest.raises(RigError, match="a test cluster is up"):
        other.up()
    (node,) = other.fake_nodes(1, prefix="elsewhere")
    assert rig.api.get(f"/api/v1/nodes/{node}") is None
    other.down()
    assert leftovers(other.folder) == []
    assert rig.api.ready()
    other.down()


def test_a_killed_runner_leaves_nothing(make_rig: Callable[[], Rig]) -> None:
    folder = make_rig().folder
    code = RUNNER.format(folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPO, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "up\n"
        assert leftovers(folder)
        runner.send_signal(signal.SIGKILL)
    until(lambda: leftovers(folder) == [], 30, "the end of the test cluster", lambda: "\n".join(leftovers(folder)))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("volcano", "batch.volcano.sh_jobs.yaml"),
        ("karpenter", "karpenter.sh_nodepools.yaml"),
        ("aws", "karpenter.k8s.aws_ec2nodeclasses.yaml"),
        ("kuberay", "ray.io_rayjobs.yaml"),
        ("gateway", "gateway.networking.k8s.io_httproutes.yaml"),
    ],
)
def test_resources_are_described_as_their_authors_do(crds: Callable[[str], Path], name: str, file: str) -> None:
    assert "openAPIV3Schema" in (crds(name) / file).read_text()


def test_a_recycled_pid_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        start = born(stranger.pid)
        assert start is not None
        assert not send(stranger.pid, start - 1, signal.SIGKILL)
        assert born(stranger.pid) == start
        assert send(stranger.pid, start, signal.SIGKILL)


def test_real_processes_of_a_gang_find_and_leave_each_other(real_rig: Rig, real_namespace: str, tmp_path: Path) -> None:
    with socket.create_server((real_rig.gateway, 0)) as server:
        _find_and_leave(real_rig, real_namespace, tmp_path, server.getsockname()[1])


def _find_and_leave(real_rig: Rig, real_namespace: str, tmp_path: Path, port: int) -> None:
    code = WORKER.format(folder=tmp_path, server=real_rig.gateway, port=port)
    submit(real_rig, real_namespace, gang("pair", 2, real(2, "/usr/bin/python3", "-uc", code, write=(tmp_path,)), (RESTART,)))

    def story() -> str:
        return _story(real_rig, real_namespace)

    until(lambda: {p.name for p in tmp_path.iterdir()} >= {"pair-worker-0", "pair-worker-1"}, 60, "both processes", story)
    found = tmp_path / "pair-worker-0"
    until(lambda: found.read_text() == "pair-worker-0.pair pair-worker-1.pair", 30, "the content of the file", story)
    assert {pod["spec"]["nodeName"] for pod in real_rig.pods(real_namespace)} == {"real-0", "real-1"}
    log = real_rig.kubectl("logs", "--namespace", real_namespace, "pair-worker-1")
    assert log == "found pair-worker-0.pair pair-worker-1.pair\n"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "pair-worker-1"}}
    before = {pod["metadata"]["uid"] for pod in real_rig.pods(real_namespace)}
    real_rig.api.call("POST", f"/api/v1/namespaces/{real_namespace}/pods/pair-worker-1/eviction", eviction)
    until(lambda: {p.name for p in tmp_path.glob("*.stopped")} == {"pair-worker-0.stopped", "pair-worker-1.stopped"}, 30, "SIGTERM in both")
    until(lambda: len(running(real_rig, real_namespace)) == 2, 60, "the restart of the gang", story)
    assert not before & {pod["metadata"]["uid"] for pod in real_rig.pods(real_namespace)}


def test_a_route_leads_to_a_real_pod(gateway_rig: Rig, real_namespace: str) -> None:
    port = int(gateway_rig.web.rpartition(":")[2])
    pod = real(0, "/usr/bin/python3", "-m", "http.server", "8000") | {"restartPolicy": "Always", "schedulerName": "volcano"}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod}
    listener = {"name": "web", "protocol": "HTTP", "port": port, "allowedRoutes": {"namespaces": {"from": "Same"}}}
    parts = {
        "apps/v1 Deployment web": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
        "v1 Service web": {"selector": {"app": "web"}, "ports": [{"port": 8000}]},
        "gateway.networking.k8s.io/v1 GatewayClass traefik": {"controllerName": "traefik.io/gateway-controller"},
        "gateway.networking.k8s.io/v1 Gateway web": {"gatewayClassName": "traefik", "listeners": [listener]},
        "gateway.networking.k8s.io/v1 HTTPRoute web": {
            "parentRefs": [{"name": "web"}],
            "rules": [{"backendRefs": [{"name": "web", "port": 8000}]}],
        },
    }
    for (version, kind, name), spec in ((key.split(), spec) for key, spec in parts.items()):
        gateway_rig.apply({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}, namespace=real_namespace)
    until(lambda: b"Directory listing" in _fetch(gateway_rig.web), 60, "an answer", lambda: _story(gateway_rig, real_namespace))


def _fetch(url: str) -> bytes:
    """Return the body of the answer; empty if the request fails."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read()
    except OSError:
        return b""


def test_a_lost_real_node_takes_its_processes_and_down_leaves_nothing(real_rig: Rig, make_rig: Callable[[], Rig], tmp_path: Path) -> None:
    other = make_rig()
    other.up(real_nodes=1)
    with socket.create_server((other.gateway, 0)) as server:
        code = WORKER.format(folder=tmp_path, server=other.gateway, port=server.getsockname()[1])
        _lose_and_drop(other, code, tmp_path)
    assert leftovers(other.folder) == []
    assert real_rig.processes.alive("real-0"), "the node with the same name in the other test cluster must still run"


def _lose_and_drop(other: Rig, code: str, tmp_path: Path) -> None:
    submit(other, "default", gang("alone", 1, real(2, "/usr/bin/python3", "-uc", code, write=(tmp_path,))))
    until(lambda: (tmp_path / "alone-worker-0").exists(), 60, "the process", lambda: _story(other, "default"))
    working = [pid for pid in _processes() if str(tmp_path) in _command(pid)]
    assert working
    other.lose("real-0")
    assert [pid for pid in _processes() if str(tmp_path) in _command(pid)] == []
    assert not (tmp_path / "alone-worker-0.stopped").exists(), "the process must be killed without SIGTERM"
    assert other.api.get("/api/v1/nodes/real-0") is not None, "the Node object must stay, because no process reports the loss"
    other.real_nodes(1)
    other.down()


def _story(rig: Rig, namespace: str) -> str:
    return rig.kubectl("get", "pods,events", "--namespace", namespace, "-o", "wide", check=False)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and int(entry.name) != os.getpid()]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace") if born(pid) else ""
    except OSError:
        return ""
