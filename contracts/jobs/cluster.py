"""Settings of the loop file's `cluster` section: where training jobs run as gangs of pods, and their cost limits.

This module defines data only; k8s/ implements the behaviour. Without this section, jobs run on the local machine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ratchet.contracts.model import Frozen

Label = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Seconds = Annotated[float, Field(gt=0)]
Money = Annotated[float, Field(gt=0)]


class BucketSettings(Frozen):
    """An S3 bucket that stores run folders and checkpoints.

    Credentials follow the AWS SDK's lookup order. The service reads them from its environment. Pods read them from `cluster.secrets`
    or from a role of the service account `ratchet-job`.
    """

    url: Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*$")]
    """Bucket and prefix, as s3://bucket/prefix. Each prefix must be used by one installation only."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/@\s]+$")] | None = None
    """URL of an S3-compatible service. None selects Amazon S3."""
    region: str | None = None
    """Region of the bucket. None leaves the lookup to the AWS SDK, which usually finds no region in a pod."""
    cidrs: tuple[str, ...] = ("0.0.0.0/0",)
    """Address ranges (CIDR) that pods may reach on the endpoint's port. They must include the bucket and the service that issues
    credentials for it. The default allows every address except link-local ones. Restrict it to a VPC endpoint, for example."""
    disk: Annotated[str, Field(pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti)$")] | None = None
    """Local disk space that each pod requests, as a Kubernetes quantity. It must hold the start model, the data, the retained
    checkpoints and the trained model. With None, a pod requests no disk space and is evicted if it fills the node's disk."""

    @property
    def port(self) -> int:
        """TCP port of the S3 endpoint: the explicit port, otherwise 80 for http and 443 for https."""
        scheme, _, place = (self.endpoint or "https://s3").partition("://")
        return int(place.rpartition(":")[2]) if ":" in place else {"http": 80, "https": 443}[scheme]


class VolumeSettings(Frozen):
    """Storage for run folders and checkpoints, accessible to the service and to its jobs."""

    mount: str
    """Absolute path of the mount, both in the service and in the pods. RATCHET_HOME must be on it. A job can access only its own
    plan's folder and the artifacts below RATCHET_HOME."""
    claim: str | None = None
    """Name of a ReadWriteMany PersistentVolumeClaim (FSx for Lustre, Managed Lustre, Filestore, NFS)."""
    host_path: bool = False
    """Whether the nodes already provide the path: a single-machine cluster, or a file system that every node mounts."""
    bucket: BucketSettings | None = None
    """Bucket for installations without a shared file system. `mount` is then a local disk of each pod, and files are transferred
    through the bucket."""

    @model_validator(mode="after")
    def _one_kind(self) -> VolumeSettings:
        if [self.claim is not None, self.host_path, self.bucket is not None].count(True) != 1:
            raise ValueError("set exactly one of: claim, host_path = true, bucket")
        if not self.mount.startswith("/"):
            raise ValueError(f"mount {self.mount!r} is not an absolute path")
        return self


class PoolSettings(Frozen):
    """How nodes are provisioned for a gang."""

    kind: Literal["none", "static", "dynamic", "compute-class"] = "none"
    """none: nodes exist already or are provisioned by another system. static: one Karpenter pool per gang with a fixed size (requires
    Karpenter's feature gate StaticCapacity). dynamic: a Karpenter pool that grows when pods do not fit. compute-class: GKE makes the nodes
    by a ComputeClass, which `ratchet k8s render` prints, and removes them when they are idle."""
    capacity: Literal["spot", "on-demand", "reserved", "flex-start"] = "spot"
    """Capacity type to request. It also selects the price for the cost meter. reserved: the capacity reservations that
    `ratchet k8s render --reservation` names, and nothing else; a gang waits while they are full or have not begun. Their price is that of
    on-demand capacity, unless the price table has another one. flex-start: Google's queued capacity, which waits for machines and gives
    them for at most seven days; only with compute-class."""
    zone: str | None = None
    """Zone for all nodes of a gang. Traffic between zones is slow and is billed."""
    zones: tuple[str, ...] = ()
    """Zones from which nodes may come, in place of `zone`. More zones raise the chance of capacity. The nodes of one gang may then be in
    different zones."""
    max_nodes: Annotated[int, Field(gt=0)] = 8
    """Maximum number of nodes in the pool."""

    @model_validator(mode="after")
    def _one_way_to_name_zones(self) -> PoolSettings:
        if self.zone is not None and self.zones:
            raise ValueError("set either zone or zones")
        if len(set(self.zones)) != len(self.zones):
            raise ValueError("zones names a zone twice")
        return self

    @model_validator(mode="after")
    def _flex_start_of_google(self) -> PoolSettings:
        if self.capacity == "flex-start" and self.kind not in ("none", "compute-class"):
            raise ValueError('capacity "flex-start" is capacity of Google: set kind = "compute-class"')
        return self

    @property
    def karpenter(self) -> bool:
        """Whether Karpenter makes the nodes."""
        return self.kind in ("static", "dynamic")

    @property
    def allowed_zones(self) -> tuple[str, ...]:
        """Zones from which nodes may come; empty for any zone."""
        return self.zones or ((self.zone,) if self.zone is not None else ())


class ClusterSettings(Frozen):
    """Settings for training jobs that run as gangs: all pods of a gang start together or none does."""

    context: str | None = None
    """Context of the kubeconfig. None selects the current context, or the pod's service account if the service runs in a pod."""
    namespace: Annotated[Label, Field(max_length=55)] = "ratchet"
    """Namespace of the jobs. Pod templates are tried in a second namespace, with "-dry-run" after this name."""
    account: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")] | None = None
    """Service account of the service, as namespace/name, if another system created it, for example the chart: RELEASE-service in the
    namespace of the release. `ratchet k8s render --admin` gives it the rights to run gangs. None selects `ratchet-controller` in
    `namespace`, which the command then also renders."""
    queue: Label = "ratchet"
    """Volcano queue of the jobs."""
    profile: str = "generic-gpu"
    """Name of a machine profile in k8s/profiles, or the path of a custom profile relative to the loop file."""
    image: str
    """Container image with Python, this version of Ratchet and its `train` extra."""
    nemo_image: str | None = None
    """NeMo RL container image that also contains this version of Ratchet. Required if training.dpo_on, grpo_on or sft_on
    is nemo-rl."""
    python: str = "python3"
    """Python interpreter in the image."""
    volume: VolumeSettings
    """Storage for run folders and checkpoints."""
    secrets: dict[str, str] = Field(default_factory=dict)
    """Environment variable of the job -> `secret/key` of a Secret in the namespace. Secret values are not allowed here."""
    pool: PoolSettings = PoolSettings()
    """How nodes are provisioned."""
    half_alive: Seconds = 60.0
    """Maximum seconds that a gang may be partly alive, or that nodes may stay idle for a gang that cannot start."""
    pending: Seconds = 3600.0
    """Timeout in seconds for a gang to start, or to run completely again after a restart. After it, the incarnation counts as lost."""
    failure_margin: Annotated[int, Field(ge=0)] = 3
    """Number of restarts beyond training.max_restarts that Volcano may make while the service is down."""
    cap_run: Money | None = None
    """Maximum cost of one attempt, in the price table's currency. The attempt saves a checkpoint and stops when its measured cost
    reaches the limit. None: no limit."""
    cap_month: Money | None = None
    """Maximum cost of all attempts of the line per calendar month (UTC), in the price table's currency. None: no limit."""

    @model_validator(mode="after")
    def _account_of_the_service(self) -> ClusterSettings:
        if self.account is not None and self.account.partition("/")[2] in ("ratchet-job", "ratchet-model", "default"):
            raise ValueError(f"account {self.account!r} is not an account of the service; jobs and model servers must not have its rights")
        return self

    @model_validator(mode="after")
    def _references_only(self) -> ClusterSettings:
        for variable, reference in self.secrets.items():
            if reference.count("/") != 1 or not all(reference.split("/")):
                raise ValueError(f"secrets.{variable} is not of the form secret/key; reference a Secret in the namespace, never a value")
        return self
