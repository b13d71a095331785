"""Renders a training job as a gang: one Volcano Job whose pods all start together or not at all. No I/O.

This module knows Volcano's rules and the paths in a pod. It does not depend on what a job runs; process 1 of a pod is
`trainers/job/pod_entrypoint.py`. `docs/kubernetes/lifecycle.md` gives the reason for each field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import canonical, digest
from ratchet.contracts.jobs.cluster import BucketSettings, ClusterSettings, VolumeSettings
from ratchet.contracts.jobs.exit_codes import FAILURE, PERMANENT
from ratchet.contracts.jobs.training import JobSpec
from ratchet.contracts.schema import stamped
from ratchet.k8s.manifests.pod_objects import (
    Affinity,
    AffinityTerm,
    Capabilities,
    Claim,
    Container,
    ContainerSecurity,
    EmptyDir,
    Env,
    FieldRef,
    HostPath,
    Match,
    Meta,
    Mount,
    PodAntiAffinity,
    PodSecurity,
    PodSpec,
    PodTemplate,
    Policy,
    Port,
    Resources,
    SecretKey,
    SecretVolume,
    Task,
    Toleration,
    ValueFrom,
    VolcanoJob,
    VolcanoJobSpec,
    Volume,
    manifest,
)
from ratchet.k8s.profiles.profile import Profile
from ratchet.runtime.jobs import job_protocol
from ratchet.runtime.jobs.job_protocol import PodTask, RunFile, TrainerBackend, attempt_folder, plan_folder
from ratchet.runtime.telemetry import NO_TELEMETRY

MEETING_PORT, RAY_PORT = 29500, 6379
"""Ports of torchrun's rendezvous and of Ray's head.

All other ports of a gang are chosen at run time; pods of one gang may connect to each other on every port.
"""
PART_OF, LINE, PLAN, ATTEMPT = "app.kubernetes.io/part-of", "ratchet.dev/line", "ratchet.dev/plan", "ratchet.dev/attempt"
JOB_NAME = "ratchet.dev/job"
"""Label with the JobSpec's name. Several Volcano Jobs may run the same JobSpec, one after the other."""
RATCHET = {PART_OF: "ratchet"}
INSTALLATION = "ratchet.dev/installation"
"""Label of all objects that one installation created. Two installations may share a namespace and have lines of the same name."""
NAMESPACE = "ratchet.dev/namespace"
"""Label of pools and machines with the namespace of their line. The service may change only those of its own namespace."""
GANG = "ratchet.dev/gang"
"""Label of every pod of a gang; its value is the name of the Volcano Job."""
VERSION = "volcano.sh/job-version"
"""Volcano's annotation on a pod: the number of restarts of the Job when the pod was created."""
RAY_SECRET, RAY_TOKEN = "ratchet-ray", "/var/run/ratchet/ray"
"""Name of the Secret with the key `token`, and the path where a pod finds it.

All processes of a Ray cluster authenticate to each other with the token.
"""
CACHES = "/tmp/cache"  # noqa: S108 -- inside the pod
"""Folder for the caches of libraries: on the disk of the pod, because HOME is the run folder, which all nodes share."""
ROOT_CAPABILITIES = ("DAC_OVERRIDE", "FOWNER")
"""Capabilities that root needs to read and write the folders of the service's user. All others are dropped."""
COMPUTE_CLASS = "cloud.google.com/compute-class"
"""Label by which a pod on GKE selects a ComputeClass, and of its nodes."""
NODE_GONE = 15
"""Seconds that a pod stays bound to a node that is not ready. The gang is broken then; an earlier restart wastes less machine time."""


@dataclass(frozen=True)
class RenderContext:
    """Everything that a gang's manifest depends on except the job itself."""

    line: str
    """Name of the line."""
    settings: ClusterSettings
    profile: Profile
    plan_folder: Path
    """Folder with the run folders of the plan's attempts; below the volume's mount."""
    artifacts: Path
    """Folder of the artifacts; below the volume's mount."""
    max_restarts: int
    """training.max_restarts of the loop file."""
    installation: str = "sample"
    """Installation that owns the gang."""


def render(spec: JobSpec, context: RenderContext, incarnation: int = 1) -> VolcanoJob:
    """Return the Volcano Job of one attempt.

    `incarnation` is the incarnation of its first pods; later pods add the number of restarts. The Job's name contains a hash of its
    content.

    Raises ConfigError if the job does not fit the profile or the cluster's settings.
    """
    _fits(spec, context)
    labels = {
        **RATCHET,
        LINE: context.line,
        PLAN: plan_folder(spec.plan),
        ATTEMPT: str(spec.attempt),
        JOB_NAME: spec.name,
        INSTALLATION: context.installation,
    }
    nemo = _nemo(spec)
    draft = VolcanoJob(
        metadata=Meta(namespace=context.settings.namespace, labels=labels),
        spec=VolcanoJobSpec(
            queue=context.settings.queue,
            min_available=spec.nodes,
            max_retry=context.max_restarts + context.settings.failure_margin + 1,
            plugins={"svc": ("--publish-not-ready-addresses=true", "--disable-network-policy=true"), "env": ()},
            policies=_policies(),
            tasks=(),
        ),
    )
    # The name contains a hash of everything else. Pods use the name to find each other, so the final tasks are rendered after it is known.
    name = f"{spec.name}-{digest([spec.name, incarnation, _content(draft, spec, context, labels)])[:8]}"
    tasks = _ray_tasks(spec, context, name, incarnation, labels) if nemo else _torchrun_tasks(spec, context, name, incarnation, labels)
    return draft.model_copy(
        update={"metadata": draft.metadata.model_copy(update={"name": name}), "spec": draft.spec.model_copy(update={"tasks": tasks})}
    )


def _content(draft: VolcanoJob, spec: JobSpec, context: RenderContext, labels: dict[str, str]) -> str:
    tasks = (_ray_tasks if _nemo(spec) else _torchrun_tasks)(spec, context, "name", 1, labels)
    return digest(canonical([manifest(draft), [manifest(task) for task in tasks]]))


def _nemo(spec: JobSpec) -> bool:
    return job_protocol.BACKEND.get(spec.environment) is TrainerBackend.NEMO_RL


def _fits(spec: JobSpec, context: RenderContext) -> None:
    settings, profile = context.settings, context.profile
    if spec.gpus > profile.gpus:
        raise ConfigError(
            f"training.gpus = {spec.gpus}, but a node of profile {settings.profile!r} has {profile.gpus}; choose another profile"
        )
    if _nemo(spec) and settings.nemo_image is None:
        raise ConfigError(
            "a method on nemo-rl (training.dpo_on, grpo_on, sft_on) needs cluster.nemo_image: NeMo RL's image with this version of Ratchet"
        )
    if _nemo(spec) and settings.volume.bucket:
        raise ConfigError("cluster.volume.bucket: NeMo RL's nodes write one checkpoint together; use a file system that all nodes mount")
    for path in (context.plan_folder, context.artifacts):
        if not path.is_relative_to(settings.volume.mount):
            raise ConfigError(
                f"{path} is not on the volume at {settings.volume.mount}; put RATCHET_HOME on it, or change cluster.volume.mount"
            )
    taken = sorted(name for name in settings.secrets if name.startswith(job_protocol.RESERVED))
    if taken:
        raise ConfigError(f"cluster.secrets: {', '.join(taken)} would overwrite the job's own variables; choose other names")


def _policies() -> tuple[Policy, ...]:
    """Policies of the Job and of its tasks.

    A job that reports a failure is not restarted here, because the ledger creates its next attempt. External failures restart the whole
    gang. RestartPod, RestartTask and RestartPartition leave part of a gang and are never used.
    """
    return (
        Policy(exit_code=PERMANENT, action="TerminateJob"),
        Policy(exit_code=FAILURE, action="TerminateJob"),
        Policy(event="PodEvicted", action="RestartJob"),
        Policy(event="PodFailed", action="RestartJob"),
        Policy(event="Unknown", action="RestartJob"),
    )


def _torchrun_tasks(spec: JobSpec, context: RenderContext, name: str, incarnation: int, labels: dict[str, str]) -> tuple[Task, ...]:
    ports = (Port(name="meeting", container_port=MEETING_PORT),)
    template = _pod(spec, context, name, incarnation, labels, PodTask.WORKER, ports)
    return (Task(name=PodTask.WORKER.value, replicas=spec.nodes, min_available=spec.nodes, template=template),)


def _ray_tasks(spec: JobSpec, context: RenderContext, name: str, incarnation: int, labels: dict[str, str]) -> tuple[Task, ...]:
    ports = (Port(name="ray", container_port=RAY_PORT),)
    head = Task(
        name=PodTask.HEAD.value,
        replicas=1,
        min_available=1,
        policies=(*_policies(), Policy(event="TaskCompleted", action="CompleteJob")),
        template=_pod(spec, context, name, incarnation, labels, PodTask.HEAD, ports),
    )
    if spec.nodes == 1:
        return (head,)
    worker = _pod(spec, context, name, incarnation, labels, PodTask.WORKER, None)
    return (head, Task(name=PodTask.WORKER.value, replicas=spec.nodes - 1, min_available=spec.nodes - 1, template=worker))


def _pod(
    spec: JobSpec,
    context: RenderContext,
    name: str,
    incarnation: int,
    labels: dict[str, str],
    task: PodTask,
    ports: tuple[Port, ...] | None,
) -> PodTemplate:
    settings, profile = context.settings, context.profile
    volumes, mounts = _places(spec, context)
    container = Container(
        name="job",  # the only container, because Volcano reads the exit code from the status of the first one
        image=settings.nemo_image if _nemo(spec) and settings.nemo_image else settings.image,
        image_pull_policy=profile.image_pull,
        command=(settings.python, "-m", "ratchet.k8s.pod.staging" if settings.volume.bucket else "ratchet.trainers.job.pod_entrypoint"),
        working_dir=str(_run(spec, context)),
        env=_environment(spec, context, name, incarnation, task),
        ports=ports,
        resources=_resources(spec, context),
        volume_mounts=mounts,
        security_context=ContainerSecurity(
            allow_privilege_escalation=bool(profile.privileged),
            privileged=True if profile.privileged else None,
            read_only_root_filesystem=not _nemo(spec),  # NeMo RL's image keeps virtual environments below /opt
            capabilities=Capabilities(add=_capabilities(spec, profile) or None),
        ),
    )
    pod = PodSpec(
        service_account_name="ratchet-job",
        termination_grace_period_seconds=_grace(spec, profile),
        node_selector=_selected(context),
        tolerations=_tolerations(profile),
        affinity=_apart(name) if profile.one_per_node and spec.nodes > 1 else None,
        host_network=True if profile.host_network else None,
        security_context=_user(spec, profile),
        containers=(container,),
        volumes=volumes,
    )
    return PodTemplate(metadata=Meta(labels={**labels, GANG: name}, annotations=dict(profile.annotations)), spec=pod)


def _run(spec: JobSpec, context: RenderContext) -> Path:
    return context.plan_folder / attempt_folder(spec.attempt)


def _grace(spec: JobSpec, profile: Profile) -> int:
    return max(profile.grace, spec.grace_seconds)


def _as_root(spec: JobSpec, profile: Profile) -> bool:
    """Whether the pods run as root. NeMo RL's image keeps Python and the packages below /root, which other users cannot read."""
    return bool(profile.root) or _nemo(spec)


def _capabilities(spec: JobSpec, profile: Profile) -> tuple[str, ...]:
    needed = ROOT_CAPABILITIES if _as_root(spec, profile) else ()
    return (*profile.capabilities, *(name for name in needed if name not in profile.capabilities))


def _user(spec: JobSpec, profile: Profile) -> PodSecurity:
    if _as_root(spec, profile):  # with the service's group, so that the service can use the files that the pods write
        return PodSecurity(run_as_user=0, run_as_group=profile.user, fs_group=profile.user)
    return PodSecurity(run_as_non_root=True, run_as_user=profile.user, run_as_group=profile.user, fs_group=profile.user)


def _resources(spec: JobSpec, context: RenderContext) -> Resources:
    profile, bucket = context.profile, context.settings.volume.bucket
    asked = {"cpu": profile.cpu, "memory": profile.memory, **profile.resources}
    if bucket and bucket.disk:
        asked["ephemeral-storage"] = bucket.disk
    if spec.gpus:
        asked[profile.gpu_resource] = str(spec.gpus)
    return Resources(requests=asked, limits=asked)


def taint_tolerations(profile: Profile) -> tuple[Toleration, ...]:
    """Return tolerations of the taints that the profile's nodes carry."""
    return tuple(
        Toleration(key=t.key, operator="Equal" if t.value is not None else "Exists", value=t.value, effect=t.effect) for t in profile.taints
    )


def _tolerations(profile: Profile) -> tuple[Toleration, ...]:
    gone = [
        Toleration(key=f"node.kubernetes.io/{what}", effect="NoExecute", toleration_seconds=NODE_GONE)
        for what in ("not-ready", "unreachable")
    ]
    return (*taint_tolerations(profile), *gone)


def node_class_name(settings: ClusterSettings) -> str:
    """Return the name of the node class for a namespace and profile. Lines with the same namespace and profile share it."""
    stem = settings.profile.rsplit("/", 1)[-1].removesuffix(".toml").lower()
    return f"{settings.namespace}-{re.sub(r'[^a-z0-9-]+', '-', stem).strip('-') or 'nodes'}"


def _selected(context: RenderContext) -> dict[str, str]:
    """Return the labels of the nodes that a gang's pods may run on."""
    chosen = {COMPUTE_CLASS: node_class_name(context.settings)} if context.settings.pool.kind == "compute-class" else {}
    return {**context.profile.labels, **chosen}


def _apart(name: str) -> Affinity:
    term = AffinityTerm(label_selector=Match(match_labels={GANG: name}), topology_key="kubernetes.io/hostname")
    return Affinity(pod_anti_affinity=PodAntiAffinity(required_during_scheduling_ignored_during_execution=(term,)))


def _environment(spec: JobSpec, context: RenderContext, name: str, incarnation: int, task: PodTask) -> tuple[Env, ...]:
    """Return the environment of a pod's container.

    Ratchet's own variables come last and take precedence over Secrets, profile and recipe, because they define the pod's identity. The
    number of restarts comes from Volcano's annotation.
    """
    places = {
        "HOME": str(_run(spec, context)),
        **({"PYTHONPATH": ":".join(context.profile.python_path)} if context.profile.python_path else {}),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        **job_protocol.ARTIFACTS.to_env(context.artifacts if context.settings.volume.bucket else _run(spec, context) / RunFile.DROP),
        **job_protocol.TASK.to_env(task),
        **(_ray_settings() if _nemo(spec) else {}),
        **(job_protocol.LIBRARY_PATH.to_env(":".join(context.profile.library_path)) if context.profile.library_path else {}),
        **(job_protocol.ENVIRONMENT_SCRIPT.to_env(script) if (script := context.profile.environment_script) else {}),
        **job_protocol.FIRST_INCARNATION.to_env(incarnation),
        **job_protocol.MASTER_ADDRESS.to_env(f"{name}-{PodTask.HEAD if _nemo(spec) else PodTask.WORKER}-0.{name}"),
        **job_protocol.MASTER_PORT.to_env(RAY_PORT if _nemo(spec) else MEETING_PORT),
        **(_staged(spec, context, bucket) if (bucket := context.settings.volume.bucket) else {}),
    }
    plain = {**_caches(), **context.profile.environment, **spec.environment, **NO_TELEMETRY, **places}
    references = [
        Env(name=variable, value_from=ValueFrom(secret_key_ref=SecretKey(name=reference.split("/")[0], key=reference.split("/")[1])))
        for variable, reference in sorted(context.settings.secrets.items())
    ]
    restarts = ValueFrom(field_ref=FieldRef(field_path=f"metadata.annotations['{VERSION}']"))
    version = Env(name=job_protocol.RESTARTS.name, value_from=restarts)
    return (*references, *(Env(name=key, value=value) for key, value in sorted(plain.items())), version)


def _caches() -> dict[str, str]:
    """Return the variables that keep the caches of compiled kernels and of libraries on the pod's own disk."""
    folders = {
        "XDG_CACHE_HOME": "",
        "VLLM_CACHE_ROOT": "vllm",
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "CUDA_CACHE_PATH": "cuda",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    }
    return {name: f"{CACHES}/{folder}".rstrip("/") for name, folder in folders.items()}


def _ray_settings() -> dict[str, str]:
    """Return the variables of Ray: the token, no killing of workers by host memory, and time for workers that load slowly."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{RAY_TOKEN}/token"}
    return token | {"RAY_memory_monitor_refresh_ms": "0", "RAY_worker_register_timeout_seconds": "1800"}


def _staged(spec: JobSpec, context: RenderContext, bucket: BucketSettings) -> dict[str, str]:
    """Return the variables for staging through a bucket.

    The pods can write to the bucket that holds the job's record. Therefore they check the record against the digest that is given here.
    """
    return {
        **job_protocol.BUCKET.to_env(bucket),
        **job_protocol.MOUNT.to_env(Path(context.settings.volume.mount)),
        **job_protocol.JOB.to_env(spec.name),
        **job_protocol.SPEC.to_env(digest(stamped(spec))),
        **job_protocol.POD_GRACE.to_env(_grace(spec, context.profile)),
    }


def _shared(volume: VolumeSettings) -> Volume:
    if volume.bucket:
        return Volume(name="shared", empty_dir=EmptyDir(size_limit=volume.bucket.disk))
    if volume.claim:
        return Volume(name="shared", persistent_volume_claim=Claim(claim_name=volume.claim))
    return Volume(name="shared", host_path=HostPath(path=volume.mount, type="Directory"))


def _places(spec: JobSpec, context: RenderContext) -> tuple[tuple[Volume, ...], tuple[Mount, ...]]:
    """Return the volumes and mounts of a pod.

    Of the shared volume, a pod sees the plan's folder and the job's inputs read-only, and its attempt's run folder. It does not see the
    artifacts, the ledger, the lake, other plans or the executor's submission records. With a bucket, the paths of the plan, the run and
    the artifacts are on the pod's own disk.
    """
    settings, profile, bucket = context.settings, context.profile, context.settings.volume.bucket
    volumes = [
        _shared(settings.volume),
        Volume(name="shm", empty_dir=EmptyDir(medium="Memory", size_limit=profile.shm)),
        Volume(name="tmp", empty_dir=EmptyDir()),
    ]
    root = Path(settings.volume.mount)
    run = _run(spec, context)
    inputs = [run / name for name in sorted({RunFile.PLAN.value, *spec.inputs})]
    seen: dict[Path, bool | None] = {context.plan_folder: None if bucket else True, run: None}
    seen |= {context.artifacts: None} if bucket else dict.fromkeys(inputs, True)
    mounts = [
        Mount(name="shared", mount_path=str(path), sub_path=str(path.relative_to(root)), read_only=only) for path, only in seen.items()
    ]
    mounts += [Mount(name="shm", mount_path="/dev/shm"), Mount(name="tmp", mount_path="/tmp")]  # noqa: S108 -- inside the pod
    if _nemo(spec):
        volumes.append(Volume(name="ray", secret=SecretVolume(secret_name=RAY_SECRET)))
        mounts.append(Mount(name="ray", mount_path=RAY_TOKEN, read_only=True))
    for number, (path, _, inside) in enumerate(mount.partition(":") for mount in profile.mounts):
        volumes.append(Volume(name=f"node-{number}", host_path=HostPath(path=path)))
        mounts.append(Mount(name=f"node-{number}", mount_path=inside or path, read_only=True))
    return tuple(volumes), tuple(mounts)
