"""Network policy of one gang: pods of the gang may connect to each other on every port, beyond the namespace's default of no traffic.

Collective libraries and Ray choose their ports freely and, except for Ray's token, use no authentication. Therefore the policy allows
exactly the pods of the gang. No I/O.
"""

from __future__ import annotations

from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.k8s.manifests.cluster_objects import Egress, Ingress, IpBlock, NetworkPolicy, NetworkPolicySpec, Peer, PolicyPort, Selector
from ratchet.k8s.manifests.gang_manifest import GANG, RATCHET
from ratchet.k8s.manifests.pod_objects import Meta

LINK_LOCAL = ("169.254.0.0/16",)
"""Link-local addresses, excluded because cloud metadata services give a machine its own credentials there."""


def gang_network_policy(gang: str, namespace: str, bucket: BucketSettings | None = None) -> NetworkPolicy:
    """Return the network policy of one gang; the policy has the gang's name.

    If the gang shares `bucket` with the service, the policy also allows egress to the bucket's addresses on its port.
    """
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
