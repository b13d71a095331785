"""Evaluates network policies as a cluster with a network-policy engine does: which pods may open a connection to which.

Source: https://kubernetes.io/docs/concepts/services-networking/network-policies/. Ports by name and IPv6 are not needed here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
NAME = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class End:
    """One end of a connection: a pod with labels in a namespace, or an address outside of the cluster."""

    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    address: str = ""


def pod_end(body: Object, namespace: str) -> End:
    """Return the pods of a workload."""
    metadata = body["spec"]["template"]["metadata"]
    return End(body["metadata"].get("namespace") or namespace, dict(metadata["labels"]))


class Policies:
    """The network policies of a cluster. Those without a namespace are in `namespace`."""

    def __init__(self, objects: Sequence[Object], namespace: str) -> None:
        self.of = [
            (one["metadata"].get("namespace") or namespace, one["spec"]) for one in objects if one and one["kind"] == "NetworkPolicy"
        ]

    def allow(self, source: End, target: End, port: int, protocol: str = "TCP") -> bool:
        """Whether `source` may connect to `target`: egress at the one and ingress at the other."""
        return self._side(source, "Egress", "to", target, port, protocol) and self._side(target, "Ingress", "from", source, port, protocol)

    def _side(self, own: End, kind: str, key: str, other: End, port: int, protocol: str) -> bool:
        if own.address:
            return True
        mine = [
            (namespace, spec)
            for namespace, spec in self.of
            if namespace == own.namespace and kind in spec["policyTypes"] and _selects(spec["podSelector"], own.labels)
        ]
        rules = [(namespace, rule) for namespace, spec in mine for rule in spec.get(kind.lower()) or ()]
        return not mine or any(
            _port(rule, port, protocol) and (not rule.get(key) or any(_peer(peer, other, namespace) for peer in rule[key]))
            for namespace, rule in rules
        )


def _port(rule: Object, port: int, protocol: str) -> bool:
    return not rule.get("ports") or any(one.get("protocol", "TCP") == protocol and one.get("port", port) == port for one in rule["ports"])


def _peer(peer: Object, other: End, namespace: str) -> bool:
    if block := peer.get("ipBlock"):
        address = ipaddress.ip_address(other.address or "0.0.0.0")
        excluded = block.get("except") or ()
        return bool(other.address) and _within(address, block["cidr"]) and not any(_within(address, one) for one in excluded)
    if other.address:
        return False
    spaces = peer.get("namespaceSelector")
    if spaces is None:
        return other.namespace == namespace and _selects(peer["podSelector"], other.labels)
    return _selects(spaces, {NAME: other.namespace}) and _selects(peer.get("podSelector") or {}, other.labels)


def _within(address: Any, cidr: str) -> bool:
    return address in ipaddress.ip_network(cidr)


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector selects an object with these labels."""
    expressions = selector.get("matchExpressions") or ()
    assert all(one["operator"] == "In" for one in expressions), "only In is needed here"
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )
