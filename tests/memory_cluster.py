"""API server in memory for tests of the executor: objects, watches, and the parts of Volcano and of kubelets that a gang needs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.k8s.api.client import JOB, NODE, POD, AlreadyExists, Kind, Listing, Object
from ratchet.k8s.manifests.gang_manifest import GANG, VERSION

Key = tuple[str, str, str]


class MemoryCluster:
    """`Cluster` in a dictionary. Informers watch it as they watch a real server.

    `faults` is called with the name of each write, before and after it; it may raise an error.
    """

    def __init__(self, faults: Callable[[str], None] = lambda _where: None) -> None:
        self.faults = faults
        self.away = False
        """Whether every request fails, as while the server is away."""
        self.writes: list[str] = []
        self.objects: dict[Key, Object] = {}
        self.events: list[tuple[Kind, Object]] = []
        self._changed = threading.Condition()

    def apply(self, kind: Kind, body: Object, dry_run: bool = False, manager: str = "", force: bool = True) -> Object:
        """Store the object, and replace an existing one. There are no field managers here; real API servers test them."""
        return self._write(f"apply {kind.plural}", kind, body, dry_run)

    def create(self, kind: Kind, body: Object, dry_run: bool = False) -> Object:
        """Store a new object; raise AlreadyExists if the name exists."""
        if not dry_run and _key(kind, body) in self.objects:
            raise AlreadyExists(f"{body['metadata']['name']} exists")
        return self._write(f"create {kind.plural}", kind, body, dry_run)

    def version(self) -> str:
        """Return the release whose rules this server follows."""
        self._answer()
        return "v1.35.0"

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return a copy of the object, or None."""
        self._answer()
        return copy.deepcopy(self.objects.get((kind.plural, namespace or "", name)))

    def list(self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> Listing:
        """Return copies of all matching objects."""
        self._answer()
        with self._changed:
            found = [body for key, body in self.objects.items() if key[0] == kind.plural and _matches(body, namespace, labels)]
            return Listing(copy.deepcopy(found), str(len(self.events)))

    def watch(
        self, kind: Kind, since: str, namespace: str | None = None, labels: Mapping[str, str] | None = None, seconds: float = 240.0
    ) -> Iterator[Object]:
        """Yield all matching events after `since`, and wait up to `seconds` for each."""
        at = int(since)
        while True:
            with self._changed:
                if len(self.events) == at and not self.away and not self._changed.wait(seconds):
                    return
                self._answer()
                new, at = self.events[at:], len(self.events)
            for other, event in new:
                if other == kind and _matches(event["object"], namespace, labels):
                    yield copy.deepcopy(event)

    def log(self, pod: str, namespace: str, lines: int, size: int = 4096) -> str:
        """Raise Permanent, because pods in memory have no log."""
        raise Permanent(f"{pod} has no log")

    def delete(self, kind: Kind, name: str, namespace: str | None = None, grace: int | None = None, uid: str | None = None) -> None:
        """Delete the object at once. The pods of a deleted Job run on until `end_pods`."""
        key = (kind.plural, namespace or "", name)
        if key not in self.objects:
            return
        self.faults(f"before delete {kind.plural}")
        self.writes.append(f"delete {kind.plural} {name}")
        self._remove(kind, key)
        self.faults(f"after delete {kind.plural}")

    def _write(self, what: str, kind: Kind, body: Object, dry_run: bool) -> Object:
        self._answer()
        if dry_run:
            return body
        self.faults(f"before {what}")
        self.writes.append(f"{what} {body['metadata']['name']}")
        self.put(kind, body)
        self.faults(f"after {what}")
        return body

    def _answer(self) -> None:
        if self.away:
            raise Retryable("the API server does not answer")

    def put(self, kind: Kind, body: Object) -> None:
        """Store an object as a controller does; it does not count as a write of the executor."""
        with self._changed:
            stored, key = copy.deepcopy(body), _key(kind, body)
            stored["metadata"] |= {"resourceVersion": str(len(self.events) + 1)}
            stored["metadata"].setdefault("creationTimestamp", now())
            self.events.append((kind, {"type": "MODIFIED" if key in self.objects else "ADDED", "object": stored}))
            self.objects[key] = stored
            self._changed.notify_all()

    def _remove(self, kind: Kind, key: Key) -> None:
        with self._changed:
            gone = self.objects.pop(key)
            gone = gone | {"metadata": gone["metadata"] | {"resourceVersion": str(len(self.events) + 1)}}
            self.events.append((kind, {"type": "DELETED", "object": gone}))
            self._changed.notify_all()

    def leave(self) -> None:
        """Stop answering; running watches end."""
        with self._changed:
            self.away = True
            self._changed.notify_all()

    def start(self, gang: str) -> None:
        """Run all pods of the gang on nodes of their own."""
        job = self._job(gang)
        template = job["spec"]["tasks"][0]["template"]
        for number in range(int(job["spec"]["minAvailable"])):
            ready = [{"type": "Ready", "status": "True"}]
            self.put(NODE, {"metadata": {"name": f"node-{number}"}, "status": {"conditions": ready}})
            pod = {"metadata": {"name": f"{gang}-{number}", "namespace": job["metadata"]["namespace"], "uid": f"{gang}-{number}"}}
            pod["metadata"] |= {"labels": template["metadata"]["labels"], "annotations": {VERSION: "0"}}
            conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}]
            running = {"phase": "Running", "conditions": conditions, "containerStatuses": [{"state": {"running": {"startedAt": now()}}}]}
            self.put(POD, pod | {"spec": {"nodeName": f"node-{number}", "containers": []}, "status": running})
        self.set_phase(gang, "Running")

    def finish(self, gang: str, code: int = 0) -> None:
        """End all pods of the gang with an exit code, and then its Job."""
        for pod in self.pods(gang):
            ended = {"terminated": {"exitCode": code, "finishedAt": now()}}
            status = pod["status"] | {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": ended}]}
            self.put(POD, pod | {"status": status})
        self.set_phase(gang, "Failed" if code else "Completed")

    def end_pods(self) -> None:
        """Remove the pods of deleted Jobs, as after their grace period."""
        jobs = {job["metadata"]["name"] for job in self.list(JOB).items}
        for pod in self.list(POD).items:
            if pod["metadata"]["labels"][GANG] not in jobs:
                self._remove(POD, _key(POD, pod))

    def set_phase(self, gang: str, phase: str) -> None:
        """Set the phase of a Job."""
        self.put(JOB, self._job(gang) | {"status": {"state": {"phase": phase, "lastTransitionTime": now()}}})

    def pods(self, gang: str) -> list[Object]:  # type: ignore[valid-type]
        """Return the pods of a gang."""
        return [pod for pod in self.list(POD).items if pod["metadata"]["labels"].get(GANG) == gang]

    def names(self, kind: Kind) -> list[str]:  # type: ignore[valid-type]
        """Return the sorted names of all objects of a kind."""
        return sorted(name for plural, _, name in self.objects if plural == kind.plural)

    def _job(self, gang: str) -> Object:
        (job,) = [job for job in self.list(JOB).items if job["metadata"]["name"] == gang]
        return dict(job)


def now() -> str:
    """Return the current time in the API's format."""
    return datetime.now(UTC).isoformat()


def _key(kind: Kind, body: Mapping[str, Any]) -> Key:
    return kind.plural, body["metadata"].get("namespace", "") if kind.namespaced else "", body["metadata"]["name"]


def _matches(body: Object, namespace: str | None, labels: Mapping[str, str] | None) -> bool:
    meta = body["metadata"]
    return (namespace is None or meta.get("namespace") == namespace) and (labels or {}).items() <= meta.get("labels", {}).items()
