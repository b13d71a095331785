"""A mirror of all objects of a kind: list, then watch from there; when the place has expired, list again. Survives API servers that
come and go. It knows freshness; it refuses to know what objects mean.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from contracts.errors import RatchetError
from k8s.client import Cluster, Expired, Kind, Object

WATCH_SECONDS = 240.0
PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before another try, the last one for ever: an API server that comes back is not trampled."""


class Mirror:
    """Runs in a thread of its own between `start` and `stop`."""

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        seconds: float = WATCH_SECONDS,
    ) -> None:
        self.cluster, self.kind, self.namespace, self.labels, self.seconds = cluster, kind, namespace, labels, seconds
        self.lists = 0
        """How often everything was listed anew."""
        self.problem = ""
        """Why it is behind, in words; empty: it is not."""
        self._objects: dict[str, Object] = {}
        self._version = ""
        self._seen = -1.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._changed: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"mirror-{kind.plural}")

    def start(self, changed: Callable[[], None] = lambda: None) -> Mirror:
        """`changed` is called after each event, in the mirror's thread."""
        self._changed = changed
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()

    def objects(self) -> list[Object]:
        with self._lock:
            return list(self._objects.values())

    def age(self) -> float:
        """Seconds since the server last spoke; infinite before the first list."""
        return float("inf") if self._seen < 0 else time.monotonic() - self._seen

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._follow()
                failures, self.problem = 0, ""
            except Expired:
                self._version = ""
            except RatchetError as error:
                self.problem = str(error)
                self._stop.wait(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1

    def _list(self) -> None:
        items, version = self.cluster.list(self.kind, self.namespace, self.labels)
        with self._lock:
            self._objects = {_key(item): item for item in items}
        self._version, self._seen, self.lists, self.problem = version, time.monotonic(), self.lists + 1, ""
        self._changed()

    def _follow(self) -> None:
        for event in self.cluster.watch(self.kind, self._version, self.namespace, self.labels, self.seconds):
            if self._stop.is_set():
                return
            item, self._seen = event["object"], time.monotonic()
            self._version = item["metadata"]["resourceVersion"]
            if event["type"] == "BOOKMARK":
                continue
            with self._lock:
                if event["type"] == "DELETED":
                    self._objects.pop(_key(item), None)
                else:
                    self._objects[_key(item)] = item
            self._changed()


def _key(item: Object) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
