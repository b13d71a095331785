"""Trace rows of plain records, as columns. A row as a dictionary costs more than all else that is done with a plain record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.contracts.data.decoding import PLACE, Place, Row
from ratchet.materializer.dialects.people.told import MAPPED
from ratchet.materializer.dialects.statement import STATED, Statement

COLUMNS = (
    *("id", "time", "origin", "user", "session", "response_id", "messages", "answer", "model", "model_version", "finish_reason"),
    *("latency_ms", "input_tokens", "output_tokens", "region", "consent", "slice", "consent_time", "tools", "confidentiality"),
)
"""The columns of records.TRACES that plain records have."""
CONSTANT: Mapping[str, Any] = {"status": "ok", "reference": None, "verified": False, "third_party": None}
"""The columns that have one value in all plain records."""


def _columns() -> dict[str, list[Any]]:
    return {name: [] for name in COLUMNS}


@dataclass
class PlainTraces:
    """Traces of the plain records of a batch, in their order. A consent is stated if and only if the column `consent` is true."""

    columns: dict[str, list[Any]] = field(default_factory=_columns)
    """Column -> values. Times are microseconds since the epoch."""
    positions: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    """Number of rows of other records of the batch that come before each trace."""

    contents: list[bytes] = field(default_factory=list)
    """The hash of the content of each trace (record_hashes.py), if a worker has computed it; else empty."""

    def __len__(self) -> int:
        return len(self.positions)

    def extend(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Add the traces of a block. Columns that it does not have are null; without an origin, it is `traffic`."""
        count = len(columns["id"])
        for name, values in self.columns.items():
            given = columns.get(name)
            values.extend(given if given is not None else [_DEFAULTS.get(name)] * count)

    def row(self, number: int) -> Row:
        """Return a trace as a row."""
        row: Row = {name: values[number] for name, values in self.columns.items()}
        stated = Statement(True, row["consent_time"]) if row["consent"] else None
        return {**row, **CONSTANT, STATED: stated, "position": self.positions[number], PLACE: self.places[number]}

    def among(self, rows: Sequence[Row], numbers: Iterable[int]) -> list[Row]:
        """Return `rows`, those of the other records of the batch, with the traces of these numbers in their places."""
        found, at = list[Row](), 0
        for number in numbers:
            found += rows[at : self.before[number]]
            at = self.before[number]
            found.append(self.row(number))
        return [*found, *rows[at:]]


_DEFAULTS: Mapping[str, Any] = {"origin": "traffic", "consent": False}


def count_told(told: Counter[tuple[str, str]], columns: Mapping[str, Sequence[Any]]) -> None:
    """Count in `told` what plain records say, as `people.told.count_told` does."""
    count = len(columns["id"])

    def present(name: str) -> int:
        values = columns.get(name)
        return 0 if values is None else count - values.count(None)

    facts = (("user", "user_id", present("user")), ("session", "session_id", present("session")))
    for fact, place, number in (*facts, ("consent", MAPPED, sum(columns.get("consent", ())))):
        if number:
            told.update({(fact, place): number, (fact, ""): number})
    if count:
        told.update({("call", ""): count})
