"""A mirror of all objects of a kind: list, then watch from there; when the place has expired or the server was away, list again. It knows
freshness; it refuses to know what objects mean.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from contracts.errors import Retryable
from k8s.client import Cluster, Expired, Kind, Object

WATCH_SECONDS = 20.0
"""Of one watch. Short, because a server that fell silent is noticed only at its end."""
PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before another try, the last one for ever: an API server that comes back is not trampled."""
FIRST_SECONDS = 30.0
"""How long whoever asks first waits for the first list."""


def _nobody(_object: Object) -> None:
    """Is told."""


class Mirror:
    """Begins with the first question, in a thread of its own."""

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        seconds: float = WATCH_SECONDS,
        heard: Callable[[Object], None] = _nobody,
    ) -> None:
        """`heard` is told of every object as it comes, in the mirror's own thread: some are gone again before anybody looks."""
        self.cluster, self.kind, self.namespace, self.labels, self.seconds = cluster, kind, namespace, labels, seconds
        self.heard = heard
        self.lists = 0
        """How often everything was listed."""
        self._problem = ""
        self._objects: dict[str, Object] = {}
        self._version = ""
        self._lock = threading.Lock()
        self._heard = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def objects(self) -> list[Object]:
        """As of the newest event. Retryable while the server is away."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name=f"mirror-{self.kind.plural}")
            self._thread.start()
        self._heard.wait(FIRST_SECONDS)
        if self._problem or not self._heard.is_set():
            raise Retryable(self._problem or f"the API server has not listed {self.kind.plural} within {FIRST_SECONDS:g} s")
        with self._lock:
            return list(self._objects.values())

    def stop(self) -> None:
        """Ends with the watch at hand."""
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
            except Exception as error:  # whatever it is: a mirror that ended without a word would show the past for ever
                self._problem, self._version = str(error), ""
                self._heard.set()
                self._stop.wait(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1

    def _list(self) -> None:
        items, version = self.cluster.list(self.kind, self.namespace, self.labels)
        with self._lock:
            self._objects = {_key(item): item for item in items}
        for item in items:
            self.heard(item)
        self._version, self._problem, self.lists = version, "", self.lists + 1
        self._heard.set()

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
                self.heard(item)
            self._version = item["metadata"]["resourceVersion"]


class Mirrors:
    """One for each kind, place and labels that is asked for."""

    def __init__(self, cluster: Cluster, heard: Mapping[Kind, Callable[[Object], None]] | None = None) -> None:
        self.cluster, self.heard = cluster, heard or {}
        self._mirrors: dict[tuple[Kind, str | None, tuple[tuple[str, str], ...]], Mirror] = {}

    def objects(self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None) -> list[Object]:
        """As a list from the server, without asking it again."""
        key = (kind, namespace, tuple(sorted((labels or {}).items())))
        if key not in self._mirrors:
            self._mirrors[key] = Mirror(self.cluster, kind, namespace, labels, heard=self.heard.get(kind, _nobody))
        return self._mirrors[key].objects()


def _key(item: Object) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
