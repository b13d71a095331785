"""Types of decoding: its parameters, and its result, which has rows, and counts and reasons for the records that gave no row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from ratchet.contracts.errors import Rejected

Row: TypeAlias = dict[str, Any]
"""Columns of records.TRACES or records.FEEDBACK that the record itself determines (not source, ingested, batch), plus `position`. Times
are microseconds since the epoch. A dialect of another package may leave out optional columns, and may use the looser forms that
`ports.Dialect` lists."""

Kind: TypeAlias = Literal["traces", "feedback"]

MAX_BAD = 100
"""Parts of one record (for example the spans of one request) that are quarantined one by one for the same reason. Without a limit, a small
request could fill the lake with quarantine rows."""


PLACE = "place"
"""Key of a decoded row with the `Place` of its record."""
SCALED = "scaled"
"""Key of a decoded rating that has its own scale, so that the other ratings of the batch say nothing about it."""


class Place(NamedTuple):
    """Where a record is in the bytes of its batch, which are decompressed."""

    offset: int
    """First byte of the record."""
    length: int
    """Number of bytes, without the end of the line."""
    digest: str | None = None
    """SHA-256 of these bytes. None: not computed, or the record could not be read completely."""
    cut: bool = False
    """Whether the batch ended before the end of the record's line or stream."""


@dataclass(frozen=True)
class Bad:
    """One quarantine row: a bad record or part of a record with its position and the reason, or a number of such parts of one record."""

    kind: Kind
    position: str
    reason: str
    detail: str
    count: int = 1
    """Number of parts that the row stands for. They all count as quarantined."""
    place: Place | None = None
    """Place of the record in its batch. None for a batch whose format has none."""


@dataclass(frozen=True)
class Limits:
    """Parameters of decoding besides the bytes of the batch."""

    now: int
    """Current time in microseconds since the epoch. A call that starts more than a day later is rejected."""
    assume_consent: bool = False
    """Whether to keep content if the record does not mention consent. Content with refused consent is never kept."""
    mapping: dict[str, str] = field(default_factory=dict)
    """For jsonl: Ratchet's key -> dotted key in the application's records."""
    consent_places: tuple[str, ...] | None = None
    """Places whose consent counts (materializer/dialects/people/places.py). None: the places of the format. A refusal counts everywhere."""
    placeholders: tuple[str, ...] = ()
    """Texts of the operator's tools that stand in place of content, besides the known ones."""
    rating_scale: tuple[float, float] | None = None
    """The worst and the best number of the source's ratings. None: 0 and 1."""


@dataclass
class Decoded:
    """One decoded batch. Each record is counted exactly once: as a row in traces, feedback or consents, in skipped or in bad."""

    traces: list[Row] = field(default_factory=list)
    feedback: list[Row] = field(default_factory=list)
    skipped: dict[Kind, Counter[str]] = field(default_factory=lambda: {"traces": Counter(), "feedback": Counter()})
    bad: list[Bad] = field(default_factory=list)
    consents: list[Row] = field(default_factory=list)
    """Records that only state consent, with the columns subject, id, given and time of records.CONSENT, and `position`. The id of a user
    or session is in clear. They count as feedback."""
    halves: list[Row] = field(default_factory=list)
    """Trace rows without content, of spans whose content is in log records or was not captured. Their spans count as skipped. They complete
    the traces of their log records."""
    masked: Counter[str] = field(default_factory=Counter)
    """Kind of personal data -> number of parts of the rows' texts that were replaced."""
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(fact, place) -> number of model calls whose record names the fact at this place. The facts are consent, refusal, user and session.
    The key ("call", "") counts all calls that were read. `people.told.shares` computes the shares."""

    def skip(self, kind: Kind, reason: str) -> None:
        """Count a readable record that is not stored, by its reason."""
        self.skipped[kind][reason] += 1

    def reject(self, kind: Kind, position: str, error: Rejected, place: Place | None = None) -> None:
        """Add a bad record for the quarantine. The detail is cut to 200 characters."""
        self.bad.append(Bad(kind, position, error.reason, error.detail[:200], place=place))

    def merge(self, found: Decoded, position: str) -> None:
        """Add the result of one record, found at `position`.

        For each kind and reason, only the first MAX_BAD bad parts get a row of their own. One more row stands for the rest.
        """
        self.traces += found.traces
        self.feedback += found.feedback
        self.consents += found.consents
        self.halves += found.halves
        self.masked += found.masked
        self.told += found.told
        for kind, counts in found.skipped.items():
            self.skipped[kind] += counts
        seen: Counter[tuple[Kind, str]] = Counter()
        for bad in found.bad:
            seen[bad.kind, bad.reason] += bad.count
            if seen[bad.kind, bad.reason] <= MAX_BAD:
                self.bad.append(bad)
        for (kind, reason), count in seen.items():
            if count > MAX_BAD:
                detail = f"{count - MAX_BAD} more parts of the record with this reason"
                self.bad.append(Bad(kind, f"{position}, other {kind}, {reason}", reason, detail, count - MAX_BAD))
