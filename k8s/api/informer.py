"""Informer: an up-to-date local copy of all objects of a kind.

It lists the objects and then watches from there. It lists again when the resource version has expired or the server was away. It does
not interpret objects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from ratchet.contracts.errors import Retryable
from ratchet.k8s.api.client import Cluster, Expired, Kind, Object

WATCH_SECONDS = 20.0
"""Seconds of one watch. Short, because a server that stopped sending is noticed only at the end of a watch."""
PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between retries; the last value repeats. The growing pauses protect an API server that is coming back."""
FIRST_SECONDS = 30.0
"""Seconds that the first caller waits for the first list."""


def _ignore(_object: Object) -> None:
    """No-op event callback."""


class Informer:
    """Informer of one kind of object, in one namespace or in all. It starts with the first call of `objects`, in its own thread."""

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        seconds: float = WATCH_SECONDS,
        on_object: Callable[[Object], None] = _ignore,
    ) -> None:
        """Create the informer.

        `on_object` is called with every object as it arrives, in the informer's thread. This includes objects that are gone before
        `objects` is called. `seconds` is the length of one watch.
        """
        self.cluster, self.kind, self.namespace, self.labels, self.seconds = cluster, kind, namespace, labels, seconds
        self.on_object = on_object
        self.lists = 0
        """Number of full lists so far."""
        self._problem = ""
        self._objects: dict[str, Object] = {}
        self._version = ""
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def objects(self) -> list[Object]:
        """Return all objects as of the newest event. Raises Retryable while the server is away."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name=f"informer-{self.kind.plural}")
            self._thread.start()
        self._answered.wait(FIRST_SECONDS)
        if self._problem or not self._answered.is_set():
            raise Retryable(self._problem or f"the API server did not list {self.kind.plural} within {FIRST_SECONDS:g} s")
        with self._lock:
            return list(self._objects.values())

    def stop(self) -> None:
        """Stop after the current watch ends or delivers an event."""
        self._stop.set()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                    failures = 0
                self._follow()
            except Expired:
                self._version = ""
            except Exception as error:  # any error: if the thread ended silently, callers would see outdated objects from then on
                self._problem, self._version = str(error), ""
                self._answered.set()
                self._stop.wait(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1

    def _list(self) -> None:
        items, version = self.cluster.list(self.kind, self.namespace, self.labels)
        with self._lock:
            self._objects = {_key(item): item for item in items}
        for item in items:
            self.on_object(item)
        self._version, self._problem, self.lists = version, "", self.lists + 1
        self._answered.set()

    def _follow(self) -> None:
        for event in self.cluster.watch(self.kind, self._version, self.namespace, self.labels, self.seconds):
            if self._stop.is_set():
                return
            item = event["object"]
            with self._lock:
                if event["type"] == "DELETED":
                    self._objects.pop(_key(item), None)
                elif event["type"] != "BOOKMARK":
                    self._objects[_key(item)] = item
            if event["type"] != "BOOKMARK":
                self.on_object(item)
            self._version = item["metadata"]["resourceVersion"]


class Informers:
    """Informers by kind, namespace and labels; each starts at its first use."""

    def __init__(self, cluster: Cluster, on_object: Mapping[Kind, Callable[[Object], None]] | None = None) -> None:
        self.cluster, self.on_object = cluster, on_object or {}
        self._informers: dict[tuple[Kind, str | None, tuple[tuple[str, str], ...]], Informer] = {}
        self._lock = threading.Lock()

    def objects(self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> list[Object]:
        """Return the objects that a list request would return, without a request to the server."""
        key = (kind, namespace, tuple(sorted((labels or {}).items())))
        with self._lock:
            if key not in self._informers:
                self._informers[key] = Informer(self.cluster, kind, namespace, labels, on_object=self.on_object.get(kind, _ignore))
        return self._informers[key].objects()


def _key(item: Object) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
