"""What a decoder hands to the ingest: rows, and an account of everything that became none. Knows no format and no lake."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from contracts.errors import Rejected

Row: TypeAlias = dict[str, Any]
"""Columns of records.TRACES or FEEDBACK that the record itself decides (no source, ingested, batch), times in microseconds
since the epoch, plus `position`."""

Kind: TypeAlias = Literal["traces", "feedback"]


@dataclass(frozen=True)
class Bad:
    """One record that is quarantined."""

    kind: Kind
    position: str
    reason: str
    detail: str


@dataclass(frozen=True)
class Limits:
    """What decoding depends on besides the bytes."""

    now: int
    """Microseconds since the epoch; a start more than a day later is refused."""
    assume_consent: bool = False
    """Keep content also where the record is silent about consent (never where it says no)."""
    mapping: dict[str, str] = field(default_factory=dict)
    """jsonl: our column -> their dotted key."""


@dataclass
class Decoded:
    """One batch, decoded. Each record read is in exactly one of rows, skipped and bad."""

    traces: list[Row] = field(default_factory=list)
    feedback: list[Row] = field(default_factory=list)
    skipped: dict[Kind, Counter[str]] = field(default_factory=lambda: {"traces": Counter(), "feedback": Counter()})
    bad: list[Bad] = field(default_factory=list)

    def skip(self, kind: Kind, reason: str) -> None:
        self.skipped[kind][reason] += 1

    def reject(self, kind: Kind, position: str, error: Rejected) -> None:
        self.bad.append(Bad(kind, position, error.reason, error.detail[:200]))
