"""Applications whose requests pass no router of Ratchet, and the weights of the line's HTTPRoute while they ask."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx

from tests.cluster.rig.build import RigError
from tests.cluster.whole import LINE, Traffic, Whole
from tests.toy_line import TRAINING
from tests.unit.materializer.records import span, spans

PEOPLE = 24
"""Number of people who use the applications."""
_CALLS = itertools.count(1)
"""Numbers of the calls of all applications, from which traces get their ids."""


class Application(Traffic):
    """An application that asks through the Gateway, and sends the traces of its calls to a receiver, with consent.

    `right` is the right answer to its questions, which it knows. While it knows none, it sends no traces. A batch that no receiver has
    accepted is sent again with the next one.
    """

    def __init__(self, whole: Whole, token: str) -> None:
        super().__init__(whole, token)
        self.right: str | None = "yes"
        self._batch: list[dict[str, Any]] = []

    def _ask(self, client: httpx.Client, number: int) -> httpx.Response:
        return self._whole.ask(client, f"person-{number % PEOPLE}", TRAINING[number % len(TRAINING)], temperature=0)

    def _tell(self, client: httpx.Client, number: int, _reply: httpx.Response, text: str, began: int) -> None:
        if self.right is None:
            return
        known = {"at": began, "metadata__reference": self.right, "user__id": f"person-{number % PEOPLE}"}
        self._batch.append(span(next(_CALLS), TRAINING[number % len(TRAINING)], text, **known))
        if len(self._batch) >= 4 and self._whole.send(client, self._token, "/v1/traces", spans(*self._batch)):
            self._batch.clear()


class Weights:
    """Watches which percentages the HTTPRoute of the line gives to other versions than the first one, for the duration of a block."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._first = ""
        self._over = threading.Event()
        self.seen: list[tuple[float, float]] = []
        """When each percentage was first seen, and the percentage."""

    def __enter__(self) -> Weights:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    @property
    def shares(self) -> list[float]:
        """The percentages in their order."""
        return [share for _, share in self.seen]

    def answered(self, answers: Sequence[tuple[float, str]], lag: float) -> list[tuple[float, Counter[str]]]:
        """Return each percentage with the answers while it was in force, without those within `lag` seconds of a change."""
        ends = [since - lag for since, _ in self.seen[1:]] + [time.monotonic()]
        windows = zip(self.seen, ends, strict=True)
        return [(share, Counter(text for at, text in answers if since + lag <= at < end)) for (since, share), end in windows]

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            try:
                share = self._share()
            except RigError:  # there is no route yet
                continue
            if not self.seen or self.seen[-1][1] != share:
                self.seen.append((time.monotonic(), share))
                self._whole.told(f"the HTTPRoute gives {share:g} % to other versions than the first one")

    def _share(self) -> float:
        text = self._whole.rig.kubectl("get", "httproute", f"ratchet-{LINE}", "-n", self._whole.namespace, "-o", "json")
        backends = {one["name"]: one["weight"] for one in json.loads(text)["spec"]["rules"][-1]["backendRefs"]}
        self._first = self._first or next(iter(backends))
        return round(100 * (1 - backends.get(self._first, 0) / sum(backends.values())), 4)
