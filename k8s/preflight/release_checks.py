"""The second half of `ratchet k8s doctor`: buckets, ledger, and an installation that exists. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from ratchet.k8s.api.client import Object
from ratchet.k8s.preflight.chart_values import service_target
from ratchet.k8s.preflight.cluster_facts import Unread
from ratchet.k8s.preflight.installation_checks import before_installation
from ratchet.k8s.preflight.installation_facts import BucketFacts, InstallationFacts, Wanted
from ratchet.k8s.preflight.items import INSTALL_PAGE, Item, missing, ok, unknown
from ratchet.k8s.serving.placement import obstacle
from ratchet.k8s.serving.router import SILENT_SECONDS

WAITS_LONG = timedelta(minutes=5)
"""Age of a request in the exchange at which the service is behind. It takes requests every few seconds."""


def checklist(facts: InstallationFacts, wanted: Wanted) -> list[Item]:
    """Return all items in the order of an installation."""
    found = [*before_installation(facts, wanted), *_buckets(facts, wanted), *_ledger(facts, wanted)]
    if not facts.unreachable:
        found += [*_pods(facts, wanted), *_volumes(facts, wanted)]
    return [*found, *_exchange(facts, wanted)]


def _buckets(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    for name in ("exchange", "artifacts"):
        about, found = f"bucket of the {name}", facts.buckets.get(name)
        if found is None:
            told = f"the values name no bucket.{name}"
            yield (
                missing(about, told, f"{INSTALL_PAGE}, step 2")
                if wanted.given
                else unknown(about, "no values were given", "give them with --values")
            )
        elif isinstance(found, Unread):
            yield missing(about, str(found), f"aws s3 ls {wanted.values['bucket'][name]}/ ; then see {INSTALL_PAGE}, step 2")
        else:
            yield from _bucket(about, name, found)


def _bucket(about: str, name: str, found: BucketFacts) -> Iterator[Item]:
    bucket = found.url.removeprefix("s3://").partition("/")[0]
    yield ok(about, f"{found.url} answers")
    if isinstance(found.conditional, Unread):
        yield missing(
            f"writes to the {name}", str(found.conditional), "grant s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
        )
    elif not found.conditional:
        yield missing(
            f"writes to the {name}",
            "the store ignores If-None-Match or If-Match, so two writers could replace each other",
            "docs/kubernetes/storage.md: use a store with conditional writes",
        )
    else:
        yield ok(f"writes to the {name}", "conditional writes work")
    if name == "artifacts" and found.former and found.versioning != "Off":
        yield missing(
            f"former versions in the {name}",
            f"an erasure cannot delete them: {found.former}",
            "grant s3:ListBucketVersions and s3:DeleteObjectVersion to the service",
            stops=False,
        )
    if name != "exchange":
        return
    off = f"use another bucket, because versioning can only be suspended: aws s3api create-bucket --bucket NAME; now: {bucket}"
    if isinstance(found.versioning, Unread):
        yield unknown("versioning of the exchange", f"this account may not look: {found.versioning}")
    elif found.versioning == "Enabled":
        yield missing(
            "versioning of the exchange", "it is on, so the bucket keeps every request that the service has taken", off, stops=False
        )
    else:
        yield ok("versioning of the exchange", found.versioning.lower())


def _ledger(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    ledger = facts.ledger
    pod = service_target(wanted.values, wanted.release)
    look = f"kubectl exec -n {wanted.namespace} {pod} -- {wanted.values['python']} -m ratchet.flows.cli.main doctor"
    if ledger.state == "unknown":
        yield unknown("ledger", "its URL is in a Secret, and RATCHET_LEDGER_URL is not set here", look)
    elif ledger.state == "other":
        yield missing("ledger", ledger.detail, f"{INSTALL_PAGE}, step 3: a database in Postgres")
    elif ledger.state == "away":
        yield missing("ledger", ledger.detail, "check the address, the password and network policies")
    else:
        yield ok("ledger", ledger.detail)


def _pods(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    if isinstance(facts.pods, Unread):
        yield unknown("pods", f"this account may not look: {facts.pods}")
        return
    if not facts.pods:
        install = f"helm install {wanted.release} k8s/chart --namespace {wanted.namespace} --values values.yaml"
        yield missing("pods", f"the release {wanted.release} has none in {wanted.namespace}", install, stops=False)
        return
    for part in sorted({_part(pod) for pod in facts.pods}):
        pods = [pod for pod in facts.pods if _part(pod) == part and "deletionTimestamp" not in pod["metadata"]]
        waiting = [pod for pod in pods if not _is_ready(pod)]
        if not waiting:
            yield ok(f"pods of the {part}", f"{len(pods)} ready")
            continue
        name = waiting[0]["metadata"]["name"]
        why = obstacle({}, waiting) or f"{name} is {waiting[0].get('status', {}).get('phase', 'Pending')}"
        yield missing(
            f"pods of the {part}",
            f"{len(waiting)} of {len(pods)} are not ready: {why}",
            f"kubectl describe pod {name} -n {wanted.namespace}",
        )


def _part(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("app.kubernetes.io/component", "unknown part"))


def _is_ready(pod: Object) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod.get("status", {}).get("conditions") or ())


def _volumes(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    """Yield volumes of router replicas without a pod. Traces may be on them that no receiver has."""
    if isinstance(facts.claims, Unread) or isinstance(facts.pods, Unread) or not facts.pods:
        return
    pods = {pod["metadata"]["name"] for pod in facts.pods}
    form = re.compile(rf"state-({re.escape(wanted.release)}-router-\d+)")
    owned = [(str(one["metadata"]["name"]), found[1]) for one in facts.claims if (found := form.fullmatch(one["metadata"]["name"]))]
    lonely = [claim for claim, pod in owned if pod not in pods]
    if lonely:
        most = max(int(claim.rpartition("-")[2]) for claim in lonely) + 1
        yield missing(
            "volumes of routers", f"no pod uses {', '.join(lonely)}, which may have traces that were not sent",
            f"kubectl scale statefulset {wanted.release}-router -n {wanted.namespace} --replicas={most}",
            stops=False,
        )  # fmt: skip
    elif owned:
        yield ok("volumes of routers", f"{len(owned)}, each with its pod")


def _exchange(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    for line, found in facts.exchange.items():
        about = f"exchange of {line}"
        if isinstance(found, Unread):
            yield unknown(about, str(found))
            continue
        age = facts.now - found.oldest if found.oldest is not None else timedelta(0)
        pods = f"app.kubernetes.io/name={wanted.release},app.kubernetes.io/component=service"
        look = f"kubectl logs -n {wanted.namespace} -l {pods} --prefix --tail=100"
        if age > WAITS_LONG:
            yield missing(
                about, f"{found.waiting} requests wait, the oldest for {_for(age)}: the service does not take them", look, stops=False
            )
        else:
            yield ok(about, f"{found.waiting} requests wait" + (f", the oldest for {_for(age)}" if found.waiting else ""))
        silent = _silent(found.replicas, facts.now)
        if silent:
            yield missing(
                f"routers of {line}",
                f"silent: {', '.join(silent)}",
                f"kubectl get pods -n {wanted.namespace} -l app.kubernetes.io/component=router",
                stops=False,
            )
        elif found.replicas:
            yield ok(f"routers of {line}", f"{len(found.replicas)} replicas report")
        if found.routed:
            yield ok(f"model of {line}", "the service has published a route")
        else:
            yield missing(
                f"model of {line}",
                "the service has published no route, so the line has no model yet",
                f"{INSTALL_PAGE}, step 6",
                stops=False,
            )


def _silent(told: Mapping[str, datetime], now: datetime) -> list[str]:
    return [f"{name} for {_for(now - at)}" for name, at in sorted(told.items()) if (now - at).total_seconds() > SILENT_SECONDS]


def _for(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
