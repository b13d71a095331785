"""Renders the model servers of one version: Deployment, headless Service, PodDisruptionBudget and network policies. No I/O.

The model is fetched by an init container, which verifies each file, so that a server needs no shared volume. It runs vLLM or the embedded
server, and is ready when it answers. Each pod is placed on its own by the cluster's default scheduler, because servers are not a gang.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import digest
from ratchet.contracts.serving import ModelVersion
from ratchet.k8s.manifests.gang_manifest import LINE, RATCHET, taint_tolerations
from ratchet.k8s.manifests.pod_objects import (
    Capabilities,
    Container,
    ContainerSecurity,
    EmptyDir,
    Env,
    HostPath,
    Match,
    Meta,
    Mount,
    PodSecurity,
    Resources,
    SecretKey,
    Shape,
    ValueFrom,
    Volume,
)
from ratchet.k8s.manifests.policies import COMPONENT, MODEL_SERVER
from ratchet.k8s.manifests.serving import ELSEWHERE, GRACE, PORT, VERSION, probe, server_container, server_objects
from ratchet.k8s.manifests.serving_objects import NodeAffinity, PullSecret, ServerAffinity, ServerPodSpec
from ratchet.k8s.profiles.profile import Profile
from ratchet.runtime.bucket_artifacts import ARTIFACTS_URL

MODEL = "ratchet.dev/model"
"""Label with the beginning of the digest of a version's files."""
NUMBER = "ratchet.dev/number"
"""Label with the number of a version within its line."""
MODEL_FOLDER = "/models/base"
"""Folder of the model in a pod."""
_ANY = "0.0.0.0"  # noqa: S104 -- inside the pod
_NAMES = 30


@dataclass(frozen=True)
class ServingSite:
    """How the model servers of a line run."""

    namespace: str
    profile: Profile
    image: str
    """Image of the server."""
    engine: str
    """`vllm` or `embedded`."""
    fetch_image: str
    """Image with Ratchet, whose init container fetches the model."""
    artifacts: str
    """`s3://` URL of the artifacts."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of the init container, for example the endpoint of the bucket."""
    secrets: tuple[tuple[str, str], ...] = ()
    """Variable of the init container -> `secret/key`, for example credentials of the bucket."""
    python: str = "python3"
    executable: str = "vllm"
    """Program of vLLM in the image."""
    gpus: int = 1
    cpu: str = "8"
    memory: str = "64Gi"
    disk: str = "64Gi"
    """Size of the volume on the node's disk that holds the model."""
    arguments: tuple[str, ...] = ()
    """Additional arguments of the server."""
    account: str = "ratchet-model"
    pull_secrets: tuple[str, ...] = ()
    load: int = 1800
    """Maximum seconds from the start of the server's container until it answers."""


def server_name(version: ModelVersion) -> str:
    """Return the name of a version's objects, which depends on the tag and the model: a version's server is never another model's."""
    return f"serve-{version.line[:_NAMES]}-{version.number}-{digest([version.tag, version.model.id])[:8]}"


def server_labels(line: str) -> dict[str, str]:
    """Return the labels by which the model servers of a line are found."""
    return {COMPONENT: MODEL_SERVER, LINE: line}


def server_url(name: str, namespace: str) -> str:
    """Return the base URL of a version's servers within the cluster."""
    return f"http://{name}.{namespace}.svc:{PORT}"


def replicas_for(share: float, full: int) -> int:
    """Return the number of servers, at least one, that a share of the sessions needs.

    Args:
        share: Share of the sessions in percent.
        full: Number of servers that all sessions need.
    """
    return max(1, math.ceil(round(share * full / 100, 6)))


def version_server(version: ModelVersion, site: ServingSite, replicas: int, names: Sequence[str] = ()) -> tuple[Shape, ...]:
    """Render the objects of a version with this number of servers.

    They answer to the version's tag and to `names`, the model names of the line, by which a Gateway passes requests of clients on.
    Raises ConfigError if the server does not fit the profile, or if the version is an adapter.
    """
    if version.model.parent is not None:
        raise ConfigError('servers on a cluster serve whole models; set serving.adapters = "merged"')
    if site.gpus > site.profile.gpus:
        raise ConfigError(
            f"serving.options.gpus: a server of {site.gpus} GPUs does not fit a node of the profile, which has {site.profile.gpus}"
        )
    name = server_name(version)
    labels = {
        **RATCHET,
        **server_labels(version.line),
        VERSION: version.tag,
        NUMBER: str(version.number),
        MODEL: version.model.files[:16],
        "app.kubernetes.io/name": name,
    }
    selector = Match(match_labels={COMPONENT: MODEL_SERVER, "app.kubernetes.io/name": name})
    meta = Meta(name=name, namespace=site.namespace, labels=labels)
    # Headless: the router balances its connections over the servers, also where many requests share few connections.
    return server_objects(meta, selector, _pod(version, site, names), replicas=replicas, load=site.load, headless=True)


def _command(version: ModelVersion, site: ServingSite, names: Sequence[str]) -> tuple[str, ...]:
    # The names of the line first: vLLM may give the first one in its answers, which must not show users the version.
    known = tuple(dict.fromkeys((*names, version.tag)))
    if site.engine == "embedded":
        embedded = (*(part for name in known for part in ("--name", name)), "--host", _ANY, "--port", str(PORT))
        return (site.python, "-m", "ratchet.local.serve", MODEL_FOLDER, *embedded, *site.arguments)
    spread = ("--tensor-parallel-size", str(site.gpus)) if site.gpus > 1 else ()
    given = ("--served-model-name", *known, "--host", _ANY, "--port", str(PORT), "--disable-uvicorn-access-log")
    return (site.executable, "serve", MODEL_FOLDER, *given, *spread, *site.arguments)


def _pod(version: ModelVersion, site: ServingSite, names: Sequence[str]) -> ServerPodSpec:
    profile = site.profile
    asked = {"cpu": site.cpu, "memory": site.memory}
    if site.gpus:
        asked[profile.gpu_resource] = str(site.gpus)
    nodes = [mount.partition(":") for mount in profile.mounts]
    seen = tuple(Mount(name=f"node-{n}", mount_path=inside or path, read_only=True) for n, (path, _, inside) in enumerate(nodes))
    python = (Env(name="PYTHONPATH", value=":".join(profile.python_path)),) if profile.python_path else ()
    fetch = Container(
        name="fetch",
        image=site.fetch_image,
        image_pull_policy=profile.image_pull,
        command=(site.python, "-m", "ratchet.k8s.pod.model", version.model.files, MODEL_FOLDER),
        env=(
            Env(name=ARTIFACTS_URL, value=site.artifacts),
            *(Env(name=key, value=value) for key, value in site.environment),
            *(Env(name=key, value_from=ValueFrom(secret_key_ref=_secret(reference))) for key, reference in site.secrets),
            *python,
        ),
        resources=Resources(requests={"cpu": "250m", "memory": "512Mi"}, limits={"cpu": "2", "memory": "1Gi"}),
        volume_mounts=(
            Mount(name="model", mount_path="/models"),
            Mount(name="tmp", mount_path="/tmp"),  # noqa: S108 -- inside the pod
            *seen,
        ),
        security_context=ContainerSecurity(capabilities=Capabilities()),
    )
    server = server_container(
        image=site.image,
        profile=profile,
        command=_command(version, site, names),
        env=python,
        asked=asked,
        model=Mount(name="model", mount_path="/models", read_only=True),
        more=seen,
        startup=probe(5, math.ceil(site.load / 5)),
    )
    return ServerPodSpec(
        service_account_name=site.account,
        termination_grace_period_seconds=GRACE,
        node_selector=dict(profile.labels),
        affinity=ServerAffinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=ELSEWHERE)),
        tolerations=taint_tolerations(profile),
        image_pull_secrets=tuple(PullSecret(name=name) for name in site.pull_secrets) or None,
        security_context=PodSecurity(
            run_as_non_root=None if profile.root else True,
            run_as_user=0 if profile.root else profile.user,
            run_as_group=profile.user,
            fs_group=profile.user,
        ),
        init_containers=(fetch,),
        containers=(server,),
        volumes=(
            Volume(name="model", empty_dir=EmptyDir(size_limit=site.disk)),
            Volume(name="shm", empty_dir=EmptyDir(medium="Memory", size_limit=profile.shm)),
            Volume(name="tmp", empty_dir=EmptyDir()),
            *(Volume(name=f"node-{n}", host_path=HostPath(path=path, type="Directory")) for n, (path, _, _) in enumerate(nodes)),
        ),
    )


def _secret(reference: str) -> SecretKey:
    name, _, key = reference.partition("/")
    return SecretKey(name=name, key=key)
