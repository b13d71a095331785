"""A training job as a gang: JobSpec and settings into one Volcano Job, purely. All pods start together or none does.

It knows Volcano's rules and the pods' places; it refuses to know what a job does inside (trainers/inside/pod.py is process 1)
and talks to no server. Why each field is as it is: docs/kubernetes.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from contracts.cluster import BucketSettings, ClusterSettings, VolumeSettings
from contracts.errors import ConfigError
from contracts.exits import FAILURE, PERMANENT
from contracts.ids import canonical, digest
from contracts.training import JobSpec
from k8s.objects import (
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
from k8s.profile import Profile

MEETING_PORT, RAY_PORT = 29500, 6379
"""Of torchrun's rendezvous and of Ray's head. Every other port of a gang is chosen freely: pods of one gang reach each other on all."""
PART_OF, LINE, PLAN, ATTEMPT = "app.kubernetes.io/part-of", "ratchet.dev/line", "ratchet.dev/plan", "ratchet.dev/attempt"
JOB_NAME = "ratchet.dev/job"
"""Label with the JobSpec's name: several Volcano Jobs may have run it, one after the other."""
RATCHET = {PART_OF: "ratchet"}
INSTALLATION = "ratchet.dev/installation"
"""Label of everything that one installation made: two may share a namespace, and have lines of the same name."""
GANG = "ratchet.dev/gang"
"""Label of every pod of a gang, with the Job's name."""
VERSION = "volcano.sh/job-version"
"""Volcano's annotation on a pod: how often its Job was restarted when the pod was made."""
RAY_SECRET, RAY_TOKEN = "ratchet-ray", "/var/run/ratchet/ray"
"""Secret with the key `token`, which every process of a Ray cluster shows to the others, and where a pod finds it."""
NODE_GONE = 15
"""Seconds that a pod stays bound to a node that is not ready. The gang is broken anyway: the sooner it restarts, the less is paid."""


@dataclass(frozen=True)
class Ground:
    """Where a gang lives: everything but the job itself."""

    line: str
    settings: ClusterSettings
    profile: Profile
    plan_folder: Path
    """Holds the attempts' run folders; below the volume's mount."""
    artifacts: Path
    """Below the volume's mount."""
    max_restarts: int
    """training.max_restarts"""
    installation: str = "sample"
    """Whose gang it is."""


def render(spec: JobSpec, ground: Ground, incarnation: int = 1) -> VolcanoJob:
    """The gang of one attempt. `incarnation`: what its first pods are; later ones add Volcano's version. The name says what is in it.

    ConfigError where job and profile do not fit.
    """
    _fits(spec, ground)
    labels = {
        **RATCHET,
        LINE: ground.line,
        PLAN: spec.plan[:16],
        ATTEMPT: str(spec.attempt),
        JOB_NAME: spec.name,
        INSTALLATION: ground.installation,
    }
    nemo = _nemo(spec)
    draft = VolcanoJob(
        metadata=Meta(namespace=ground.settings.namespace, labels=labels),
        spec=VolcanoJobSpec(
            queue=ground.settings.queue,
            min_available=spec.nodes,
            max_retry=ground.max_restarts + ground.settings.failure_margin + 1,
            plugins={"svc": ("--publish-not-ready-addresses=true", "--disable-network-policy=true"), "env": ()},
            policies=_policies(),
            tasks=(),
        ),
    )
    # The name is a hash of everything else; pods carry it and find each other by it, so they are rendered once it is known.
    name = f"{spec.name}-{digest([spec.name, incarnation, _content(draft, spec, ground, labels)])[:8]}"
    tasks = _ray_tasks(spec, ground, name, incarnation, labels) if nemo else _torchrun_tasks(spec, ground, name, incarnation, labels)
    return draft.model_copy(
        update={"metadata": draft.metadata.model_copy(update={"name": name}), "spec": draft.spec.model_copy(update={"tasks": tasks})}
    )


def _content(draft: VolcanoJob, spec: JobSpec, ground: Ground, labels: dict[str, str]) -> str:
    tasks = (_ray_tasks if _nemo(spec) else _torchrun_tasks)(spec, ground, "name", 1, labels)
    return digest(canonical([manifest(draft), [manifest(task) for task in tasks]]))


def _nemo(spec: JobSpec) -> bool:
    return spec.environment.get("RATCHET_BACKEND") == "nemo-rl"


def _fits(spec: JobSpec, ground: Ground) -> None:
    settings, profile = ground.settings, ground.profile
    if spec.gpus > profile.gpus:
        raise ConfigError(f"training.gpus = {spec.gpus}, but a node of profile {settings.profile!r} has {profile.gpus}; choose another one")
    if _nemo(spec) and settings.nemo_image is None:
        raise ConfigError("training.grpo_on = nemo-rl needs cluster.nemo_image: NeMo RL's image with this version of Ratchet in it")
    if _nemo(spec) and settings.volume.bucket:
        raise ConfigError("cluster.volume.bucket: NeMo RL's nodes write one checkpoint together; give it a file system that all mount")
    for path in (ground.plan_folder, ground.artifacts):
        if not path.is_relative_to(settings.volume.mount):
            raise ConfigError(f"{path} is not on the volume at {settings.volume.mount}; put RATCHET_HOME on it, or mount it elsewhere")
    taken = sorted(name for name in settings.secrets if name.startswith(("RATCHET_", "VC_", "MASTER_")))
    if taken:
        raise ConfigError(f"cluster.secrets: {', '.join(taken)} would overwrite what the job itself is told; choose other names")


def _policies() -> tuple[Policy, ...]:
    """A job that says that it failed is not restarted here: the ledger mints its next attempt. What befalls it from outside restarts it,
    whole. RestartPod, RestartTask and RestartPartition leave half a gang and are never used."""
    return (
        Policy(exit_code=PERMANENT, action="TerminateJob"),
        Policy(exit_code=FAILURE, action="TerminateJob"),
        Policy(event="PodEvicted", action="RestartJob"),
        Policy(event="PodFailed", action="RestartJob"),
        Policy(event="Unknown", action="RestartJob"),
    )


def _torchrun_tasks(spec: JobSpec, ground: Ground, name: str, incarnation: int, labels: dict[str, str]) -> tuple[Task, ...]:
    ports = (Port(name="meeting", container_port=MEETING_PORT),)
    template = _pod(spec, ground, name, incarnation, labels, "worker", ports)
    return (Task(name="worker", replicas=spec.nodes, min_available=spec.nodes, template=template),)


def _ray_tasks(spec: JobSpec, ground: Ground, name: str, incarnation: int, labels: dict[str, str]) -> tuple[Task, ...]:
    ports = (Port(name="ray", container_port=RAY_PORT),)
    head = Task(
        name="head",
        replicas=1,
        min_available=1,
        policies=(*_policies(), Policy(event="TaskCompleted", action="CompleteJob")),
        template=_pod(spec, ground, name, incarnation, labels, "head", ports),
    )
    if spec.nodes == 1:
        return (head,)
    worker = _pod(spec, ground, name, incarnation, labels, "worker", None)
    return (head, Task(name="worker", replicas=spec.nodes - 1, min_available=spec.nodes - 1, template=worker))


def _pod(
    spec: JobSpec, ground: Ground, name: str, incarnation: int, labels: dict[str, str], task: str, ports: tuple[Port, ...] | None
) -> PodTemplate:
    settings, profile = ground.settings, ground.profile
    volumes, mounts = _places(spec, ground)
    container = Container(
        name="job",  # the only one: Volcano reads the exit code of the first container's status
        image=settings.nemo_image if _nemo(spec) and settings.nemo_image else settings.image,
        image_pull_policy=profile.image_pull,
        command=(settings.python, "-m", "k8s.staging" if settings.volume.bucket else "trainers.inside.pod"),
        working_dir=str(_run(spec, ground)),
        env=_environment(spec, ground, name, incarnation, task),
        ports=ports,
        resources=_resources(spec, ground),
        volume_mounts=mounts,
        security_context=ContainerSecurity(
            allow_privilege_escalation=bool(profile.privileged),
            privileged=True if profile.privileged else None,
            read_only_root_filesystem=not _nemo(spec),  # the release keeps virtual environments of its own below /opt
            capabilities=Capabilities(add=profile.capabilities or None),
        ),
    )
    pod = PodSpec(
        service_account_name="ratchet-job",
        termination_grace_period_seconds=_grace(spec, profile),
        node_selector=dict(profile.labels),
        tolerations=_tolerations(profile),
        affinity=_apart(name) if profile.one_per_node and spec.nodes > 1 else None,
        host_network=True if profile.host_network else None,
        security_context=_user(profile),
        containers=(container,),
        volumes=volumes,
    )
    return PodTemplate(metadata=Meta(labels={**labels, GANG: name}, annotations=dict(profile.annotations)), spec=pod)


def _run(spec: JobSpec, ground: Ground) -> Path:
    return ground.plan_folder / f"a{spec.attempt}"


def _grace(spec: JobSpec, profile: Profile) -> int:
    return max(profile.grace, spec.grace_seconds)


def _user(profile: Profile) -> PodSecurity:
    if profile.root:
        return PodSecurity(run_as_user=0)
    return PodSecurity(run_as_non_root=True, run_as_user=profile.user, run_as_group=profile.user, fs_group=profile.user)


def _resources(spec: JobSpec, ground: Ground) -> Resources:
    profile, bucket = ground.profile, ground.settings.volume.bucket
    asked = {"cpu": profile.cpu, "memory": profile.memory, **profile.resources}
    if bucket and bucket.disk:
        asked["ephemeral-storage"] = bucket.disk
    if spec.gpus:
        asked[profile.gpu_resource] = str(spec.gpus)
    return Resources(requests=asked, limits=asked)


def _tolerations(profile: Profile) -> tuple[Toleration, ...]:
    ours = [
        Toleration(key=t.key, operator="Equal" if t.value is not None else "Exists", value=t.value, effect=t.effect) for t in profile.taints
    ]
    gone = [
        Toleration(key=f"node.kubernetes.io/{what}", effect="NoExecute", toleration_seconds=NODE_GONE)
        for what in ("not-ready", "unreachable")
    ]
    return (*ours, *gone)


def _apart(name: str) -> Affinity:
    term = AffinityTerm(label_selector=Match(match_labels={GANG: name}), topology_key="kubernetes.io/hostname")
    return Affinity(pod_anti_affinity=PodAntiAffinity(required_during_scheduling_ignored_during_execution=(term,)))


def _environment(spec: JobSpec, ground: Ground, name: str, incarnation: int, task: str) -> tuple[Env, ...]:
    """Ours last: neither recipe, profile nor secret may change who a pod is. A restart's number comes from Volcano's annotation."""
    places = {
        "HOME": str(_run(spec, ground)),
        **({"PYTHONPATH": ":".join(ground.profile.python_path)} if ground.profile.python_path else {}),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "RATCHET_ARTIFACTS": str(ground.artifacts),
        "RATCHET_TASK": task,
        **({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{RAY_TOKEN}/token"} if _nemo(spec) else {}),
        "RATCHET_FIRST_INCARNATION": str(incarnation),
        "MASTER_ADDR": f"{name}-{'head' if _nemo(spec) else 'worker'}-0.{name}",
        "MASTER_PORT": str(RAY_PORT if _nemo(spec) else MEETING_PORT),
        **(_staged(spec, ground, bucket) if (bucket := ground.settings.volume.bucket) else {}),
    }
    plain = {**ground.profile.environment, **spec.environment, **places}
    references = [
        Env(name=variable, value_from=ValueFrom(secret_key_ref=SecretKey(name=reference.split("/")[0], key=reference.split("/")[1])))
        for variable, reference in sorted(ground.settings.secrets.items())
    ]
    version = Env(name="RATCHET_RESTARTS", value_from=ValueFrom(field_ref=FieldRef(field_path=f"metadata.annotations['{VERSION}']")))
    return (*references, *(Env(name=key, value=value) for key, value in sorted(plain.items())), version)


def _staged(spec: JobSpec, ground: Ground, bucket: BucketSettings) -> dict[str, str]:
    """What staging goes by. The job's record lies where its pods could write it: they know it by its digest."""
    return {
        "RATCHET_BUCKET": bucket.model_dump_json(exclude_none=True),
        "RATCHET_MOUNT": ground.settings.volume.mount,
        "RATCHET_JOB": spec.name,
        "RATCHET_SPEC": digest(canonical(spec)),
        "RATCHET_POD_GRACE": str(_grace(spec, ground.profile)),
    }


def _shared(volume: VolumeSettings) -> Volume:
    if volume.bucket:
        return Volume(name="shared", empty_dir=EmptyDir(size_limit=volume.bucket.disk))
    if volume.claim:
        return Volume(name="shared", persistent_volume_claim=Claim(claim_name=volume.claim))
    return Volume(name="shared", host_path=HostPath(path=volume.mount, type="Directory"))


def _places(spec: JobSpec, ground: Ground) -> tuple[tuple[Volume, ...], tuple[Mount, ...]]:
    """Of the shared volume, a pod sees its plan's folder, of which it may write its own attempt's, and the artifacts: not the ledger, not
    the lake, no other plan, and nothing that its executor goes by. With a bucket, it has places of those names on a disk of its own."""
    settings, profile, bucket = ground.settings, ground.profile, ground.settings.volume.bucket
    volumes = [
        _shared(settings.volume),
        Volume(name="shm", empty_dir=EmptyDir(medium="Memory", size_limit=profile.shm)),
        Volume(name="tmp", empty_dir=EmptyDir()),
    ]
    root = Path(settings.volume.mount)
    seen = ((ground.plan_folder, None if bucket else True), (_run(spec, ground), None), (ground.artifacts, None))
    mounts = [Mount(name="shared", mount_path=str(path), sub_path=str(path.relative_to(root)), read_only=only) for path, only in seen]
    mounts += [Mount(name="shm", mount_path="/dev/shm"), Mount(name="tmp", mount_path="/tmp")]  # noqa: S108 -- inside the pod
    if _nemo(spec):
        volumes.append(Volume(name="ray", secret=SecretVolume(secret_name=RAY_SECRET)))
        mounts.append(Mount(name="ray", mount_path=RAY_TOKEN, read_only=True))
    for number, path in enumerate((*profile.mounts,)):
        volumes.append(Volume(name=f"node-{number}", host_path=HostPath(path=path)))
        mounts.append(Mount(name=f"node-{number}", mount_path=path, read_only=True))
    return tuple(volumes), tuple(mounts)
