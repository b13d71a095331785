"""The test cluster as tests use it: they start it, inject the failures that occur in a cloud, and take it down completely.

All of its state is in one folder, so that another process can inspect it, inject failures, or take it down.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from tests.cluster.rig import build, fake, network, plane, real
from tests.cluster.rig.api import Api, until
from tests.cluster.rig.build import RigError
from tests.cluster.rig.certificates import Authority, write_kubeconfig, write_signer
from tests.cluster.rig.images import write_images
from tests.cluster.rig.processes import Processes, born
from tests.cluster.rig.site import Site, name_of

REPO = Path(__file__).resolve().parents[3]
GPU = "nvidia.com/gpu"
GUARD = "guard"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader if available; the pure Python loader needs several seconds per megabyte of YAML."""
RESOURCES = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KARPENTER = "/apis/karpenter.sh/v1"
OWNERS = tuple(
    f"/apis/{kind}"
    for kind in ("batch.volcano.sh/v1alpha1/namespaces/{}/jobs", "apps/v1/namespaces/{}/deployments", "apps/v1/namespaces/{}/statefulsets")
)
"""API paths of the objects that recreate their pods after a deletion."""


class Rig:
    """One test cluster. `up` creates its folder; `down` removes all of the folder's content except the logs."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self.folder = folder.absolute()
        self.processes = Processes(self.folder)
        self._say = say

    @property
    def site(self) -> Site:
        """The folder, ports and network of the cluster. Raises RigError if the cluster is down."""
        site = Site.of(self.folder)
        if site is None:
            raise RigError(f"no test cluster is up in {self.folder}; start it with `up`")
        return site

    @property
    def api(self) -> Api:
        """A client of the API server with administrator rights."""
        return Api(self.site.server, self.site.pki)

    @property
    def kubeconfig(self) -> Path:
        """The path of the administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    @property
    def gateway(self) -> str:
        """The address at which pods of real nodes reach servers on this machine."""
        return self.site.gateway

    @property
    def web(self) -> str:
        """The URL of Traefik's entry point `web`; the listener of a Gateway must use the same port."""
        return f"http://127.0.0.1:{self.site.ports['web']}"

    def up(
        self,
        *,
        real_nodes: int = 0,
        gpus: int = 2,
        volcano: bool = True,
        karpenter: bool = False,
        traefik: bool = False,
        kube_scheduler: bool = False,
        guarded: bool = False,
    ) -> None:
        """Start the cluster and return when it is usable.

        `gpus` is the number of GPUs that each real node reports. With `guarded`, the cluster is taken down when the calling process ends,
        even if it is killed. Raises RigError if the start fails; no process is left running then.
        """
        if Site.of(self.folder) is not None:
            raise RigError(f"a test cluster is up in {self.folder}, or its runner died; take it down first")
        wanted = {"volcano": volcano, "karpenter": karpenter, "traefik": traefik, "scheduler": kube_scheduler}
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.folder / "log", ignore_errors=True)
        try:
            site = Site.choose(self.folder)
            if guarded:
                self._guard()
            self._plane(site)
            for name in ("volcano", "karpenter"):
                # before the controllers start: their garbage collection discovers further resources only every 30 s
                if wanted[name]:
                    self._crds(name)
            self._start("controllers", "kwok")
            for name in (name for name, asked in wanted.items() if asked):
                self.add(name)
            self.real_nodes(real_nodes, gpus)
        except BaseException:
            self.down()
            raise

    def add(self, name: str) -> None:
        """Add `volcano`, `karpenter`, `traefik`, `scheduler` (kube-scheduler) or `volumes` to a running cluster, unless it is there.

        `volumes` binds claims to volumes.
        """
        if name == "volcano":
            self._crds("volcano")
            self._start("vc-scheduler", "vc-controllers")
            queue = "/apis/scheduling.volcano.sh/v1beta1/queues/default"
            until(lambda: self.api.get(queue), 30, "Volcano's default queue", lambda: self.processes.tail("vc-scheduler"))
            return
        if name == "karpenter":
            self._crds("karpenter")
        elif name == "traefik":
            self._crds("gateway")
        self._start(name)

    def real_nodes(self, count: int, gpus: int = 2) -> list[str]:
        """Add nodes whose pods are real processes and return the names. Raises RigError if the total exceeds two."""
        if not count:
            return []
        site, have = self.site, [name for name in self.processes.names() if name.startswith("real-")]
        if len(have) + count > 2:
            raise RigError(f"a test cluster has at most two real nodes; {self.folder} has {len(have)}")
        network.raise_bridge(site)
        self._start("coredns", "relay")
        write_images(site.root / "images")
        names = [real.start(site, self.processes, number) for number in range(len(have), len(have) + count)]
        for name in names:
            self._claim(name, gpus)
            self._say(f"{name} is ready")
        return names

    def fake_nodes(
        self,
        count: int,
        gpus: int = 8,
        prefix: str = "fake",
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        cpu: str = "192",
        memory: str = "1900Gi",
    ) -> list[str]:
        """Add simulated nodes and return their names, which are never reused. The nodes are Ready when this returns."""
        return fake.create(self.api, count, gpus, prefix, labels or {}, taints, cpu, memory)

    def delete_nodes(self, *names: str) -> None:
        """Delete Node objects, as a cloud does for lost machines. Pod garbage collection removes their pods after 40 to 60 s."""
        fake.delete(self.api, names)

    def silence(self, name: str) -> None:
        """Make a simulated node silent. It becomes NotReady after the grace period of 12 s, and its pods neither end nor disappear."""
        fake.silence(self.api, name)

    def lose(self, name: str) -> None:
        """Kill a real node and all of its processes at once. Its Node object stays, because no process reports the loss."""
        real.lose(self.site, self.processes, name)

    def recover(self, name: str, gpus: int = 2) -> None:
        """Start a lost real node again, as a machine that comes back. Its kubelet starts the pods that the server still has for it."""
        real.recover(self.site, self.processes, name)
        self._claim(name, gpus)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a program of the control plane, such as apiserver or etcd, and wait until it has ended."""
        self.processes.end(name, number)

    def restart(self, name: str) -> None:
        """Start a program of the control plane again, after ending it if it runs.

        For apiserver and etcd, waits until the API server is ready.
        """
        self.processes.again(name)
        if name in ("apiserver", "etcd"):
            until(lambda: self.api.ready(), 60, "the API server's readiness", lambda: self.processes.tail("apiserver"))

    def end_pod(self, namespace: str, name: str, exit_code: int, after: str = "0s") -> None:
        """End a running pod of a simulated node with `exit_code`, after a delay such as 500ms or 2s."""
        notes = {"rig.ratchet/exit-code": str(exit_code), "rig.ratchet/after": after}
        self.api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}", {"metadata": {"annotations": notes}})

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        """Run kubectl and return its standard output; `text` is its standard input.

        With `check`, raises RigError with kubectl's error output if it fails.
        """
        env = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder / "home"), "KUBECONFIG": str(self.kubeconfig)}
        command = [str(build.need("kubectl")), *arguments]
        ran = subprocess.run(command, env=env, input=text, capture_output=True, text=True, check=False)
        if check and ran.returncode != 0:
            raise RigError(f"kubectl {' '.join(arguments)}: {ran.stderr.strip()}")
        return ran.stdout

    def apply(self, *objects: object, namespace: str = "default") -> None:
        """Create or update `objects` with a server-side apply."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", "--namespace", namespace, "-f", "-", text=json.dumps(listed))

    def pods(self, namespace: str, phase: str = "") -> list[dict]:
        """Return the pods of a namespace, only those in `phase` if it is given."""
        return [pod for pod in self.api.items(f"/api/v1/namespaces/{namespace}/pods") if phase in ("", pod["status"].get("phase"))]

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """Yield a new namespace, beside which there is one for dry runs.

        Afterwards remove its pods and their owners, all of Karpenter's pools and all simulated nodes. The namespaces stay: the API server
        would look for objects of every kind in each of them, which costs it half a second of CPU.
        """
        name = f"t-{secrets.token_hex(4)}"
        for space in (name, f"{name}-dry-run"):
            self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": space}})
        try:
            yield name
        finally:
            self._clear(name)

    def down(self) -> None:
        """Stop the cluster and remove everything except its logs.

        Works in every state of the cluster, can be repeated, and also cleans up after a killed runner.
        """
        if GUARD in self.processes.names() and self.processes.pid(GUARD) != os.getpid():
            self.processes.end(GUARD)
        self.processes.sweep()
        real.sweep(name_of(self.folder))
        network.drop_bridge(name_of(self.folder))
        for entry in self.folder.iterdir() if self.folder.exists() else ():
            if entry.name != "log":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def _plane(self, site: Site) -> None:
        authority = Authority.make(site.pki)
        authority.issue("server", "kube-apiserver", addresses=("127.0.0.1", site.gateway))
        authority.issue("admin", "admin", group="system:masters")
        write_signer(site.pki)
        write_kubeconfig(site.kubeconfig, site.pki, site.server)
        self._start("etcd", "apiserver")
        until(lambda: self.api.ready(), 60, "the API server's readiness", lambda: self.processes.tail("apiserver"))
        self._say("the API server is ready")

    def _start(self, *names: str) -> None:
        site, known = self.site, self.processes.names()
        for name in (name for name in names if name not in known):
            self.processes.start(name, plane.COMMANDS[name](site), plane.environment(site), ahead=True)

    def _crds(self, name: str) -> None:
        known = {one["metadata"]["name"] for one in self.api.items(RESOURCES)}
        for file in sorted(build.need(name).glob("*.yaml")):
            described = yaml.load(file.read_text(), LOADER)
            if described["metadata"]["name"] not in known:
                self.api.call("POST", RESOURCES, described)
        until(self._established, 30, f"the resource definitions of {name}")
        self._say(f"the resource definitions of {name} are installed")

    def _established(self) -> bool:
        """Return whether the API server serves every installed resource definition."""
        conditions = [one.get("status", {}).get("conditions") or () for one in self.api.items(RESOURCES)]
        states = [{c["type"]: c["status"] for c in found} for found in conditions]
        return all(state.get("Established") == "True" for state in states)

    def _claim(self, name: str, gpus: int) -> None:
        """Wait for a real node and set its number of GPUs. The kubelet keeps this value in the node's status while it runs."""

        def ready() -> bool:
            if not self.processes.alive(name):
                raise RigError(f"{name} ended while it started:\n{self.processes.tail(name)}")
            return fake.usable(self.api.get(f"{fake.NODES}/{name}"))

        until(ready, 60, f"readiness of {name}", lambda: self.processes.tail(name))
        room = {GPU: str(gpus)}
        self.api.patch(f"{fake.NODES}/{name}/status", {"status": {"capacity": room, "allocatable": room}})

    def _guard(self) -> None:
        runner = os.getpid()
        command = [sys.executable, "-m", "tests.cluster.rig", "guard", "--folder", str(self.folder)]
        words = [*command, "--runner", str(runner), "--born", str(born(runner))]
        self.processes.start(GUARD, words, {"PYTHONPATH": str(REPO)})

    def _clear(self, namespace: str) -> None:
        """Remove all objects of a test that could affect another one."""
        for owners in OWNERS:
            self.api.call("DELETE", f"{owners}?propagationPolicy=Background".format(namespace))
        pods = f"/api/v1/namespaces/{namespace}/pods"
        self.api.call("DELETE", pods)
        alive = {node["metadata"]["name"] for node in self.api.items(fake.NODES) if fake.usable(node)}
        with suppress(RigError):
            until(lambda: not [p for p in self.pods(namespace) if p["spec"].get("nodeName") in alive], 15, "the end of the pods")
        # The remaining pods were on silenced or lost nodes, where no kubelet can confirm that they ended.
        self.api.call("DELETE", f"{pods}?gracePeriodSeconds=0")
        until(lambda: not self.pods(namespace), 15, f"the end of the pods of {namespace}")
        for kind in ("nodepools", "nodeclaims"):
            self.api.call("DELETE", f"{KARPENTER}/{kind}")
        fake.delete(self.api, fake.ours(self.api))
        # A pool that is created while nodes of an earlier pool with the same name terminate never reaches its size.
        until(lambda: not self.api.items(f"{KARPENTER}/nodeclaims") and not fake.ours(self.api), 60, "the end of the nodes")
