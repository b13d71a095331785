"""What a gang's pods may say to whom, beyond the namespace's default of nothing: to each other, on every port. Collectives and Ray choose
their ports freely and, but for Ray's token, know no password, so the hole is exactly as wide as the gang. Pure."""

from __future__ import annotations

from k8s.cluster_objects import Egress, Ingress, NetworkPolicy, NetworkPolicySpec, Peer, Selector
from k8s.gang import GANG, RATCHET
from k8s.objects import Meta


def opening(gang: str, namespace: str) -> NetworkPolicy:
    """The hole for one gang, named as it is."""
    pods = Selector(match_labels={GANG: gang})
    peers = (Peer(pod_selector=pods),)
    return NetworkPolicy(
        metadata=Meta(name=gang, namespace=namespace, labels=dict(RATCHET)),
        spec=NetworkPolicySpec(
            pod_selector=pods, policy_types=("Ingress", "Egress"), ingress=(Ingress(sources=peers),), egress=(Egress(to=peers),)
        ),
    )
