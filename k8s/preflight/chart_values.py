"""Names in the values of the chart: Secrets with their keys, images, and requests of the pods. No I/O.

The chart itself is in k8s/chart; a test compares these functions with what Helm renders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ratchet.contracts.errors import ConfigError
from ratchet.k8s.api.quantities import parse

Values = dict[str, Any]
PULL_KEY = ".dockerconfigjson"
"""Key of a Secret with the credentials of a registry."""
_COMPONENTS = ("service", "router", "receiver")
_TYPES: dict[type, str] = {dict: "a table", list: "a list", str: "a text", bool: "true or false", int: "a number"}


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any], place: str = "") -> Values:
    """Return the defaults with the given values in their place, as Helm merges them.

    Raises ConfigError if a table or a list of the chart has another type in `given`.
    """
    found = dict(defaults)
    for key, value in given.items():
        default = defaults.get(key)
        if isinstance(default, dict | list) and value is not None and not isinstance(value, type(default)):
            raise ConfigError(f"the value {place}{key} must be {_TYPES[type(default)]}; k8s/chart/values.yaml explains it")
        found[key] = merged(default, value, f"{place}{key}.") if isinstance(default, dict) and isinstance(value, dict) else value
    return found


def secret_keys(values: Mapping[str, Any], lines: Sequence[str]) -> dict[str, set[str]]:
    """Return the name of each Secret that the pods of the chart need -> the keys in it. A Secret that is not named yet is left out."""
    wanted: dict[str, set[str]] = {}
    for name, key in _named_keys(values, lines):
        if name:
            wanted.setdefault(name, set()).add(key)
    return wanted


def _named_keys(values: Mapping[str, Any], lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    bucket, prefect, service = values["bucket"], values["prefect"], values["service"]
    yield from ((bucket["secret"], key) for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    yield values["ledger"]["secret"], values["ledger"]["key"]
    yield values["lake"]["catalog"]["secret"], values["lake"]["catalog"]["key"]
    yield from ((values["keys"]["secret"], key) for key in ("user-keys.json", "anchor.key"))
    yield from ((values["keys"]["secret"], f"{line}.{part}") for line in lines for part in ("router", "span-keys.json"))
    yield prefect["secret"], "auth"
    if not prefect["url"]:
        yield prefect["database"]["secret"], prefect["database"]["key"]
    yield service["kubeconfigSecret"], "config"
    yield values["ray"]["secret"], values["ray"]["key"]
    for reference in (service["secrets"] or {}).values():
        name, _, key = str(reference).partition("/")
        yield name, key
    yield from ((name, PULL_KEY) for name in values["image"]["pullSecrets"] or ())


def has_standby(values: Mapping[str, Any]) -> bool:
    """Return whether a second pod of the service waits for the first one. Neither has a volume then."""
    return int(values["service"]["replicas"]) > 1


def service_target(values: Mapping[str, Any], release: str) -> str:
    """Return the argument with which kubectl reaches a pod of the service."""
    return f"deploy/{release}-service" if has_standby(values) else f"{release}-service-0"


def image_of(values: Mapping[str, Any], release: str) -> str:
    """Return the image of the control plane; empty if the values name none. `release` is the tag without another one."""
    image = values["image"]
    if not image["repository"]:
        return ""
    return f"{image['repository']}@{image['digest']}" if image["digest"] else f"{image['repository']}:{image['tag'] or release}"


def with_volume(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the components whose pods have a volume each."""
    return ("router",) if has_standby(values) else ("service", "router")


def requested(values: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return resource -> sum of the requests of all pods of the chart, in the names and units of a ResourceQuota.

    Raises ValueError if a value is not a quantity.
    """
    replicas = {name: int(values[name]["replicas"]) for name in _COMPONENTS}
    if values["lines"] and all(line.get("router") == "gateway" for line in values["lines"]):
        replicas["router"] = 0
    resources = {name: values[name]["resources"] for name in _COMPONENTS}
    if not values["prefect"]["url"]:
        replicas["prefect"], resources["prefect"] = 1, values["prefect"]["resources"]
    if workers := int(values["ray"]["workers"]):
        replicas |= {"ray": workers, "ray head": 1}
        resources |= {"ray": values["ray"]["resources"], "ray head": values["ray"]["head"]["resources"]}
    total: dict[str, Fraction] = {"pods": Fraction(sum(replicas.values()))}
    for name, count in replicas.items():
        for kind in ("requests", "limits"):
            for resource, amount in (resources[name].get(kind) or {}).items():
                total[f"{kind}.{resource}"] = total.get(f"{kind}.{resource}", Fraction(0)) + parse(amount) * count
    volumes = {name: values[name]["volume"]["size"] for name in with_volume(values)}
    total["requests.storage"] = sum((parse(size) * replicas[name] for name, size in volumes.items()), Fraction(0))
    total["persistentvolumeclaims"] = Fraction(sum(replicas[name] for name in volumes))
    return total | {name: total[f"requests.{name}"] for name in ("cpu", "memory") if f"requests.{name}" in total}
