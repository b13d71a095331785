"""Reports a replica's state of its lines to the service through the exchange."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.schema import stamped
from ratchet.router.replica.state import LineFiles
from ratchet.runtime.serving.exchange import Exchange

CHANGED_SECONDS, SAME_SECONDS = 2.0, 15.0
"""Seconds between two accounts of a line whose content has changed, and of one whose has not."""
log = logging.getLogger("ratchet.router")


class Announcer:
    """Reports the accounts of the lines. `replica` is the name of the pod, which keeps its volume and its counts when it is replaced."""

    def __init__(self, exchange: Exchange, replica: str, lines: Sequence[LineFiles]) -> None:
        self._exchange = exchange
        self._replica = replica
        self._lines = lines
        self._told: dict[str, tuple[float, dict[str, Any]]] = {}
        self._trouble = ""

    def look(self, now: float) -> None:
        """Report the accounts that are due. `now` is a monotonic time. A failure is logged, once as long as it lasts."""
        trouble = ""
        for line in self._lines:
            at, told = self._told.get(line.name, (float("-inf"), {}))
            account = line.account()
            moved = account["route"] != told.get("route")
            if moved or now - at >= (CHANGED_SECONDS if account != told else SAME_SECONDS):
                try:
                    self._report(line, account, ended=False)
                    self._told[line.name] = now, account
                except RatchetError as error:
                    trouble = f"{line.name}: {error}"
        if trouble and trouble != self._trouble:
            log.error("cannot tell the service: %s", trouble)
        self._trouble = trouble

    def end(self, seconds: float) -> None:
        """Report the last accounts. The replica sends no further request. Tries for `seconds`."""
        until = time.monotonic() + seconds
        for line in self._lines:
            while True:
                try:
                    self._report(line, {**line.account(), "in_flight": {}}, ended=True)
                    break
                except RatchetError as error:
                    if time.monotonic() >= until:
                        log.error("cannot tell the service the last counts of %s: %s", line.name, error)
                        break
                    time.sleep(1)

    def _report(self, line: LineFiles, account: dict[str, Any], ended: bool) -> None:
        self._exchange.report(line.name, self._replica, stamped({**account, "ended": ended}))
