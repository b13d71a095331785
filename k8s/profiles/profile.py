"""Machine profiles: the resources that a kind of node offers and the settings that its pods need, one TOML file each in `profiles/`.

A profile describes machines and networks. It does not depend on jobs, lines or prices.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.model import Frozen
from ratchet.contracts.wording import problems


class Taint(Frozen):
    """Taint that the nodes carry and that a job's pods tolerate."""

    key: str
    value: str | None = None
    effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule"


class Profile(Frozen):
    """Settings of one kind of node."""

    provider: Literal["aws", "gke", "any"]
    """Cloud provider of the nodes. Ratchet renders a Karpenter node class for `aws` only."""
    instance_types: tuple[str, ...] = ()
    """Instance types of the provider. More types raise the chance of spot capacity. Empty means any type."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs per node; 0 for nodes without GPUs."""
    gpu_memory: Annotated[float, Field(gt=0)] | None = None
    """GiB of one GPU, by which `ratchet plan` says whether a training fits. None: it is not known."""
    gpu_resource: str = "nvidia.com/gpu"
    """Name of the extended resource that counts the GPUs."""
    cpu: str
    """CPU request and limit of a pod. Leave enough for the node's daemons."""
    memory: str
    """Memory request and limit of a pod. Leave enough for the node's daemons."""
    shm: str = "64Gi"
    """Size of /dev/shm, which counts as the pod's memory. NCCL and data loaders exchange data through it."""
    resources: dict[str, str] = Field(default_factory=dict)
    """Extended resources other than GPUs, such as network adapters, with the amount per pod."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables for the collective library and its network plugin."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the pods, such as network interfaces on GKE."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Node labels that the pods select."""
    taints: tuple[Taint, ...] = ()
    """Taints of the nodes; the pods tolerate them."""
    mounts: tuple[str, ...] = ()
    """Folders of the node that are mounted read-only in a pod: at the same path, or `NODE:POD` for another path in the pod."""
    library_path: tuple[str, ...] = ()
    """Folders in a pod that precede the image's own `LD_LIBRARY_PATH`."""
    environment_script: str = ""
    """Shell script in a pod that sets variables of NCCL, such as `set_nccl_env.sh` of Google's plugin. Its values take precedence over
    `environment`. A pod whose script is missing does not start."""
    python_path: tuple[str, ...] = ()
    """Folders in which a pod's Python finds Ratchet if the image does not contain it. They must be in `mounts`."""
    root: str = ""
    """Reason why the pods run as root. Empty means that they do not. Pods on NeMo RL always run as root, because its image keeps Python
    in a folder of root."""
    user: Annotated[int, Field(gt=0)] = 1000
    """Numeric user and group of the service and of the pods. It must own the shared volume. Pods that run as root have only the group;
    their files are readable and writable for it."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities to keep. By default all are dropped. Pods that run as root also keep those that root needs to use files of the
    service (`k8s/manifests/gang_manifest.py`)."""
    privileged: str = ""
    """Reason why the pods are privileged. Empty means that they are not."""
    host_network: str = ""
    """Reason why the pods use the node's network. Empty means that they do not."""
    network_cards: Annotated[int, Field(ge=0)] = 0
    """Network cards per node that carry a fabric adapter.

    A node pool uses the number to attach the adapters before any pod requests them.
    """
    node_class: str = ""
    """Karpenter node class of the pools, as group/kind/name, if it is not one that Ratchet renders."""
    node_annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the nodes that the pools make."""
    grace: Annotated[int, Field(ge=1, le=300)] = 110
    """Minimum seconds from SIGTERM to SIGKILL. A spot notice is two minutes, and the kubelet needs part of it.

    A job uses the recipe's `grace_seconds` (110 by default, too) for its checkpoint; pods get the longer of the two. To shorten the
    grace period, lower both.
    """
    one_per_node: bool = True
    """Whether two pods of a gang must run on different nodes."""
    image_pull: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """Image pull policy of the pods."""
    notes: tuple[str, ...] = ()
    """Notes for operators: what was verified and what was not. `ratchet k8s render` prints them."""

    @model_validator(mode="after")
    def _rooted(self) -> Profile:
        if self.privileged and not self.root:
            raise ValueError("a privileged pod runs as root; give the reason in `root`, too")
        return self

    @model_validator(mode="after")
    def _libraries_are_added(self) -> Profile:
        if "LD_LIBRARY_PATH" in self.environment:
            raise ValueError("environment must not contain LD_LIBRARY_PATH, because it would replace the image's own; use library_path")
        return self

    @model_validator(mode="after")
    def _whole_class(self) -> Profile:
        if self.node_class and (self.node_class.count("/") != 2 or not all(self.node_class.split("/"))):
            raise ValueError(f"node_class {self.node_class!r} is not of the form group/kind/name")
        return self


def known() -> list[str]:
    """Return the names of the shipped profiles."""
    return sorted(
        path.name.removesuffix(".toml") for path in resources.files("ratchet.k8s.profiles").iterdir() if path.name.endswith(".toml")
    )


def load_profile(name: str, folder: Path = Path(), key: str = "cluster.profile") -> Profile:
    """Load a shipped profile by name, or a profile file by path.

    A path ends in .toml and is relative to `folder`. `key` names the setting in messages. Raises ConfigError if the profile is unknown,
    unreadable or invalid.
    """
    if not name.endswith(".toml"):
        if name not in known():
            raise ConfigError(f"{key}: unknown profile {name!r}; choose one of {', '.join(known())}, or give the path of a *.toml file")
        return _parse((resources.files("ratchet.k8s.profiles") / f"{name}.toml").read_text(encoding="utf-8"), name)
    path = folder / name
    try:
        return _parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error


def _parse(text: str, where: str) -> Profile:
    try:
        return Profile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(f"{where}: {one.sentence()}" for one in problems(error))) from error
