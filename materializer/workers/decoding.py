"""Decodes and masks batches by the engine of the port `Compute`, while the service commits those before.

A worker gets the bytes of a batch and the settings. It gets no key: ids of users and sessions come back in clear, as they are in the batch,
and the signatures of the router unverified. `with_keys` does both in the service.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, groupby
from typing import NamedTuple

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Decoded, Limits, Row
from ratchet.contracts.loop import PrivacySettings
from ratchet.contracts.ports import Compute, Dialect
from ratchet.contracts.ports.compute import Item
from ratchet.materializer.dialects.admission import HIDDEN, SIGNED, Admission
from ratchet.materializer.dialects.decode import BUILT_IN, decode_in_columns
from ratchet.materializer.dialects.plain.traces import PlainTraces
from ratchet.materializer.privacy.masking import Masker
from ratchet.materializer.record_hashes import content_hashes
from ratchet.runtime.collection import without_collection
from ratchet.runtime.extensions import ExtensionKind, load
from ratchet.runtime.secrets.pseudonyms import Subject

SMALL = 256 << 10
"""Bytes up to which a batch is decoded by the service: no worker is started for the traffic of a few seconds."""
LARGE = 64 << 20
"""Bytes above which a batch is decoded by the service, which reads it as a stream, so that the memory for batches in flight is limited."""


class DecodedBatch(NamedTuple):
    """What is decoded of a batch: rows, and the traces of its plain records as columns."""

    decoded: Decoded
    plain: PlainTraces


class Begun(NamedTuple):
    """A batch on its way to the lake."""

    batch: RawBatch
    """With its bytes in memory, if a worker has decoded it."""
    limits: Limits
    decoded: DecodedBatch | None
    """What a worker has decoded, without keys. None: the caller decodes the batch."""


class UnkeyedAdmission(Admission):
    """The rules of admission as far as they need no key. `with_keys` does the rest."""

    def _trace(self, row: Row) -> Row:
        return row


@dataclass(frozen=True)
class DecodeBatch:
    """The function of workers: a batch with its bytes in memory, and its limits -> the packed `DecodedBatch`."""

    privacy: str
    """JSON of `PrivacySettings`."""
    dialects: tuple[str, ...]
    """Names of the installed dialects."""

    @classmethod
    def of(cls, privacy: PrivacySettings, dialects: Mapping[str, Dialect]) -> DecodeBatch:
        """Return the function for the settings of a line and its dialects, which are found by their names where it runs."""
        return cls(privacy.model_dump_json(), tuple(dialects))

    def __call__(self, content: tuple[RawBatch, Limits]) -> bytes:
        """Decode the batch."""
        batch, limits = content
        masker = _masker(self.privacy)
        admission = UnkeyedAdmission(batch.sender, mask=masker.mask, bulk=masker)
        with without_collection():
            decoded, plain = decode_in_columns(batch, limits, _dialects(self.dialects), admission)
            plain.contents = content_hashes(plain.columns)
            return packed(DecodedBatch(decoded, plain))


def packed(decoded: DecodedBatch) -> bytes:
    """Return a decoded batch as bytes, which are read by the same code only."""
    return pickle.dumps(decoded, protocol=5)


def unpacked(data: bytes) -> DecodedBatch:
    """Return the decoded batch that `packed` has written."""
    with without_collection():
        decoded: DecodedBatch = pickle.loads(data)  # noqa: S301 -- from a worker with the same code
    return decoded


def decoded_each(compute: Compute, function: DecodeBatch, batches: Iterable[tuple[RawBatch, Limits]]) -> Iterator[Begun]:
    """Decode the batches in their order. Small and large batches, and those that cannot be read, are left to the caller.

    Raises what `Compute.map` raises; the messages name the origin of the batch.
    """
    if not compute.elsewhere:
        yield from (Begun(batch, limits, None) for batch, limits in batches)
        return
    read = ((batch, limits, _in_memory(batch)) for batch, limits in batches)
    for by_workers, run in groupby(read, key=lambda one: one[2] is not None):
        if not by_workers:
            yield from (Begun(batch, limits, None) for batch, limits, _ in run)
            continue
        sent: deque[tuple[RawBatch, Limits]] = deque()
        for data in compute.map(function, _items(run, sent)):
            batch, limits = sent.popleft()
            yield Begun(batch, limits, unpacked(data))


def _items(run: Iterable[tuple[RawBatch, Limits, RawBatch | None]], sent: deque[tuple[RawBatch, Limits]]) -> Iterator[Item]:
    for _, limits, batch in run:
        assert batch is not None
        sent.append((batch, limits))
        yield Item(f"batch {batch.origin} (from line {batch.first})", (batch, limits))


def _in_memory(batch: RawBatch) -> RawBatch | None:
    """Return the batch with its bytes in memory; None if it is small or large, or if its end cannot be read."""
    try:
        with batch.open() as stream:
            parts, size = [], 0
            while size <= LARGE and (part := stream.read(LARGE + 1 - size)):
                parts.append(part)
                size += len(part)
    except Exception:  # the caller reads it again, and knows what to do
        return None
    return replace(batch, open=partial(io.BytesIO, b"".join(parts))) if SMALL < size <= LARGE else None


def with_keys(both: DecodedBatch, hide: Callable[[Subject, str], str], is_signed: Callable[[bytes, str], bool]) -> DecodedBatch:
    """Verify the router's signatures, and replace the ids of users and sessions by pseudonyms, in place.

    `both` was admitted by `UnkeyedAdmission`. The arguments are as in `Admission`.
    """
    decoded, columns, hidden = both.decoded, both.plain.columns, Admission(hide=hide).hidden
    columns["user"], columns["session"] = hidden("u", columns["user"]), hidden("s", columns["session"])
    for row in chain(decoded.traces, decoded.halves):
        signed = row.pop(SIGNED, None)
        row["verified"] = signed is not None and is_signed(*signed)
        if row["user"] is not None:
            row["user"] = hide("u", row["user"])
        if row["session"] is not None:
            row["session"] = hide("s", row["session"])
    for row in decoded.feedback:
        if row["rater"] is not None:
            row["rater"] = hide("u", row["rater"])
    for row in decoded.consents:
        if (subject := HIDDEN.get(row["subject"])) is not None:
            row["id"] = hide(subject, row["id"])
    return both


@lru_cache(maxsize=8)
def _masker(privacy: str) -> Masker:
    return Masker(PrivacySettings.model_validate_json(privacy))


@lru_cache(maxsize=8)
def _dialects(names: tuple[str, ...]) -> Mapping[str, Dialect]:
    return {name: BUILT_IN[name] if name in BUILT_IN else _installed(name) for name in names}


def _installed(name: str) -> Dialect:
    dialect: Dialect = load(ExtensionKind.DIALECT, name).create(options={}, where="dialect")
    return dialect
