"""An installation whose parts all run in the test cluster: installed by Helm, on Postgres and S3, behind a real Gateway."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.contracts.serving import RouterHeader
from ratchet.flows.cli.setup.check import NEEDS_ATTRIBUTION
from ratchet.k8s.manifests.policies import VOLCANO_NAMESPACE
from ratchet.runtime.bucket import Bucket
from tests import markers
from tests.cluster import loop_files
from tests.cluster.bench import REAL
from tests.cluster.chart import CHART
from tests.cluster.loop_files import MACHINE
from tests.cluster.rig.build import RigError, need
from tests.cluster.rig.cluster import REPO, Rig
from tests.cluster.rig.images import HOST, host_mounts
from tests.command import RATCHET
from tests.postgres import PostgresServer
from tests.real_vllm import ARGUMENTS, real_vllm
from tests.s3 import KEYS, S3
from tests.toy_line import LOOP, TRAINING, like, write_loop, write_traffic
from tests.waiting import until

T = TypeVar("T", bound="Traffic")

LINE, ROUTER_PORT, RECEIVER_PORT = "toy", 8080, 4318
RELEASE = "demo"
PERSON = 777
"""A person whose recorded questions carry a marker (`tests/markers.py`)."""
USER = 1000
"""The user of the chart's pods."""
VOLUMES = ("home", "router-0", "router-1", "router-2", "spare")
"""Folders of this machine that are volumes of the pods, in any order."""
CLUSTER = (
    loop_files.CLUSTER
    + """\
[cluster.secrets]
AWS_ACCESS_KEY_ID = "bucket/AWS_ACCESS_KEY_ID"
AWS_SECRET_ACCESS_KEY = "bucket/AWS_SECRET_ACCESS_KEY"
[cluster.volume]
mount = "/home"
[cluster.volume.bucket]
url = "s3://{bucket}/jobs"
endpoint = "{endpoint}"
region = "us-east-1"
"""
)
SERVED = """[serving]
kind = "kubernetes"
router = "kubernetes"
[serving.router_options]
url = "http://toy.example"
[serving.options]
namespace = "{namespace}"
image = "{image}"
fetch_image = "{image}"
engine = "embedded"
python = "{python}"
profile = "machine.toml"
arguments = ["--threads", "1"]
gpus = 0
cpu = "300m"
memory = "1Gi"
disk = "1Gi"
replicas = {replicas}
load = 300
[serving.options.secrets]
AWS_ACCESS_KEY_ID = "bucket/AWS_ACCESS_KEY_ID"
AWS_SECRET_ACCESS_KEY = "bucket/AWS_SECRET_ACCESS_KEY"
"""


BYPASS = """[serving.router_options.bypass]
gateway = "web"
service = "{namespace}/{release}-router"
after = 20
[serving.options]"""
VLLM = """engine = "vllm"
executable = "{program}"
arguments = {arguments}
gpus = 0
cpu = "700m"
memory = "4Gi"
"""
GATEWAY = """url = "http://toy.example"
gateway = "web"
pins = true"""


class Whole:
    """One installation in a namespace of a test cluster. `folder` has the model, and volumes of the pods. `say` receives progress.

    The model servers are Ratchet's own. Set `vllm` to the program of the real vLLM before the installation to let it serve.
    """

    def __init__(
        self, rig: Rig, namespace: str, s3: S3, postgres: PostgresServer, folder: Path, model: Path, say: Callable[[str], None] = print
    ) -> None:
        self.rig, self.namespace, self.s3, self.postgres, self.folder, self.model = rig, namespace, s3, postgres, folder, model
        self.say = say
        self.lines: tuple[str, ...] = (LINE,)
        """The lines whose keys the installation has."""
        self.service_pod = f"{RELEASE}-service-0"
        """The pod of the service in which commands run."""
        self.vllm: Path | None = None
        self._receivers: list[str] = []
        self._begun = time.monotonic()

    def told(self, text: str) -> None:
        """Say what has happened, and when."""
        self.say(f"{time.monotonic() - self._begun:6.1f} s  {text}")

    def install(
        self,
        replicas: int = 2,
        by_gateway: bool = False,
        bypass: bool = False,
        change: Callable[[dict[str, Any]], None] = lambda _values: None,
    ) -> None:
        """Do the preparations of an administrator, and install the chart.

        With `by_gateway`, the line has no router of Ratchet. With `bypass`, requests bypass the routers while all of them are down.
        `change` may change the values of the chart.
        """
        self._volumes()
        self._secrets()
        self._rights(replicas)
        self._gateway()
        write_traffic_to(self.s3, self.folder)
        values = self.folder / "values.yaml"
        given = self._values(replicas)
        [line] = given["lines"]
        if by_gateway:
            line["router"], line["loop"] = "gateway", without_router(line["loop"])
        if bypass:
            given["gateway"]["bypass"] = True
            line["loop"] = line["loop"].replace("[serving.options]", BYPASS.format(namespace=self.namespace, release=RELEASE))
        change(given)
        values.write_text(yaml.safe_dump(given, sort_keys=False))
        self.helm("install", RELEASE, str(CHART), "--values", str(values), "--namespace", self.namespace)
        self.told("helm install is done")

    def remove(self) -> None:
        """Uninstall the chart, and remove the objects that it keeps on purpose and the preparations of `install`."""
        with contextlib.suppress(AssertionError):
            self.helm("uninstall", RELEASE, "--namespace", self.namespace)
        self.rig.kubectl("delete", "deployments,statefulsets,vcjob,pvc", "--all", "-n", self.namespace, "--wait=false", check=False)
        self.rig.kubectl("delete", "pods", "--all", "-n", self.namespace, "--grace-period=1", check=False)
        volumes = [f"pv/{self.namespace}-{name}" for name in VOLUMES]
        self.rig.kubectl("delete", *volumes, f"storageclass/{self.namespace}", "--wait=false", check=False)

    def helm(self, *arguments: str) -> str:
        """Run Helm, and return its output."""
        homes = {f"HELM_{kind}_HOME": str(self.folder / "helm" / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **homes, "KUBECONFIG": str(self.rig.kubeconfig)}
        done = subprocess.run([str(need("helm")), *arguments], env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def ratchet(self, *arguments: str, check: bool = True) -> str:
        """Run a command in the service's pod, and return its output."""
        command = ("exec", "-n", self.namespace, self.service_pod, "--", sys.executable, "-m", "ratchet.flows.cli.main", *arguments)
        return self.rig.kubectl(*command, check=check)

    def marked(self, folder: Path) -> set[str]:
        """Return the objects of the bucket with a text of the person of the recorded traffic, in any version, outside of the source."""
        bucket = Bucket(BucketSettings(**self.s3.settings.model_dump() | {"url": f"s3://{self.s3.bucket}"}))
        names = list[str]()
        folder.mkdir()
        for one in bucket.versions(""):
            if not one.is_mark and not one.key.startswith("traces/") and "/beat-" not in one.key:  # thousands of counters
                found = self.s3.client.get_object(Bucket=self.s3.bucket, Key=one.key, VersionId=one.version)
                (folder / str(len(names))).write_bytes(found["Body"].read())
                names.append(one.key)
        return {names[int(name)] for name in markers.marks_in(folder).get(PERSON, ())}

    def story(self) -> str:
        """Return what explains a failure: pods, events and the ends of all logs."""
        found = [self.rig.kubectl("get", "pods,deploy,sts,pvc,vcjob,events", "-n", self.namespace, "-o", "wide", check=False)]
        for pod in self.rig.pods(self.namespace):
            name = pod["metadata"]["name"]
            for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
                log = self.rig.kubectl("logs", "-n", self.namespace, name, "-c", container["name"], "--tail=40", check=False)
                found.append(f"--- {name} {container['name']}\n{log}")
        return "\n".join(found)

    def wait_ready(self, component: str, count: int, seconds: float = 240) -> None:
        """Wait until `count` pods of a component are ready."""
        until(lambda: len(self.ready(component)) >= count, seconds, 1.0, self.story)
        self.told(f"{count} of {component} ready")

    def ready(self, component: str) -> list[dict[str, Any]]:
        """Return the pods of a component that are ready."""
        return [
            pod
            for pod in self.rig.pods(self.namespace, "Running")
            if pod["metadata"]["labels"].get("app.kubernetes.io/component") == component
            and "deletionTimestamp" not in pod["metadata"]
            and any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
        ]

    def model_deployments(self) -> list[dict[str, Any]]:
        """Return the Deployments of the model servers."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        return [one for one in self.rig.api.items(path) if one["metadata"]["labels"].get("app.kubernetes.io/component") == "model"]

    def route(self) -> dict[str, Any]:
        """Return the route of the line that the service has published to the routers."""
        found = self.s3.client.get_object(Bucket=self.s3.bucket, Key=f"exchange/lines/{LINE}/route.json")
        route: dict[str, Any] = json.loads(found["Body"].read())
        return route

    def ask(self, client: httpx.Client, session: str, question: str, **more: object) -> httpx.Response:
        """Send a request as a user does, through the Gateway. `more` are further fields of its body."""
        headers = {RouterHeader.SESSION: session, RouterHeader.USER: session, RouterHeader.CONSENT: "true"}
        body = {"model": LINE, "messages": [{"role": "user", "content": question}], "max_tokens": 4, **more}
        return client.post(f"{self.rig.web}/v1/chat/completions", json=body, headers=headers)

    def send(self, client: httpx.Client, token: str, path: str, body: dict[str, object]) -> bool:
        """Send an OTLP request to a receiver, and return whether it was accepted."""
        with contextlib.suppress(OSError, RigError):  # while the API server is away, the receivers are where they were
            self._receivers = [pod["status"]["podIP"] for pod in self.ready("receiver")]
        for address in self._receivers:
            with contextlib.suppress(httpx.HTTPError):
                url = f"http://{address}:{RECEIVER_PORT}{path}"
                if client.post(url, json=body, headers={"authorization": f"Bearer {token}"}).status_code == 200:
                    return True
        return False

    @contextlib.contextmanager
    def users(self, token: str) -> Iterator[Traffic]:
        """Let users ask and rate for the duration of the block."""
        with asking(Traffic(self, token)) as traffic:
            yield traffic

    def _volumes(self) -> None:
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": self.namespace}}
        self.rig.apply({**kind, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "Immediate"})
        for name in VOLUMES:
            place = self.folder / "volumes" / name
            place.mkdir(parents=True)
            os.chown(place, USER, USER)  # a volume of the kind hostPath does not follow fsGroup
            spec = {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.namespace,
                "hostPath": {"path": str(place)},
            }
            metadata = {"name": f"{self.namespace}-{name}", "labels": {"for": name.partition("-")[0]}}
            self.rig.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec})

    def _secrets(self) -> None:
        for database in ("ratchet", "catalog", "prefect"):
            self.postgres.create(database)
        self.postgres.folder.chmod(0o755)  # the pods reach the server's socket without the rights of its owner
        databases = {name: self.postgres.url(database) for name, database in (("url", "ratchet"), ("catalog", "catalog"))}
        databases["prefect"] = self.postgres.url("prefect", "asyncpg")
        (self.folder / "offline").mkdir()
        loops = [str(write_loop(self.folder / "offline", line)) for line in self.lines]
        printed = subprocess.run([*RATCHET, "k8s", "keys", *loops], capture_output=True, text=True, check=True, cwd=self.folder).stdout
        keys = yaml.safe_load(printed)
        for name, content in {
            "ratchet-db": databases,
            "bucket": KEYS,
            "prefect-auth": {"auth": "ratchet:a-password-of-this-test"},
            "kubeconfig": {"config": self._kubeconfig()},
        }.items():
            self.rig.apply(
                {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": content}, namespace=self.namespace
            )
        self.rig.apply(keys, namespace=self.namespace)

    def _rights(self, replicas: int) -> None:
        """Give the account that the chart makes the rights that `ratchet k8s render --admin` prints."""
        folder = self.folder / "admin"
        folder.mkdir()
        loop = folder / "loop.toml"
        loop.write_text(self.loop(replicas))
        (folder / "machine.toml").write_text(self._machine())
        command = [*RATCHET, "k8s", "render", str(loop), "--admin"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout
        self.rig.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": VOLCANO_NAMESPACE}})
        for body in yaml.safe_load_all(printed):
            if body and body["kind"] != "ConfigMap":  # the scheduler of the test cluster has its configuration
                self.rig.apply(body, namespace=body["metadata"].get("namespace", self.namespace))

    def _kubeconfig(self) -> str:
        """Return a kubeconfig with a token of the account that the chart makes for the service.

        The account exists before the chart, with Helm's marks, so that Helm takes it over. The test cluster mounts no tokens into pods.
        """
        name = f"{RELEASE}-service"
        marks = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": self.namespace}
        metadata = {"name": name, "annotations": marks, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
        self.rig.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}, namespace=self.namespace)
        token = self.rig.kubectl("create", "token", name, "-n", self.namespace, "--duration=4h").strip()
        found = json.loads(self.rig.kubeconfig.read_text())
        found["clusters"][0]["cluster"]["server"] = self.rig.site.server.replace("127.0.0.1", self.rig.gateway)
        found["users"][0]["user"] = {"token": token}
        return json.dumps(found)

    def _machine(self) -> str:
        """Return the profile of the machines of training jobs and model servers."""
        more = [str(self.vllm.parent), str(real_vllm().parents[1])] if self.vllm else []
        profile = MACHINE.format(mounts=[*REAL.mounts, *more], repo=REPO).replace('cpu = "1"', 'cpu = "500m"')
        return "".join(line for line in profile.splitlines(keepends=True) if not line.startswith("root = "))

    def _gateway(self) -> None:
        port = int(self.rig.web.rpartition(":")[2])
        listener = {"name": "web", "protocol": "HTTP", "port": port, "allowedRoutes": {"namespaces": {"from": "Same"}}}
        api = "gateway.networking.k8s.io/v1"
        controller = {"controllerName": "traefik.io/gateway-controller"}
        self.rig.apply({"apiVersion": api, "kind": "GatewayClass", "metadata": {"name": "traefik"}, "spec": controller})
        spec = {"gatewayClassName": "traefik", "listeners": [listener]}
        self.rig.apply({"apiVersion": api, "kind": "Gateway", "metadata": {"name": "web"}, "spec": spec}, namespace=self.namespace)

    def loop(self, replicas: int) -> str:
        """Return the loop file of the installation: that of one machine, but for sources, serving and cluster."""
        words = {"namespace": self.namespace, "image": HOST, "python": sys.executable, "replicas": replicas}
        text = LOOP.format(name=LINE).replace("[serving.options]\nthreads = 1\n", SERVED.format(**words))
        assert SERVED.format(**words) in text
        if self.vllm is not None:
            a, b = text.index('engine = "embedded"\n'), text.index("python = ")
            text = text[:a] + VLLM.format(program=self.vllm, arguments=json.dumps(ARGUMENTS)) + text[b:]
            for line in ('arguments = ["--threads", "1"]\n', 'cpu = "300m"\n', 'memory = "1Gi"\n'):
                text = text.replace(line, "", 1)
            text = text.replace("gpus = 0\n", "", 1).replace("load = 300", "load = 900")
        text = text.replace(f'path = "traces-{LINE}"', f'path = "s3://{self.s3.bucket}/traces"')
        cluster = CLUSTER.format(**words, bucket=self.s3.bucket, endpoint=self.s3.settings.endpoint)
        own = f'queue = "{self.namespace}"\naccount = "{self.namespace}/{RELEASE}-service"'
        return text + cluster.replace('queue = "default"', own)

    def _values(self, replicas: int) -> dict[str, Any]:
        golden = (self.folder / "offline" / "golden.jsonl").read_text()
        mounts = host_mounts(
            *(path for path in REAL.mounts if not path.startswith("/usr") and path not in ("/bin", "/lib", "/lib64")), self.model
        )
        socket = {"name": "postgres", "hostPath": {"path": str(self.postgres.folder)}}
        small = {"requests": {"cpu": "100m", "memory": "128Mi"}}
        volume = {"size": "1Gi", "storageClass": self.namespace, "accessMode": "ReadWriteOnce"}
        return {
            "image": {"repository": HOST.partition(":")[0], "tag": HOST.rpartition(":")[2], "pullPolicy": "Never"},
            "python": sys.executable,
            "lines": [
                {
                    "name": LINE,
                    "routerPort": ROUTER_PORT,
                    "receiverPort": RECEIVER_PORT,
                    "loop": self.loop(replicas),
                    "files": {"golden.jsonl": golden, "machine.toml": self._machine()},
                }
            ],
            "bucket": {
                "exchange": f"s3://{self.s3.bucket}/exchange",
                "artifacts": f"s3://{self.s3.bucket}/artifacts",
                "region": "us-east-1",
                "endpoint": self.s3.settings.endpoint,
                "secret": "bucket",
            },
            "ledger": {"secret": "ratchet-db"},
            "lake": {"warehouse": f"s3://{self.s3.bucket}/lakes", "catalog": {"secret": "ratchet-db", "key": "catalog"}},
            "prefect": {"secret": "prefect-auth", "database": {"secret": "ratchet-db", "key": "prefect"}, "resources": small},
            "service": {"volume": volume, "kubeconfigSecret": "kubeconfig", "resources": small},
            "router": {"replicas": 2, "volume": volume, "resources": small, "service": {"headless": True}, "drain": 60},
            "receiver": {"replicas": 1, "resources": small, "service": {"headless": True}},
            "gateway": {"name": "web"},
            "nodeSelector": {"rig.ratchet/node": "real"},
            "extraVolumes": [*mounts["volumes"], socket],
            "extraVolumeMounts": [*mounts["volumeMounts"], {"name": "postgres", "mountPath": str(self.postgres.folder)}],
            "extraEnv": {
                "PYTHONPATH": str(REPO),
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
            },
        }


def without_router(loop: str) -> str:
    """Return the loop file of a line whose weights are those of an HTTPRoute. Settings that would have no effect are left out."""
    text = loop.replace('router = "kubernetes"', 'router = "gateway"').replace('url = "http://toy.example"', GATEWAY)
    kept = [line for line in text.splitlines() if line.partition(" ")[0] not in NEEDS_ATTRIBUTION]
    return "\n".join(kept).replace("[rollout]", "[rollout]\nmirror = 100") + "\n"


class Traffic:
    """Users who ask, one after the other, and like each answer. Every answer and every failure is counted."""

    def __init__(self, whole: Whole, token: str) -> None:
        self._whole, self._token = whole, token
        self.over = threading.Event()
        self.answers: list[tuple[float, str]] = []
        """When each answer came, and its text."""
        self.failures: list[str] = []
        self.traces: list[str] = []

    def run(self) -> None:
        """Ask until `over`."""
        client = httpx.Client(timeout=30, trust_env=False)
        for number in itertools.count(1):
            if self.over.wait(0.2):
                return
            began = time.time_ns()
            try:
                reply = self._ask(client, number)
            except httpx.HTTPError as error:
                self._failed(f"{type(error).__name__}: {error}")
                continue
            if reply.status_code != 200:
                self._failed(f"HTTP {reply.status_code}: {reply.text[:200]}")
                continue
            text = reply.json()["choices"][0]["message"]["content"]
            self.answers.append((time.monotonic(), text))
            self._tell(client, number, reply, text, began)

    def _failed(self, why: str) -> None:
        """Count a request without an answer, and say when it failed: the steps of the test are said with the same clock."""
        self.failures.append(why)
        self._whole.told(f"a request failed: {why}")

    def _ask(self, client: httpx.Client, number: int) -> httpx.Response:
        return self._whole.ask(client, f"user-{number}", TRAINING[number % len(TRAINING)])

    def _tell(self, client: httpx.Client, number: int, reply: httpx.Response, _text: str, _began: int) -> None:
        """Tell the receiver what became of an answer, and remember its trace."""
        trace = reply.headers[RouterHeader.TRACE]
        self.traces.append(trace)
        self._whole.send(client, self._token, "/v1/logs", like(trace, f"user-{number}"))


@contextlib.contextmanager
def asking(traffic: T) -> Iterator[T]:
    """Let traffic run for the duration of the block."""
    thread = threading.Thread(target=traffic.run, daemon=True)
    thread.start()
    try:
        yield traffic
    finally:
        traffic.over.set()
        thread.join(60)


def write_traffic_to(s3: S3, folder: Path) -> None:
    """Put the recorded traffic of the toy line into the bucket, and traces of one person whose questions nobody else asks."""
    (folder / f"traces-{LINE}").mkdir()
    write_traffic(folder, LINE)
    recorded = (folder / f"traces-{LINE}" / "recorded.jsonl").read_bytes()
    told = {"timestamp": "2026-10-01T00:00:00Z", "response": "no", "reference": "yes", "consent": True, "user_id": markers.user(PERSON)}
    for number, word in enumerate(("road", "sea", "bird", "fish", "cloud", "rain", "wind", "fire", "gold", "iron")):
        question = f"Is the {word} {markers.marker(PERSON)} of the {'very ' * number}old man far away?"
        recorded += json.dumps({"id": f"own-{number}", "messages": question, **told}).encode() + b"\n"
    s3.client.put_object(Bucket=s3.bucket, Key="traces/recorded.jsonl", Body=recorded)
