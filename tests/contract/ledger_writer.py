"""A process that writes to a ledger in competition with others. It is a module of its own, so that it starts without the test libraries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ratchet.contracts.cycle import Append, Row
from ratchet.contracts.errors import Retryable
from ratchet.flows.ledger.opening import open_ledger_at


def contend(url: str, worker: int, wanted: int, results: Any) -> None:
    """Append `wanted` rows to the stream `a`, each as soon as no other process was faster, and report the number."""
    ledger, won = open_ledger_at(url), 0
    while won < wanted:
        try:
            row = Row(kind="noted", key=f"{worker}-{won}", data={})
            ledger.append([Append(stream="a", after=len(ledger.read("a")), rows=(row,))], None, datetime.now(UTC))
            won += 1
        except Retryable:
            pass
    results.put((worker, won))
