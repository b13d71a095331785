"""Renders a gang on Ray as a RayJob, for clusters that admit Ray only through KubeRay's operator. No I/O.

The pods are those of the Volcano Job (`gang_manifest.py`), but KubeRay starts Ray in them, and a container that it adds to the head submits
the job. Volcano still schedules them as a gang, by KubeRay's own support for it. The service neither submits nor observes a RayJob: an
interruption ends it, and it is submitted again by hand.

Source: ray.io/v1 of KubeRay 1.6, whose definitions a test validates against.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.k8s.manifests.cluster_objects import Ingress, NetworkPolicy, Peer, PolicyPort, Selector
from ratchet.k8s.manifests.gang_manifest import RAY_PORT, RAY_SECRET
from ratchet.k8s.manifests.network import gang_network_policy
from ratchet.k8s.manifests.pod_objects import Env, Meta, PodTemplate, Shape, Task, VolcanoJob
from ratchet.runtime.jobs.job_protocol import GPUS, MASTER_ADDRESS, MASTER_PORT, RAY_PORTS, RESTARTS, PodTask

RAY_VERSION = "2.55.1"
"""Ray of the NeMo RL release that plans are checked against. KubeRay refuses a token for a Ray before 2.52."""
SECRET_KEY = "auth_token"
"""Key of the Secret with Ray's token that KubeRay reads. The gangs of the service read the key `token`."""
OPERATORS = ("kuberay-operator", "kuberay")
"""Values of the label app.kubernetes.io/name of KubeRay's operator, installed by Helm and by kustomize."""
DASHBOARD_PORT = 8265
KEPT_SECONDS = 3600
"""Seconds that the operator keeps the pods of an ended RayJob, for their logs."""


class AuthOptions(Shape):
    """How the processes of a Ray cluster authenticate to each other."""

    mode: Literal["token"] = "token"
    secret_name: str = RAY_SECRET


class HeadGroup(Shape):
    """The pod with Ray's head. The parameters are options of `ray start`."""

    ray_start_params: dict[str, str]
    template: PodTemplate


class WorkerGroup(Shape):
    """Further pods of a Ray cluster, always the same number."""

    group_name: str = "workers"
    replicas: int
    min_replicas: int
    max_replicas: int
    ray_start_params: dict[str, str]
    template: PodTemplate


class RayClusterSpec(Shape):
    """A Ray cluster that exists for one job."""

    ray_version: str = RAY_VERSION
    auth_options: AuthOptions = AuthOptions()
    head_group_spec: HeadGroup
    worker_group_specs: tuple[WorkerGroup, ...]


class RayJobSpec(Shape):
    """A job on a Ray cluster of its own, without a second attempt: attempts are made by the ledger."""

    entrypoint: str
    submission_mode: Literal["SidecarMode"] = "SidecarMode"
    backoff_limit: Literal[0] = 0
    shutdown_after_job_finishes: bool = True
    ttl_seconds_after_finished: int = KEPT_SECONDS
    ray_cluster_spec: RayClusterSpec


class RayJob(Shape):
    """One gang as a RayJob."""

    api_version: Literal["ray.io/v1"] = "ray.io/v1"
    kind: Literal["RayJob"] = "RayJob"
    metadata: Meta = Field(default_factory=Meta)
    spec: RayJobSpec


def ray_job(gang: VolcanoJob) -> RayJob:
    """Return the gang as a RayJob. Raises ConfigError if the gang does not run on Ray."""
    head = next((task for task in gang.spec.tasks if task.name == PodTask.HEAD.value), None)
    if head is None:
        raise ConfigError(
            'a RayJob needs a job on Ray, which is one on NeMo RL: set for example training.grpo_on = "nemo-rl" and add grpo to methods'
        )
    container = head.template.spec.containers[0]
    given = {one.name: one.value for one in container.env if one.value is not None}
    port = {"port": str(RAY_PORT), "dashboard-host": "0.0.0.0"}  # noqa: S104 -- the operator reads the job's state from the dashboard
    offered = {"num-gpus": str(GPUS.get(given)), "disable-usage-stats": "true", **{name: str(port) for name, port in RAY_PORTS.items()}}
    workers = [task for task in gang.spec.tasks if task is not head]
    labels = {**gang.metadata.labels, "ray.io/scheduler-name": "volcano", "volcano.sh/queue-name": gang.spec.queue}
    return RayJob(
        metadata=Meta(name=gang.metadata.name, namespace=gang.metadata.namespace, labels=labels),
        spec=RayJobSpec(
            entrypoint=f"cd {container.working_dir} && exec {container.command[0]} -m ratchet.trainers.job.pod_entrypoint --within-ray",
            ray_cluster_spec=RayClusterSpec(
                head_group_spec=HeadGroup(ray_start_params=port | offered, template=_template(head)),
                worker_group_specs=tuple(_workers(task, offered) for task in workers),
            ),
        ),
    )


def ray_job_policy(gang: VolcanoJob, bucket: BucketSettings | None = None) -> NetworkPolicy:
    """Return the network policy of a RayJob: that of the gang, which also lets KubeRay's operator read the job's state."""
    policy = gang_network_policy(gang.metadata.name or "", gang.metadata.namespace or "", bucket)
    anywhere = Selector(match_labels={})
    operators = tuple(
        Peer(namespace_selector=anywhere, pod_selector=Selector(match_labels={"app.kubernetes.io/name": name})) for name in OPERATORS
    )
    asked = Ingress(sources=operators, ports=(PolicyPort(port=DASHBOARD_PORT),))
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"ingress": (*(policy.spec.ingress or ()), asked)})})


def _workers(task: Task, offered: dict[str, str]) -> WorkerGroup:
    number = task.replicas
    return WorkerGroup(replicas=number, min_replicas=number, max_replicas=number, ray_start_params=offered, template=_template(task))


def _template(task: Task) -> PodTemplate:
    """Return a pod of the gang without what KubeRay adds itself: Ray's start, its token, and the name of the scheduler's Job."""
    pod = task.template.spec
    container = pod.containers[0]
    replaced = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", RESTARTS.name, MASTER_ADDRESS.name, MASTER_PORT.name)
    own = tuple(one for one in container.env if one.name not in replaced)
    bare = container.model_copy(
        update={
            "command": (),
            "env": (*own, Env(name=RESTARTS.name, value="0")),
            "volume_mounts": tuple(one for one in container.volume_mounts if one.name != "ray"),
        }
    )
    volumes = tuple(one for one in pod.volumes if one.name != "ray")
    spec = pod.model_copy(update={"containers": (bare,), "volumes": volumes})
    return task.template.model_copy(update={"spec": spec})
