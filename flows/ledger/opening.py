"""Opens a ledger by its URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.flows.ledger.sqlite import SqliteLedger

if TYPE_CHECKING:
    from ratchet.contracts.ports import Ledger


def open_ledger_at(url: str) -> Ledger:
    """Open the ledger at `url`, `sqlite:///PATH` or the SQLAlchemy URL of another database. A new database is created at first use.

    Raises ConfigError for an invalid URL or a missing driver, and Retryable if the database cannot be reached.
    """
    file = url.removeprefix("sqlite:///")
    if file not in ("", url) and "?" not in file:
        return SqliteLedger(Path(file))
    from ratchet.flows.ledger.sql import SqlLedger  # SQLAlchemy takes longer to import than a command to run

    return SqlLedger(url)
