"""How each program of the control plane is called. It starts nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cluster.rig.build import need
from tests.cluster.rig.site import Site

STAGES = Path(__file__).with_name("stages.yaml")
GRACE = 12
"""Seconds without a sign of life after which a node is NotReady."""
CONTROLLERS = (
    "namespace-controller", "garbage-collector-controller", "node-lifecycle-controller", "taint-eviction-controller",
    "pod-garbage-collector-controller", "disruption-controller", "serviceaccount-controller", "deployment-controller",
    "replicaset-controller", "job-controller", "endpointslice-controller",
)  # fmt: skip
TIERS = {
    "actions": "allocate, backfill",
    "tiers": [
        {"plugins": [{"name": name} for name in ("priority", "gang", "conformance")]},
        {"plugins": [{"name": name} for name in ("drf", "predicates", "capacity", "nodeorder", "binpack")]},
    ],
}
"""Volcano's scheduler. Without `enqueue`, which would hold back the pods of a gang for which no node exists yet, so that an autoscaler
never saw them."""


def etcd(site: Site) -> list[str]:
    client, peer = (f"http://127.0.0.1:{site.ports[name]}" for name in ("etcd", "etcd-peer"))
    return [
        str(need("etcd")),
        f"--data-dir={site.root / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
    ]


def apiserver(site: Site) -> list[str]:
    pki = site.pki
    return [
        str(need("kube-apiserver")),
        f"--etcd-servers=http://127.0.0.1:{site.ports['etcd']}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={site.ports['api']}",
        "--endpoint-reconciler-type=none",
        f"--tls-cert-file={pki / 'server.crt'}",
        f"--tls-private-key-file={pki / 'server.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--service-account-issuer={site.server}/",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--allow-privileged",
        "--disable-admission-plugins=ServiceAccount",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={pki / 'admin.crt'}",
        f"--kubelet-client-key={pki / 'admin.key'}",
    ]


def controllers(site: Site) -> list[str]:
    return [
        str(need("kube-controller-manager")),
        f"--kubeconfig={site.kubeconfig}",
        f"--service-account-private-key-file={site.pki / 'sa.key'}",
        f"--root-ca-file={site.pki / 'ca.crt'}",
        "--leader-elect=false",
        "--secure-port=0",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={GRACE}s",
        "--kube-api-qps=200",  # the pods of twenty plain Jobs would otherwise come at twenty a second
        "--kube-api-burst=400",
        f"--controllers={','.join(CONTROLLERS)}",
    ]


def scheduler(site: Site) -> list[str]:
    return [str(need("kube-scheduler")), f"--kubeconfig={site.kubeconfig}", "--leader-elect=false", "--secure-port=0"]


def vc_scheduler(site: Site) -> list[str]:
    conf = site.root / "vc-scheduler.conf"
    conf.write_text(json.dumps(TIERS))
    return [
        str(need("vc-scheduler")),
        f"--kubeconfig={site.kubeconfig}",
        "--leader-elect=false",
        f"--scheduler-conf={conf}",
        "--schedule-period=200ms",
        "--enable-healthz=false",
        "--enable-metrics=false",
    ]


def vc_controllers(site: Site) -> list[str]:
    return [str(need("vc-controller-manager")), f"--kubeconfig={site.kubeconfig}", "--leader-elect=false", "--enable-healthz=false"]


def kwok(site: Site) -> list[str]:
    return [
        str(need("kwok")),
        f"--kubeconfig={site.kubeconfig}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=12",
        f"--config={STAGES}",
    ]


def karpenter(site: Site) -> list[str]:
    offers = site.root / "instances.json"
    offers.write_text(json.dumps(INSTANCES))
    return [
        str(need("karpenter-kwok")),
        "--disable-leader-election=true",
        "--feature-gates=StaticCapacity=true",
        f"--instance-types-file-path={offers}",
        f"--metrics-port={site.ports['karpenter-metrics']}",
        f"--health-probe-port={site.ports['karpenter-health']}",
    ]


def traefik(site: Site) -> list[str]:
    return [
        str(need("traefik")),
        "--providers.kubernetesgateway",
        f"--entrypoints.web.address=127.0.0.1:{site.ports['web']}",
        "--global.checknewversion=false",
        "--global.sendanonymoususage=false",
        "--log.level=INFO",
    ]


def coredns(site: Site) -> list[str]:
    corefile = site.root / "Corefile"
    corefile.write_text(
        f".:53 {{\n  bind {site.gateway}\n  kubernetes cluster.local {{\n    kubeconfig {site.kubeconfig}\n  }}\n  errors\n}}\n"
    )
    return [str(need("coredns")), "-conf", str(corefile)]


COMMANDS: dict[str, Callable[[Site], list[str]]] = {
    "etcd": etcd,
    "apiserver": apiserver,
    "controllers": controllers,
    "scheduler": scheduler,
    "vc-scheduler": vc_scheduler,
    "vc-controllers": vc_controllers,
    "kwok": kwok,
    "karpenter": karpenter,
    "traefik": traefik,
    "coredns": coredns,
}


def environment(site: Site) -> dict[str, str]:
    return {"KUBECONFIG": str(site.kubeconfig), "SYSTEM_NAMESPACE": "kube-system"}


def _instance(name: str, cpu: int, memory: str, gpus: int, prices: dict[str, float]) -> dict:
    """A machine type that Karpenter may buy, in two zones; `prices` by capacity type, in dollars an hour."""
    offers = [
        {
            "Price": price,
            "Available": True,
            "Requirements": [_is("karpenter.sh/capacity-type", kind), _is("topology.kubernetes.io/zone", zone)],
        }
        for kind, price in prices.items()
        for zone in ("us-east-1a", "us-east-1b")
    ]
    resources = {"cpu": str(cpu), "memory": memory, "pods": "110", "ephemeral-storage": "1000Gi"}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
    return {"name": name, "architecture": "amd64", "operatingSystems": ["linux"], "offerings": offers, "resources": resources}


def _is(key: str, value: str) -> dict:
    return {"key": key, "operator": "In", "values": [value]}


INSTANCES = [
    _instance("p5en.48xlarge", 192, "1900Gi", 8, {"spot": 25.0, "on-demand": 63.0}),
    _instance("m7i.2xlarge", 8, "32Gi", 0, {"spot": 0.15, "on-demand": 0.40}),
]
