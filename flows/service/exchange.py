"""The service's side of the exchange with the pods of an installation: takes accepted requests, publishes credentials."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.ids import Digest, digest
from ratchet.flows.composition.credentials import mirror_credentials, open_credentials
from ratchet.flows.composition.pods import adopt_keys, installation_exchange
from ratchet.flows.config.home import Home
from ratchet.flows.engine.advance import unforeseen
from ratchet.runtime.serving.exchange import Exchange, Intake, Published, is_in_pods

LOOK_SECONDS = 1.0
"""Seconds between two looks at the exchange."""
CREDENTIALS_SECONDS = 1.5
"""Seconds between two looks whether the credentials have changed."""
KEYS_SECONDS = 5.0
"""Seconds between two looks whether the Secret has other keys."""
MOST_BYTES = 256 << 20
"""Bytes of requests that wait on the disk for an ingest, at which no more are taken from the exchange."""


class ServiceExchange:
    """Exchanges files with the pods of all lines. `say` receives problems, each once as long as it lasts."""

    def __init__(self, exchange: Exchange, home: Home, lines: Sequence[str], say: Callable[[str], None]) -> None:
        self._exchange = exchange
        self._home = home
        self._lines = lines
        self._say = say
        self._published: dict[str, Digest] = {}
        self._intakes: dict[str, Intake] = {}
        self._adopted: dict[str, float] = {}
        self._read: dict[str, float] = {}
        """Line -> monotonic time of the last look at the keys of the Secret, and at the credentials."""
        self._troubles: dict[str, str] = {}

    def look(self) -> bool:
        """Exchange once with all lines. Return whether requests were taken, so that more may wait. Nothing is raised."""
        taken = False
        for line in self._lines:
            try:
                taken = self._look(line) or taken
                self._troubles.pop(line, None)
            except Exception as error:  # a problem of one line must not stop the others
                text = str(error) if isinstance(error, RatchetError) else unforeseen(error)
                if self._troubles.get(line) != text:
                    self._troubles[line] = text
                    self._say(f"{line}: exchange: {text}")
        return taken

    def _look(self, line: str) -> bool:
        try:
            self._publish(line)
        finally:  # requests are taken also while nothing can be published
            if line not in self._intakes:
                self._intakes[line] = Intake(self._exchange, line, self._home.spool(line))
            taken = self._intakes[line].look(MOST_BYTES)
        return taken > 0

    def _publish(self, line: str) -> None:
        """Publish the credentials if they have changed."""
        now = time.monotonic()
        if now - self._adopted.get(line, float("-inf")) >= KEYS_SECONDS:
            adopt_keys(self._home, line)
            self._adopted[line] = now
        if now - self._read.get(line, float("-inf")) < CREDENTIALS_SECONDS:
            return
        at = datetime.now(UTC)
        content = open_credentials(self._home, line).content()
        if content is not None and self._published.get(line) != digest(content):
            self._exchange.publish(line, Published.CREDENTIALS, content)
            mirror_credentials(self._home, line, content, at)
            self._published[line] = digest(content)
        self._read[line] = now


@contextmanager
def exchanging(home: Home, lines: Sequence[str], say: Callable[[str], None]) -> Iterator[None]:
    """Exchange files with the pods for the duration of the block, in a thread. On one machine, nothing happens."""
    if not is_in_pods():
        yield
        return
    exchange, stop = ServiceExchange(installation_exchange(), home, lines, say), threading.Event()

    def run() -> None:
        while not stop.is_set():
            if not exchange.look():
                stop.wait(LOOK_SECONDS)

    thread = threading.Thread(target=run, name="exchange", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)
