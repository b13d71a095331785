"""Machine profiles: what a kind of node offers and asks for, as data in `profiles/*.toml`, one file each.

A profile knows machines and networks. It refuses to know jobs, lines and prices.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from contracts.errors import ConfigError
from contracts.model import Frozen


class Taint(Frozen):
    """A taint that the nodes carry and a job's pods tolerate."""

    key: str
    value: str | None = None
    effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule"


class Profile(Frozen):
    """One kind of node."""

    provider: Literal["aws", "gke", "any"]
    """Whose node pools can be rendered for it."""
    instance_types: tuple[str, ...] = ()
    """Of the provider; several raise the chance of spot capacity. Empty: any."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """Per node."""
    gpu_resource: str = "nvidia.com/gpu"
    cpu: str
    """A pod's request and limit; leave the node's daemons their share."""
    memory: str
    """A pod's request and limit."""
    shm: str = "64Gi"
    """Shared memory, counted as the pod's: NCCL and data loaders exchange through it."""
    resources: dict[str, str] = Field(default_factory=dict)
    """Extended resources besides GPUs, such as network adapters."""
    environment: dict[str, str] = Field(default_factory=dict)
    """For the collective library and its network plugin."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Of the pods; network interfaces on GKE."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Of the nodes that pods ask for."""
    taints: tuple[Taint, ...] = ()
    """Of the nodes."""
    mounts: tuple[str, ...] = ()
    """Folders of the nodes that a pod sees, read-only, at the same path."""
    python_path: tuple[str, ...] = ()
    """Folders in which a pod's Python finds Ratchet, where its image does not hold it: they must be among `mounts`."""
    root: str = ""
    """Why its pods run as root; empty: they do not."""
    user: Annotated[int, Field(gt=0)] = 1000
    """Numeric user and group of a pod that is not root: the one that owns the shared volume."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities to keep."""
    privileged: str = ""
    """Why its pods are privileged; empty: they are not."""
    host_network: str = ""
    """Why its pods use the node's own network; empty: they do not."""
    network_cards: Annotated[int, Field(ge=0)] = 0
    """Cards that carry a fabric adapter, for node pools: a node that no pod has asked for yet gets its adapters by this number."""
    node_class: str = ""
    """Karpenter's node class for its pools, as group/kind/name, where it is not one that we render."""
    node_annotations: dict[str, str] = Field(default_factory=dict)
    """Of the nodes that its pools make."""
    grace: Annotated[int, Field(ge=1, le=300)] = 110
    """Seconds from SIGTERM to SIGKILL, at least: a spot notice is two minutes, and the kubelet needs some of them. The recipe's
    `grace_seconds`, 110 as well, is what a job takes for its checkpoint; where it is longer, pods get it. So lower both."""
    one_per_node: bool = True
    """Two pods of a gang never share a node."""
    image_pull: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    notes: tuple[str, ...] = ()
    """For a person: what was checked, and what was not."""

    @model_validator(mode="after")
    def _rooted(self) -> Profile:
        if self.privileged and not self.root:
            raise ValueError("a privileged pod runs as root: say why in `root` too")
        return self

    @model_validator(mode="after")
    def _whole_class(self) -> Profile:
        if self.node_class and (self.node_class.count("/") != 2 or not all(self.node_class.split("/"))):
            raise ValueError(f"node_class {self.node_class!r} is not of the form group/kind/name")
        return self


def known() -> list[str]:
    """Names of the shipped profiles."""
    return sorted(path.name.removesuffix(".toml") for path in resources.files("k8s.profiles").iterdir() if path.name.endswith(".toml"))


def load_profile(name: str, folder: Path = Path()) -> Profile:
    """A shipped profile by name, or one's own by a path (it ends in .toml, relative to `folder`). ConfigError says what is wrong."""
    if not name.endswith(".toml"):
        if name not in known():
            raise ConfigError(
                f"cluster.profile: there is no profile {name!r}; there are: {', '.join(known())}, or name a *.toml of your own"
            )
        return _parse((resources.files("k8s.profiles") / f"{name}.toml").read_text(encoding="utf-8"), name)
    path = folder / name
    try:
        return _parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"cluster.profile: cannot read {path}: {error.strerror}") from error


def _parse(text: str, where: str) -> Profile:
    try:
        return Profile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(f"{where}: {'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors())) from error
