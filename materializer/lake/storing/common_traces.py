"""Stores the plain traces that nothing else concerns, as columns: new ids, known to no other record and no statement about consent.

Most traces are such. `statements.sort_traces` is the definition of what is stored: every other trace is left to it, as a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.data.records import TRACES, ConsentSubject
from ratchet.materializer.dialects.otlp import EVERY_CALL
from ratchet.materializer.dialects.plain.traces import CONSTANT, PlainTraces
from ratchet.materializer.lake.arrow import pa
from ratchet.materializer.lake.schemas import arrow_columns
from ratchet.materializer.lake.storing.dedup_index import DedupIndex, Entry, Name, plain_entries, response_key
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.record_hashes import Key, content_hashes, trace_key


@dataclass(frozen=True)
class CommonTraces:
    """Traces that are stored as they are."""

    rows: pa.Table
    """With all columns of the table."""
    entries: Sequence[Entry]
    """Those of the index."""
    names: Sequence[Name]
    unsigned: int
    """Number of traces that name a version of the model."""


def take_common(lake: Lake, seen: DedupIndex, batch: RawBatch, decoded: Decoded, plain: PlainTraces, limits: Limits) -> CommonTraces:
    """Return the common ones of the plain traces, and add the others to the rows of `decoded`, in their places.

    The caller holds the write lock. Nothing is written.
    """
    seen.catch_up("traces")
    keys = [trace_key(batch.source, one) for one in plain.columns["id"]]
    others = _concerned(lake, seen, decoded, plain, keys)
    decoded.traces = plain.among(decoded.traces, sorted(others))
    numbers = [number for number in range(len(plain)) if number not in others]
    columns = plain.columns if not others else {name: [values[one] for one in numbers] for name, values in plain.columns.items()}
    known = {"source": batch.source, "batch": batch.digest, "ingested": limits.now, "sender": None}
    hashes = plain.contents or content_hashes(plain.columns)
    contents = hashes if not others else [hashes[one] for one in numbers]
    times = [begin if agreed else None for begin, agreed in zip(columns["consent_time"], columns["consent"], strict=True)]
    entries = plain_entries([keys[one] for one in numbers], batch.digest, contents, times)
    names = [
        (response_key(batch.source, response), True, keys[one])
        for one, response in zip(numbers, columns["response_id"], strict=True)
        if response
    ]
    unsigned = len(numbers) - columns["model_version"].count(None)
    return CommonTraces(arrow_columns(columns, {**CONSTANT, **known}, len(numbers), TRACES), entries, names, unsigned)


def _repeated(values: Iterable[str]) -> set[str]:
    return {value for value, count in Counter(values).items() if count > 1}


def _among(values: Sequence[str | None], some: set[str]) -> set[int]:
    """Return the numbers of the values that are among `some`."""
    return {number for number, value in enumerate(values) if value in some} if some else set()


def _concerned(lake: Lake, seen: DedupIndex, decoded: Decoded, plain: PlainTraces, keys: Sequence[Key]) -> set[int]:
    """Return the numbers of the traces that are not common."""
    ids, responses = plain.columns["id"], plain.columns["response_id"]
    rows = [*decoded.traces, *decoded.halves]
    named = {row["id"] for row in rows} | {row["id"] for row in decoded.consents if row["subject"] == ConsentSubject.TRACE}
    found = _among(ids, named | _repeated(ids))
    if any(responses):  # of several traces with one response id, the first in the batch has it
        found |= _among(responses, {row["response_id"] for row in rows if row["response_id"]} | _repeated(filter(None, responses)))
    known = seen.known_traces(keys) if keys else set[Key]()  # a batch of another format has no plain traces
    found |= {number for number, key in enumerate(keys) if key in known} if known else set()
    if any(identity.endswith(EVERY_CALL) for identity in named) or lake.refusals_ending(EVERY_CALL):
        found |= {number for number, identity in enumerate(ids) if ":" in identity}
    people = lake.erased_people()
    if people.users or people.sessions:
        both = zip(plain.columns["user"], plain.columns["session"], strict=True)
        found |= {number for number, (user, session) in enumerate(both) if people.includes(user, session)}
    return found
