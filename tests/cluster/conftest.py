"""Fixtures for tests that need a cluster.

The tests of this folder share `rig`, `karpenter_rig` and `real_rig`, of which one is up at a time. `namespace` and `real_namespace` give
each test a new namespace. If a test cluster cannot be started on this machine, its tests are skipped with the reason; in CI they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import config

from ratchet.k8s.api.client import QUEUE, KubernetesCluster
from ratchet.k8s.manifests.policies import CONTROLLER, SCHEDULER_CONFIG, VOLCANO_NAMESPACE
from ratchet.k8s.preflight.cluster_facts import CONFIG_MAP
from tests.cluster.chart import CHART, VALUES
from tests.cluster.prepared_namespace import PreparedNamespace
from tests.cluster.rig import build, real
from tests.cluster.rig.build import CRDS, KARPENTER, PLANE, REAL, TRAEFIK, VOLCANO, RigError
from tests.cluster.rig.cluster import Rig
from tests.cluster.whole import Whole
from tests.needs import Need, lacks
from tests.postgres import postgres_server
from tests.s3 import served
from tests.toy_line import write_model

NEEDS: dict[str, tuple[str, ...]] = {
    "rig": PLANE + VOLCANO,
    "make_rig": PLANE + VOLCANO,
    "karpenter_rig": PLANE + VOLCANO + KARPENTER,
    "real_rig": PLANE + VOLCANO + REAL,
    "gateway_rig": PLANE + VOLCANO + REAL + TRAEFIK,
    "contest_parts": PLANE + VOLCANO + KARPENTER + ("kube-scheduler",),
    "whole_rig": PLANE + VOLCANO + REAL + TRAEFIK + ("kube-scheduler", "helm"),
    "crds": CRDS,
    "helm_parts": ("helm",),
}
"""The parts that each fixture needs."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the parts that the selected tests need, before any test runs, so that no build counts against a test's time limit."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    names = [part for fixture in NEEDS if fixture in used for part in NEEDS[fixture]]
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        build.build(names, reporter.write_line if reporter else print)
    except RigError as error:
        session.config.stash[REASON] = str(error)


REASON = pytest.StashKey[str]()


SHARED = ("rig", "karpenter_rig", "real_rig")
"""Fixtures with a test cluster that many tests share. Tests with the same one run together, and only one of them is up at a time."""
UP: list[Rig] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the cluster tests by the test cluster that they share. Tests with a cluster of their own, or without one, come last."""
    folder = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        used = getattr(item, "fixturenames", ())
        return next((number for number, name in reversed(list(enumerate(SHARED))) if name in used), len(SHARED))

    here = [item.path.is_relative_to(folder) for item in items]
    ordered = iter(sorted((item for item, ours in zip(items, here, strict=True) if ours), key=place))
    items[:] = [next(ordered) if ours else item for item, ours in zip(items, here, strict=True)]


def _require(request: pytest.FixtureRequest) -> None:
    """Skips where this machine cannot run the rig of the requested fixture. Fails where a part of the rig does not build."""
    fixture = request.fixturename or ""
    absent = ", ".join(part.name for part in build.missing(NEEDS[fixture]))
    if absent and shutil.which("go") is None:
        lacks(Need.GO, "the test cluster is not built")
    if absent:
        pytest.fail(request.config.stash.get(REASON, f"parts of the test cluster are not built: {absent}"))
    if "kubelet" in NEEDS[fixture]:
        if os.geteuid() != 0:
            lacks(Need.ROOT, "real nodes need it")
        if obstacles := real.obstacles():
            lacks(Need.CONTAINERD, "; ".join(obstacles))


def _folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder for a test cluster; the path is short because the length of socket paths is limited."""
    return factory.mktemp("r") / "g"


@pytest.fixture(scope="package")
def make_rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Rig]]:
    """A function that returns a new test cluster, not started yet; all of them go down at the end."""
    _require(request)
    made: list[Rig] = []

    def make() -> Rig:
        made.append(Rig(_folder(tmp_path_factory)))
        return made[-1]

    yield make
    for rig in made:
        rig.down()


@pytest.fixture(scope="package")
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A test cluster with control plane, Volcano and kwok; each test adds its own nodes."""
    yield from _up(request, tmp_path_factory, {})


@pytest.fixture(scope="package")
def karpenter_rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Like `rig`, with an autoscaler that launches simulated nodes with 8 GPUs (p5en.48xlarge) or without GPUs (m7i.2xlarge)."""
    yield from _up(request, tmp_path_factory, {"karpenter": True})


@pytest.fixture(scope="package")
def real_rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Like `rig`, with cluster DNS and two real nodes, real-0 and real-1, whose pods are real processes; each reports 2 GPUs."""
    yield from _up(request, tmp_path_factory, {"real_nodes": 2})


@pytest.fixture(scope="package")
def gateway_rig(request: pytest.FixtureRequest, real_rig: Rig) -> Rig:
    """The shared `real_rig` with Traefik as Gateway API data plane at `gateway_rig.web`."""
    _require(request)
    real_rig.add("traefik")
    return real_rig


@pytest.fixture(scope="package")
def whole_rig(request: pytest.FixtureRequest, real_rig: Rig) -> Rig:
    """The shared `real_rig` with kube-scheduler and Traefik, and Helm, for an installation whose parts all run in the cluster."""
    _require(request)
    real_rig.add("scheduler")
    real_rig.add("volumes")
    real_rig.add("traefik")
    return real_rig


@pytest.fixture
def whole(whole_rig: Rig, real_namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Whole]:
    """An installation that is not installed yet, with a model, a Postgres server, and an S3 server that pods of real nodes can reach."""
    (folder := tmp_path / "demo").mkdir()
    (tmp_path / "model").mkdir()
    with served(monkeypatch, whole_rig.gateway) as s3, postgres_server() as postgres:
        model = write_model(tmp_path / "model")
        for file in model.iterdir():
            file.chmod(0o644)  # weights are written for their owner alone, and pods have another user
        made = Whole(whole_rig, real_namespace, s3, postgres, folder, model)
        yield made
        made.remove()


@pytest.fixture(scope="package")
def helm_parts(request: pytest.FixtureRequest) -> None:
    """Helm."""
    _require(request)


@pytest.fixture(scope="package")
def crds(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """A function that returns the folder of the published CRDs of volcano, karpenter, aws (EC2NodeClass), kuberay or gateway."""
    _require(request)
    return build.need


@pytest.fixture(scope="package")
def contest_parts(request: pytest.FixtureRequest) -> None:
    """The parts of a test cluster with Volcano, kube-scheduler and Karpenter; the test starts the cluster itself."""
    _require(request)


@pytest.fixture
def namespace(rig: Rig) -> Iterator[str]:
    """A new namespace of `rig`; afterwards it is removed together with the simulated nodes of the test."""
    with rig.namespace() as name:
        yield name


@pytest.fixture
def karpenter_namespace(karpenter_rig: Rig) -> Iterator[str]:
    """A new namespace of `karpenter_rig`; afterwards it is removed together with NodePools, NodeClaims and simulated nodes."""
    with karpenter_rig.namespace() as name:
        yield name


@pytest.fixture
def real_namespace(real_rig: Rig) -> Iterator[str]:
    """A new namespace of `real_rig`. A test that kills a real node starts its own test cluster instead."""
    with real_rig.namespace() as name:
        yield name


def _up(request: pytest.FixtureRequest, factory: pytest.TempPathFactory, options: dict) -> Iterator[Rig]:
    _require(request)
    while UP:
        UP.pop().down()
    made = Rig(_folder(factory))
    UP.append(made)
    made.up(guarded=True, **options)
    try:
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def full(rig: Rig) -> Rig:
    """The shared `rig` with the resource definitions of all rendered objects and with Volcano's namespace."""
    build.build(["aws"], print)
    rig.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(build.need("aws")))
    rig.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(build.need("aws")))
    rig.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": VOLCANO_NAMESPACE}})
    return rig


@pytest.fixture(scope="module")
def cluster(full: Rig) -> KubernetesCluster:
    """The product's client with the rights of the administrator."""
    return KubernetesCluster(config.new_client_from_config(str(full.kubeconfig)))


@pytest.fixture
def prepared(full: Rig, cluster: KubernetesCluster, namespace: str) -> Iterator[PreparedNamespace]:
    """A namespace for rendered objects; afterwards the cluster-wide objects of the test are removed."""
    yield PreparedNamespace(full, cluster, namespace)
    for kind, name in ((QUEUE, namespace), (CONFIG_MAP, SCHEDULER_CONFIG)):
        cluster.delete(kind, name, VOLCANO_NAMESPACE if kind.namespaced else None)
    full.kubectl("delete", "clusterroles,clusterrolebindings", f"{CONTROLLER}-{namespace}", "--ignore-not-found")
    full.kubectl("delete", "validatingadmissionpolicies,validatingadmissionpolicybindings", "--all")
    full.kubectl("delete", "nodepools,ec2nodeclasses", "--all")


@pytest.fixture
def helm(helm_parts: None, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs a command of Helm on the chart, with values."""

    def run(*command: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        environment = {**os.environ, **{f"HELM_{kind}_HOME": str(tmp_path / kind) for kind in ("CACHE", "CONFIG", "DATA")}}
        given = [str(build.need("helm")), *command, str(CHART), "--values", str(file)]
        return subprocess.run(given, env=environment, capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.fixture
def rendered(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., list[dict[str, Any]]]:
    def render(**changes: Any) -> list[dict[str, Any]]:
        done = helm("template", "prod", "--namespace", "ratchet", values={**VALUES, **changes})
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    return render
