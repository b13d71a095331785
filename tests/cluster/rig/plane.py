"""The command lines of the control plane's programs. This module starts no process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.rig.build import need
from tests.cluster.rig.site import Site

STAGES = Path(__file__).with_name("stages.yaml")
GRACE = 12
"""Seconds without a heartbeat after which a node is NotReady."""
CONTROLLERS = (
    "namespace-controller", "garbage-collector-controller", "node-lifecycle-controller", "taint-eviction-controller",
    "pod-garbage-collector-controller", "disruption-controller", "serviceaccount-controller", "deployment-controller",
    "replicaset-controller", "job-controller", "endpointslice-controller", "statefulset-controller",
)  # fmt: skip
TIERS = {
    "actions": "allocate, backfill",
    "tiers": [
        {"plugins": [{"name": name} for name in ("priority", "gang", "conformance")]},
        {"plugins": [{"name": name} for name in ("drf", "predicates", "capacity", "nodeorder", "binpack")]},
    ],
}
"""The configuration of Volcano's scheduler. It leaves out `enqueue`, which creates no pods for a gang until nodes exist for it; an
autoscaler would then never see the pods."""


def etcd(site: Site) -> list[str]:
    """Return the command line of etcd; it does not sync to disk, for speed."""
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
    """Return the command line of the API server."""
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


def controllers(site: Site, names: Sequence[str] = CONTROLLERS) -> list[str]:
    """Return the command line of the controller manager, which runs only the controllers `names`."""
    return [
        str(need("kube-controller-manager")),
        f"--kubeconfig={site.kubeconfig}",
        f"--service-account-private-key-file={site.pki / 'sa.key'}",
        f"--root-ca-file={site.pki / 'ca.crt'}",
        "--leader-elect=false",
        "--secure-port=0",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={GRACE}s",
        "--kube-api-qps=200",  # the default of 20 per second would slow down the creation of pods for plain Jobs
        "--kube-api-burst=400",
        f"--controllers={','.join(names)}",
    ]


def volumes(site: Site) -> list[str]:
    """Return the command line of a second controller manager, which binds claims to volumes. Without it, claims have no phase."""
    return controllers(site, ("persistentvolume-binder-controller",))


def scheduler(site: Site) -> list[str]:
    """Return the command line of kube-scheduler."""
    return [str(need("kube-scheduler")), f"--kubeconfig={site.kubeconfig}", "--leader-elect=false", "--secure-port=0"]


def vc_scheduler(site: Site) -> list[str]:
    """Write the configuration of Volcano's scheduler and return its command line."""
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
    """Return the command line of Volcano's controller manager."""
    return [str(need("vc-controller-manager")), f"--kubeconfig={site.kubeconfig}", "--leader-elect=false", "--enable-healthz=false"]


def kwok(site: Site) -> list[str]:
    """Return the command line of kwok, which manages the simulated nodes."""
    return [
        str(need("kwok")),
        f"--kubeconfig={site.kubeconfig}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=12",
        f"--config={STAGES}",
    ]


def karpenter(site: Site) -> list[str]:
    """Write the list of machine types and return the command line of Karpenter with its kwok provider."""
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
    """Return the command line of Traefik as a Gateway API data plane."""
    return [
        str(need("traefik")),
        "--providers.kubernetesgateway",
        f"--entrypoints.web.address=127.0.0.1:{site.ports['web']}",
        "--global.checknewversion=false",
        "--global.sendanonymoususage=false",
        "--log.level=INFO",
    ]


def coredns(site: Site) -> list[str]:
    """Write the configuration of the cluster's DNS server and return its command line."""
    corefile = site.root / "Corefile"
    corefile.write_text(
        f".:53 {{\n  bind {site.gateway}\n  kubernetes cluster.local {{\n    kubeconfig {site.kubeconfig}\n  }}\n  errors\n}}\n"
    )
    return [str(need("coredns")), "-conf", str(corefile)]


def relay(site: Site) -> list[str]:
    """Return the command line of the relay through which pods of real nodes reach the API server."""
    return [sys.executable, "-I", str(Path(__file__).with_name("relay.py")), site.gateway, str(site.ports["api"])]


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
    "relay": relay,
    "volumes": volumes,
}


def environment(site: Site) -> dict[str, str]:
    """Return the environment variables of the control plane's programs."""
    return {"KUBECONFIG": str(site.kubeconfig), "SYSTEM_NAMESPACE": "kube-system"}


def _instance(name: str, cpu: int, memory: str, gpus: int, prices: dict[str, float]) -> dict:
    """Return a machine type that Karpenter can launch in two zones; `prices` are by capacity type, in dollars per hour."""
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
