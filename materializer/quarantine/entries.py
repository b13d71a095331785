"""Folds the rows of the quarantine table into entries: the newest row of a record counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ratchet.contracts.data.quarantine import QuarantineEntry


def fold_entries(rows: Iterable[Mapping[str, Any]]) -> list[QuarantineEntry]:
    """Return the entries of `rows` (records.QUARANTINE), oldest first.

    Of rows with the same time, one that ends the entry counts.
    """
    ordered = sorted(rows, key=lambda row: (row["ingested"], row["state"] is not None, row["batch"], row["position"], row["reason"]))
    first: dict[str, Mapping[str, Any]] = {}
    newest: dict[str, Mapping[str, Any]] = {}
    for row in ordered:
        first.setdefault(row["id"], row)
        newest[row["id"]] = row
    return [_entry(identity, row, newest[identity]) for identity, row in first.items()]


def _entry(identity: str, first: Mapping[str, Any], newest: Mapping[str, Any]) -> QuarantineEntry:
    place = ("source", "batch", "position", "kind", "origin", "format", "offset", "length", "digest", "sender", "user", "expires")
    return QuarantineEntry(
        id=identity,
        **{name: first[name] for name in place},
        reason=newest["reason"],
        detail=newest["detail"],
        parts=first["parts"],
        cut=first["cut"],
        first=first["ingested"],
        last=newest["ingested"],
        state=newest["state"],
        release=newest["release"],
    )
