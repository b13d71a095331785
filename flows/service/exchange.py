"""The service's side of the exchange with the pods of an installation: takes accepted requests, publishes credentials."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.ids import Digest, digest
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.pods import adopt_keys, installation_exchange
from ratchet.flows.config.home import Home
from ratchet.flows.engine.advance import unforeseen
from ratchet.runtime.secrets.files import replace_secret
from ratchet.runtime.serving.exchange import Exchange, Intake, Published, is_in_pods

LOOK_SECONDS = 1.0
"""Seconds between two looks at the exchange."""
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
        """Line -> monotonic time of the last look at the keys of the Secret."""
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
        if time.monotonic() - self._adopted.get(line, float("-inf")) >= KEYS_SECONDS:
            adopt_keys(self._home, line)
            self._adopted[line] = time.monotonic()
        content = open_credentials(self._home, line).content()
        if content is not None and self._published.get(line) != digest(content):
            self._exchange.publish(line, Published.CREDENTIALS, content)
            self._published[line] = digest(content)
            replace_secret(self._home.credentials(line), content)  # an earlier release, to which an operator goes back, reads the file
        if line not in self._intakes:
            spool = self._home.spool(line)
            spool.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._intakes[line] = Intake(self._exchange, line, spool)
        return self._intakes[line].look(MOST_BYTES) > 0


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
