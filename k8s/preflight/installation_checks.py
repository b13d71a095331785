"""The list of a cluster's first day: the requirements of an installation by the chart before it can start, item by item. No I/O.

`installation_facts.py` collects the facts, and `release_checks.py` judges an existing installation. `ratchet k8s lint` asks in more detail
whether the gangs of one line can run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ratchet.k8s.api.client import Object
from ratchet.k8s.manifests.policies import VOLCANO_NAMESPACE
from ratchet.k8s.preflight.chart_values import has_standby, image_of, secret_keys, with_volume
from ratchet.k8s.preflight.cluster_facts import Unread
from ratchet.k8s.preflight.installation_facts import InstallationFacts, LineFile, Wanted
from ratchet.k8s.preflight.items import INSTALL_PAGE, Item, missing, ok, unknown
from ratchet.k8s.preflight.machine_checks import about_machines, offered
from ratchet.k8s.preflight.schedulability import EFFECTS

OLDEST = (1, 30)
"""Oldest release of Kubernetes whose admission policies the chart can use."""
VOLCANO_INSTALL = "helm install volcano volcano-sh/volcano --version 1.14.1 --namespace volcano-system --create-namespace"
GATEWAY_INSTALL = (
    "kubectl apply --server-side -f https://github.com/kubernetes-sigs/gateway-api/releases/download/v1.4.0/standard-install.yaml"
)


def before_installation(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    """Yield the items that an administrator prepares before `helm install`."""
    yield from _lines(wanted)
    yield from _images(wanted)
    if facts.unreachable:
        yield missing("API server", facts.unreachable, "kubectl version; then set KUBECONFIG or --context")
        return
    yield from _server(facts, wanted)
    yield from _volcano(facts, wanted)
    yield from _gateway(facts, wanted)
    yield from _standby(facts, wanted)
    yield from _storage(facts, wanted)
    yield from _secrets(facts, wanted)
    yield from about_machines(facts, wanted)


def _lines(wanted: Wanted) -> Iterator[Item]:
    for line in wanted.lines:
        if line.problem:
            yield missing(f"loop file {line.name}", line.problem, f"ratchet check {line.name}")
        else:
            yield ok(f"loop file {line.name}", "valid")
    listed = {str(one["name"]) for one in wanted.values["lines"]}
    for absent in sorted(listed - {line.name for line in wanted.lines}) if wanted.given else ():
        yield unknown(
            f"loop file {absent}", "the values have a line whose loop file was not given", f"give its loop file, or see {INSTALL_PAGE}"
        )
    for line in wanted.lines if wanted.given else ():
        if line.loop is not None and line.name not in listed:
            yield missing(f"loop file {line.name}", "the values have no line of this name", f"add it to `lines` ({INSTALL_PAGE}, step 5)")


def _images(wanted: Wanted) -> Iterator[Item]:
    named = image_of(wanted.values, wanted.app_version)
    if named:
        yield _image("image of the control plane", named)
    elif wanted.given:
        yield missing("image of the control plane", "the values name no image.repository", "ratchet k8s images --registry HOST/PATH")
    for line in wanted.lines:
        for what, image in _line_images(line):
            yield _image(f"{what} of {line.name}", image)


def _line_images(line: LineFile) -> Iterator[tuple[str, str]]:
    if line.loop is None:
        return
    if cluster := line.loop.cluster:
        yield from (
            (what, image) for what, image in (("cluster.image", cluster.image), ("cluster.nemo_image", cluster.nemo_image)) if image
        )
    if line.loop.serving.kind == "kubernetes":
        options = line.loop.serving.options
        yield from ((f"serving.options.{key}", str(options[key])) for key in ("image", "fetch_image") if key in options)


def _image(about: str, image: str) -> Item:
    name, _, digest = image.partition("@")
    if digest:
        return ok(about, image)
    tag = name.rpartition("/")[2].partition(":")[2]
    if not tag or tag == "latest":
        return missing(
            about,
            f"{image} has no fixed tag, and each pull may bring another image",
            f"docker buildx imagetools inspect {image}",
            stops=False,
        )
    return ok(about, f"{image}, by its tag; a digest also holds if the tag is moved")


def _server(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    found = re.match(r"v?(\d+)\.(\d+)", facts.version)
    if found is None:
        yield unknown("API server", f"its version {facts.version!r} is not readable")
    elif (int(found[1]), int(found[2])) < OLDEST:
        yield missing("API server", f"{facts.version} is older than {OLDEST[0]}.{OLDEST[1]}", "upgrade the cluster")
    else:
        yield ok("API server", facts.version)
    if isinstance(facts.namespace, Unread):
        yield unknown("namespace", f"this account may not look: {facts.namespace}")
    elif facts.namespace:
        yield ok("namespace", wanted.namespace)
    else:
        yield missing("namespace", f"there is no namespace {wanted.namespace}", f"kubectl create namespace {wanted.namespace}")


def _volcano(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    trains = [line.name for line in wanted.lines if line.loop is not None and line.loop.cluster is not None]
    if not trains:
        yield ok("Volcano", "not needed: no line trains on the cluster")
        return
    there = offered(facts, "volcano", "volcano queues")
    if there != "yes":
        told = "its resource definitions are missing" if there == "no" else "this account may not look"
        yield missing("Volcano", told, VOLCANO_INSTALL) if there == "no" else unknown("Volcano", told)
        return
    if isinstance(facts.volcano, Unread):
        yield unknown("Volcano", f"its resource definitions are there; this account may not look at its pods: {facts.volcano}")
        return
    waiting = [one["metadata"]["name"] for one in facts.volcano if not one.get("status", {}).get("readyReplicas")]
    if not facts.volcano:
        yield unknown(
            "Volcano",
            f"its resource definitions are there, and no Deployment in {VOLCANO_NAMESPACE}",
            f"kubectl get pods -n {VOLCANO_NAMESPACE}",
        )
    elif waiting:
        yield missing("Volcano", f"no pod is ready of {', '.join(waiting)}", f"kubectl describe pods -n {VOLCANO_NAMESPACE}")
    else:
        yield ok("Volcano", f"{len(facts.volcano)} Deployments are ready")
    yield unknown("Volcano's queue", "this command does not look at it", f"ratchet k8s lint {trains[0]}")


def _gateway(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    given = wanted.values["gateway"]
    for line in wanted.lines:
        if line.loop is not None and line.loop.serving.router == "gateway":
            route = line.loop.serving.router_options.get("name") or f"ratchet-{line.name}"
            look = f"kubectl describe httproute {route} -n {line.loop.serving.options.get('namespace')}"
            yield unknown("Gateway", f"this command does not look at the Gateway that {line.name} names", look)
    if not given["name"]:
        yield ok("Gateway", "not needed by the chart: the values name none")
        return
    name, space = given["name"], given["namespace"] or wanted.namespace
    if offered(facts, "gateway") == "no":
        yield missing("Gateway API", "its resource definitions are missing", GATEWAY_INSTALL)
        return
    about, look = "Gateway", f"kubectl describe gateway {name} -n {space}"
    if isinstance(facts.gateway, Unread):
        yield unknown(about, f"this account may not look: {facts.gateway}")
    elif facts.gateway is None:
        yield missing(about, f"there is no Gateway {name} in {space}", f"create it ({INSTALL_PAGE}), or change `gateway` in the values")
    else:
        states = {one["type"]: one for one in facts.gateway.get("status", {}).get("conditions") or ()}
        up = states.get("Programmed", {})
        if up.get("status") != "True":
            yield missing(about, f"{name} is not programmed: {up.get('message') or 'no controller has taken it'}", look)
        elif space != wanted.namespace and not any(map(_admits_others, facts.gateway["spec"].get("listeners") or ())):
            patch = "spec.listeners[].allowedRoutes.namespaces.from: All or Selector"
            yield missing(
                about,
                f"no listener of {name} takes routes of the namespace {wanted.namespace}",
                f"kubectl edit gateway {name} -n {space} ({patch})",
            )
        else:
            yield ok(about, f"{name} in {space} is programmed")


def _admits_others(listener: dict[str, Any]) -> bool:
    """Return whether a listener takes routes of other namespaces. Without a statement, it takes those of its own only."""
    return str(listener.get("allowedRoutes", {}).get("namespaces", {}).get("from", "Same")) in ("All", "Selector")


def _standby(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    """Yield what a second pod of the service needs: no state on a volume, and a node of its own."""
    if not has_standby(wanted.values):
        return
    about, page = "second service pod", f'{INSTALL_PAGE}, "A second service pod"'
    places = {"mlflow.url": wanted.values["mlflow"]["url"], "bucket.anchors": wanted.values["bucket"]["anchors"]}
    lacking = [name for name, place in places.items() if not place]
    loops = [one.loop for one in wanted.lines if one.loop is not None]
    on_disk = [one.line.name for one in loops if one.cluster is None or one.cluster.volume.bucket is None]
    if lacking:
        yield missing(about, f"the values name no {' and no '.join(lacking)}, and no pod has a volume", page)
    if on_disk:
        yield missing(about, f"{', '.join(on_disk)}: no [cluster.volume.bucket], so run folders would be lost with a pod", page)
    if isinstance(facts.nodes, Unread):
        yield unknown(about, f"this account may not look at nodes: {facts.nodes}")
        return
    fitting = [one for one in facts.nodes if _takes_pods(one, wanted)]
    if len(fitting) < 2:
        text = f"{len(fitting)} nodes take pods of the chart, and each pod of the service needs one of its own"
        yield missing(about, text, "kubectl get nodes --show-labels; then add a node, or change nodeSelector", stops=False)
    elif not lacking and not on_disk:
        yield ok(about, f"{len(fitting)} nodes; MLflow, anchors and run folders are on no volume")


def _takes_pods(node: Object, wanted: Wanted) -> bool:
    """Return whether a node takes pods of the chart. One with a taint counts if the values have any toleration."""
    labels, spec = node["metadata"].get("labels", {}), node["spec"]
    tainted = any(one["effect"] in EFFECTS for one in spec.get("taints") or ()) and not wanted.values["tolerations"]
    selected = all(labels.get(name) == value for name, value in (wanted.values["nodeSelector"] or {}).items())
    return selected and not tainted and not spec.get("unschedulable")


def _storage(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    if isinstance(facts.classes, Unread):
        yield unknown("storage class", f"this account may not look: {facts.classes}")
        return
    known = {one["metadata"]["name"]: one for one in facts.classes}
    usual = [
        name
        for name, one in known.items()
        if (one["metadata"].get("annotations") or {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    ]
    for part in with_volume(wanted.values):
        about, volume = f"storage class of the {part}", wanted.values[part]["volume"]
        name = volume["storageClass"] or next(iter(usual), "")
        if not name:
            yield missing(
                about,
                "the values name none, and the cluster has no default",
                f"set {part}.volume.storageClass to one of: {', '.join(known) or 'none exists'}",
            )
        elif name not in known:
            yield missing(
                about, f"there is no storage class {name}", f"set {part}.volume.storageClass to one of: {', '.join(known) or 'none exists'}"
            )
        else:
            yield _access_mode(about, name, str(known[name].get("provisioner", "")), str(volume["accessMode"]), facts)
    for line in wanted.lines:
        if line.loop and line.loop.cluster and (claim := line.loop.cluster.volume.claim):
            yield from _shared(facts, wanted, line.name, line.loop.cluster.namespace, claim)


def _access_mode(about: str, name: str, provisioner: str, mode: str, facts: InstallationFacts) -> Item:
    if provisioner == "kubernetes.io/no-provisioner":
        return ok(about, f"{name}, whose volumes an administrator makes, {mode}")
    if isinstance(facts.drivers, Unread):
        return unknown(about, f"{name}; this account may not look at the CSI drivers: {facts.drivers}")
    if mode == "ReadWriteOncePod" and provisioner not in {one["metadata"]["name"] for one in facts.drivers}:
        return missing(
            about, f"{name} uses {provisioner}, which is no CSI driver of this cluster; {mode} needs one",
            "install its CSI driver, or set accessMode to ReadWriteOnce", stops=False,
        )  # fmt: skip
    return ok(about, f"{name} ({provisioner}), {mode}")


def _shared(facts: InstallationFacts, wanted: Wanted, line: str, space: str, name: str) -> Iterator[Item]:
    about = f"shared volume of {line}"
    if space != wanted.namespace:
        yield unknown(about, f"the claim {name} is in the namespace {space}", f"ratchet k8s lint {line}")
    elif isinstance(facts.claims, Unread):
        yield unknown(about, f"this account may not look: {facts.claims}")
    elif (claim := next((one for one in facts.claims if one["metadata"]["name"] == name), None)) is None:
        yield missing(
            about, f"there is no claim {name}", f"ratchet k8s render {line} --admin --storage-class NAME | kubectl apply --server-side -f -"
        )
    elif "ReadWriteMany" not in claim["spec"].get("accessModes", ()):
        yield missing(
            about,
            f"the claim {name} is {', '.join(claim['spec'].get('accessModes', ()))}",
            "docs/kubernetes/storage.md: it must be ReadWriteMany",
        )
    else:
        yield ok(about, f"the claim {name} is ReadWriteMany, {claim.get('status', {}).get('phase', 'Pending')}")


def _secrets(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    keys = secret_keys(wanted.values, wanted.line_names)
    if not wanted.values["ledger"]["secret"]:
        yield (
            missing("Secret of the ledger", "the values name no ledger.secret", f"{INSTALL_PAGE}, step 3")
            if wanted.given
            else unknown("Secret of the ledger", "no values were given", "give them with --values")
        )
    for name, needed in sorted(keys.items()):
        about, there = f"Secret {name}", facts.secrets.get(name)
        create = f"kubectl create secret generic {name} -n {wanted.namespace} " + " ".join(
            f"--from-file={key}=FILE" for key in sorted(needed)
        )
        if name == wanted.values["keys"]["secret"]:
            create = f"ratchet k8s keys LOOP… | kubectl create -n {wanted.namespace} -f -"
        if isinstance(there, Unread):
            yield unknown(about, f"this account may not look: {there}")
        elif there is None:
            yield missing(about, f"{wanted.namespace} has no Secret {name}", create)
        elif lacking := sorted(needed - there):
            extend = f"kubectl get secret {name} -n {wanted.namespace} -o yaml | ratchet k8s keys LOOP… --extend - | kubectl replace -f -"
            yield missing(
                about,
                f"it lacks {', '.join(lacking)}",
                extend if name == wanted.values["keys"]["secret"] else f"kubectl edit secret {name} -n {wanted.namespace}",
            )
        else:
            yield ok(about, f"has {', '.join(sorted(needed))}")
