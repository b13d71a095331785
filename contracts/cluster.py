"""The loop file's section on a Kubernetes cluster: where a line's training jobs run as gangs, and what they may cost.

Data only. What becomes of it is k8s/'s business; without the section, jobs run on this machine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from contracts.model import Frozen

Label = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Seconds = Annotated[float, Field(gt=0)]
Money = Annotated[float, Field(gt=0)]


class BucketSettings(Frozen):
    """An S3 bucket as the place where run folders and checkpoints lie. Credentials are found as the AWS SDK finds them: here, in the
    service's environment; in pods, from `cluster.secrets` or a role of the service account `ratchet-job`."""

    url: Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*$")]
    """s3://bucket/prefix. A prefix belongs to one installation."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/@\s]+$")] | None = None
    """URL of an S3 service that is not Amazon's."""
    region: str | None = None
    """Of the bucket; none: as the SDK finds it, which in a pod is nowhere."""
    cidrs: tuple[str, ...] = ("0.0.0.0/0",)
    """Addresses that pods may reach on the endpoint's port: the bucket's, and those of whoever gives them rights to it. All but link-local
    ones, where nothing is said: name a VPC endpoint's, for example."""
    disk: Annotated[str, Field(pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti)$")] | None = None
    """Of each pod: what it asks of its node's own disks for the start model, data, the steps that are kept and the trained model. None:
    nothing is asked for, and a pod that fills its node is evicted."""

    @property
    def port(self) -> int:
        """On which the bucket answers."""
        scheme, _, place = (self.endpoint or "https://s3").partition("://")
        return int(place.rpartition(":")[2]) if ":" in place else {"http": 80, "https": 443}[scheme]


class VolumeSettings(Frozen):
    """What the service and its jobs both see: run folders and checkpoints lie on it."""

    mount: str
    """Absolute path, here and in the pods; RATCHET_HOME lies on it. Of RATCHET_HOME, a job sees its own plan's folder and the artifacts."""
    claim: str | None = None
    """A PersistentVolumeClaim that many nodes may write (FSx for Lustre, Managed Lustre, Filestore, NFS)."""
    host_path: bool = False
    """The nodes have the path themselves: one machine with a cluster on it, or a file system that every node mounts."""
    bucket: BucketSettings | None = None
    """No shared file system: `mount` is a disk of each pod's own, and what lies on it travels through a bucket."""

    @model_validator(mode="after")
    def _one_kind(self) -> VolumeSettings:
        if [self.claim is not None, self.host_path, self.bucket is not None].count(True) != 1:
            raise ValueError("name one of: a claim, host_path = true, a bucket")
        if not self.mount.startswith("/"):
            raise ValueError(f"mount {self.mount!r} is not an absolute path")
        return self


class PoolSettings(Frozen):
    """Who brings the nodes."""

    kind: Literal["none", "static", "dynamic"] = "none"
    """none: nodes are there, or somebody else's business. static: a Karpenter pool per gang, sized by us (needs Karpenter's feature gate
    StaticCapacity). dynamic: a Karpenter pool that grows with pods that do not fit."""
    capacity: Literal["spot", "on-demand"] = "spot"
    """What is asked for, and what it is priced as."""
    zone: str | None = None
    """All nodes of a gang in one zone: traffic between zones is slow and is billed."""
    max_nodes: Annotated[int, Field(gt=0)] = 8
    """The pool's limit."""


class ClusterSettings(Frozen):
    """Training jobs as gangs of pods, all of them or none."""

    context: str | None = None
    """Context of the kubeconfig; none: the current one, or the service account of the pod that we run in."""
    namespace: Label = "ratchet"
    queue: Label = "ratchet"
    """Volcano queue."""
    profile: str = "generic-gpu"
    """Short name of a machine profile (k8s/profiles), or a path to one of your own, relative to the loop file."""
    image: str
    """Holds Python, this version of Ratchet and its `train` extra."""
    nemo_image: str | None = None
    """NeMo RL's image with this version of Ratchet in it; needed where training.grpo_on is nemo-rl."""
    python: str = "python3"
    """The interpreter in the image."""
    volume: VolumeSettings
    secrets: dict[str, str] = Field(default_factory=dict)
    """Environment variable of the job -> `secret/key` in the namespace. Never a value."""
    pool: PoolSettings = PoolSettings()
    half_alive: Seconds = 60.0
    """No gang is partly alive, and no paid node stands idle for a gang that cannot start, for longer than this."""
    pending: Seconds = 3600.0
    """A gang that has not started after so long, or is not whole again, is given up: its incarnation counts as lost."""
    failure_margin: Annotated[int, Field(ge=0)] = 3
    """Restarts beyond training.max_restarts that Volcano may make while our service is away."""
    cap_run: Money | None = None
    """Most that one attempt may cost, in the price table's currency; it is stopped with a checkpoint when its meter reaches this."""
    cap_month: Money | None = None
    """Most that the line's attempts may cost in a calendar month (UTC)."""

    @model_validator(mode="after")
    def _references_only(self) -> ClusterSettings:
        for variable, reference in self.secrets.items():
            if reference.count("/") != 1 or not all(reference.split("/")):
                raise ValueError(f"secrets.{variable} is not of the form secret/key; name a Secret of the namespace, never a value")
        return self
