"""The form in which a database stores a row of the ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from ratchet.contracts.cycle import Entry
from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import canonical
from ratchet.contracts.schema import check_version

WRITABLE: Final = "make the file and its folder writable for this user, or set RATCHET_HOME to a writable folder"
"""Remedy if a SQLite file cannot be written."""


def values_of(entry: Entry) -> dict[str, Any]:
    """Return the values of a row by column."""
    return {**entry.model_dump(exclude={"data", "at"}), "data": canonical(entry.data).decode(), "at": entry.at.isoformat()}


def entry_of(row: Mapping[str, Any]) -> Entry:
    """Return the row with these values by column.

    Raises NewerRelease if a newer release wrote it, and Permanent if it was changed to invalid content.
    """
    check_version(row["schema_version"], f"row {row['seq']} of {row['stream']}")
    try:
        return Entry(**{**row, "data": json.loads(row["data"]), "at": datetime.fromisoformat(row["at"])})
    except ValueError as error:
        raise Permanent(f"the ledger was changed: row {row['seq']} of {row['stream']} cannot be read; restore a backup") from error
