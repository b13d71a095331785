"""What a gang's pods may say to whom, beyond the namespace's default of nothing: to each other, on every port. Collectives and Ray choose
their ports freely and, but for Ray's token, know no password, so the hole is exactly as wide as the gang. Pure."""

from __future__ import annotations

from contracts.cluster import BucketSettings
from k8s.cluster_objects import Egress, Ingress, IpBlock, NetworkPolicy, NetworkPolicySpec, Peer, PolicyPort, Selector
from k8s.gang import GANG, RATCHET
from k8s.objects import Meta

LINK_LOCAL = ("169.254.0.0/16",)
"""Where clouds tell a machine its own credentials."""


def opening(gang: str, namespace: str, bucket: BucketSettings | None = None) -> NetworkPolicy:
    """The hole for one gang, named as it is; and its way to the bucket that it shares with us, if it does."""
    pods = Selector(match_labels={GANG: gang})
    peers = (Peer(pod_selector=pods),)
    out = [Egress(to=peers)]
    if bucket:
        blocks = tuple(Peer(ip_block=IpBlock(cidr=cidr, excluded=LINK_LOCAL if cidr == "0.0.0.0/0" else None)) for cidr in bucket.cidrs)
        out.append(Egress(to=blocks, ports=(PolicyPort(port=bucket.port),)))
    return NetworkPolicy(
        metadata=Meta(name=gang, namespace=namespace, labels=dict(RATCHET)),
        spec=NetworkPolicySpec(pod_selector=pods, policy_types=("Ingress", "Egress"), ingress=(Ingress(sources=peers),), egress=tuple(out)),
    )
