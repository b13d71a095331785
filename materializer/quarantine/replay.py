"""Reads quarantined records again, through today's decoder and admission, and stores what is accepted now, exactly once.

A record is read from its file if that still has the same bytes at the same place, otherwise from the masked bytes that were kept. It is
stored with the digest of its first batch, so that rows that were stored before, by the first ingest or by an interrupted replay, are
recognised. The entry is marked afterwards; a crash in between repeats the replay without an effect on the lake.
"""

from __future__ import annotations

import hashlib
import io
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from contracts.data.datasets import RawBatch
from contracts.data.decoding import Decoded, Limits
from contracts.data.quarantine import QuarantineContent, QuarantineCounts, QuarantineEntry, Replayed, ReplayReport
from contracts.data.records import QUARANTINE
from contracts.data.senders import Sender
from contracts.errors import ConfigError, Retryable
from contracts.ports import Clock, Dialect
from materializer.dialects.admission import Admission
from materializer.dialects.decode import MAX_RECORD, decode
from materializer.lake.dedup_index import DedupIndex
from materializer.lake.ingest import store
from materializer.lake.schemas import arrow_table
from materializer.lake.tables import Lake
from materializer.quarantine.entries import fold_entries
from materializer.quarantine.excerpt import parts_of, place_in_part
from materializer.quarantine.kept import KeptRecords
from materializer.quarantine.writing import release
from runtime.secrets.pseudonyms import Subject, is_pseudonym

Source: TypeAlias = Literal["file", "kept"]
"""Where a record is read from."""
_NUMBER = re.compile(r"(?:line|frame) (\d+)")


@dataclass(frozen=True)
class Rules:
    """The rules of ingest by which records are read again."""

    limits: Callable[[str], Limits]
    """Returns the limits of a source by its name."""
    dialects: Mapping[str, Dialect]
    is_signed: Callable[[bytes, str], bool]
    hide: Callable[[Subject, str], str]
    mask: Callable[[dict[str, Any]], Any]


class LakeQuarantine:
    """The quarantine of the lake of one line."""

    def __init__(
        self,
        lake: Lake,
        seen: DedupIndex,
        clock: Clock,
        rules: Callable[[], Rules],
        open_file: Callable[[Path], BinaryIO],
    ) -> None:
        self._lake = lake
        self._seen = seen
        self._clock = clock
        self._rules = rules
        self._open_file = open_file
        self._kept = KeptRecords(lake.root)

    def entries(self) -> list[QuarantineEntry]:
        """Return all entries, oldest first, also those that are resolved."""
        return fold_entries(self._lake.scan("quarantine").to_dicts())

    def content(self, identity: str) -> QuarantineContent | None:
        """Return the masked bytes of an entry; None if none are kept, or if they have expired."""
        found = self._kept.get(identity)
        if found is None or found.expires <= self._now():
            return None
        return QuarantineContent(text=found.content.decode(errors="replace"), truncated=found.truncated)

    def counts(self, since: float) -> QuarantineCounts:
        """Return what the ingests since a time, in seconds since the epoch, have read and quarantined."""
        return self._kept.counts(int(since * 1_000_000))

    def expire(self) -> int:
        """Delete the masked bytes that have expired. Return the number of records. Ingest calls this too."""
        with self._lake.writing():
            return self._kept.expire(self._now())

    def forget_users(self, users: Collection[str]) -> int:
        """Delete the masked bytes of all records of users, which are named by their pseudonyms. Return the number of records."""
        with self._lake.writing():
            return self._kept.forget_users(users)

    def replay(self, identities: Collection[str], dry_run: bool = False) -> ReplayReport:
        """Read open entries again, by their ids, and store what is accepted now. Safe to repeat at any point.

        Entries that are not open are left out. Nothing is written in a dry run. Raises Retryable if the lake cannot be written.
        """
        rules, wanted = self._rules(), set(identities)
        made: list[Replayed] = []
        stored = 0
        with self._lake.writing():
            waiting = [entry for entry in self.entries() if entry.id in wanted and entry.is_open]
            for group in _records(waiting):
                found, fresh = self._replayed(group, rules, dry_run)
                made, stored = made + found, stored + fresh
        return ReplayReport(entries=tuple(made), stored=stored, dry_run=dry_run)

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1_000_000)

    def _replayed(self, group: Sequence[QuarantineEntry], rules: Rules, dry_run: bool) -> tuple[list[Replayed], int]:
        """Replay the entries of one record. The file has the whole record; kept bytes are those of one entry."""
        data = self._from_file(group[0])
        if data is not None:
            decoded, fresh = self._store(group[0], "file", data, rules, dry_run)
            outcomes = [_outcome(entry, entry.position, decoded, "file") for entry in group]
        else:
            outcomes, fresh = [], 0
            for entry in group:
                content = self._kept.get(entry.id)
                if content is None or content.truncated or content.expires <= self._now():
                    outcomes.append(_unavailable(entry, truncated=content is not None and content.truncated))
                    continue
                decoded, added = self._store(entry, "kept", content.content + b"\n", rules, dry_run)
                head, place = parts_of(entry.position)
                head = head.replace("frame", "line")
                outcomes.append(_outcome(entry, head + place_in_part(place), decoded, "kept"))
                fresh += added
        if not dry_run:
            self._mark(group, outcomes)
        return outcomes, fresh

    def _from_file(self, entry: QuarantineEntry) -> bytes | None:
        """Return the line of an entry from its file; None if the file is gone, or has other bytes there.

        A line that was cut may have become longer.
        """
        path = Path(entry.origin or "")
        if entry.sender is not None or entry.offset is None or not entry.format or not entry.origin or not path.is_file():
            return None
        try:
            with self._open_file(path) as stream:
                stream.seek(entry.offset, io.SEEK_SET)
                data = stream.readline(MAX_RECORD + 1)
        except (OSError, EOFError, zlib.error):
            return None
        known = data[: entry.length or 0]
        if not data or (entry.digest is not None and hashlib.sha256(known).hexdigest() != entry.digest):
            return None
        longer = len(data.rstrip(b"\r\n")) > (entry.length or 0)
        return data if entry.cut or not longer else None

    def _store(self, entry: QuarantineEntry, by: Source, data: bytes, rules: Rules, dry_run: bool) -> tuple[Decoded, int]:
        """Decode a record as a batch of its own, and store its rows. Return (all that was decoded, number of new rows)."""
        number = _NUMBER.match(entry.position)
        form = "otlp-json" if entry.format == "otlp-proto" else entry.format or ""  # a file has no frames, and kept bytes are JSON
        batch = RawBatch(
            entry.source,
            form,
            entry.batch,
            entry.origin or entry.position,
            partial(io.BytesIO, data),
            None if entry.sender is None else Sender.of_label(entry.sender),
            first=int(number[1]) if number else 1,
            offset=entry.offset or 0,
        )
        limits = rules.limits(entry.source)

        def kept(subject: Subject, text: str) -> str:
            return text if is_pseudonym(text) else rules.hide(subject, text)

        hide = kept if by == "kept" else rules.hide  # a file has the ids in clear, so nobody can name a user by a pseudonym there
        try:
            decoded = decode(batch, limits, rules.dialects, Admission(batch.sender, rules.is_signed, hide, rules.mask))
        except ConfigError as error:
            raise Retryable(f"entry {entry.id} cannot be replayed: {error}") from error
        return decoded, store(self._lake, self._seen, batch, decoded, limits, rules.hide, not dry_run).fresh

    def _mark(self, group: Sequence[QuarantineEntry], outcomes: Sequence[Replayed]) -> None:
        """Append a row for each entry that is resolved, or has another reason now, and delete what is kept of the resolved ones."""
        rows, done = [], []
        for entry, one in zip(group, outcomes, strict=True):
            if one.outcome == "resolved":
                rows.append(_row(entry, entry.reason, "stored by a replay", "resolved", self._now()))
                done.append(entry.id)
            elif one.outcome == "bad" and one.reason != entry.reason:
                rows.append(_row(entry, one.reason, one.detail, None, self._now()))
        if rows:
            self._lake.append("quarantine", arrow_table(rows, QUARANTINE), group[0].batch)
        self._kept.end(done)


def _records(entries: Sequence[QuarantineEntry]) -> list[list[QuarantineEntry]]:
    """Group the entries by their record."""
    groups: dict[tuple[Any, ...], list[QuarantineEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.source, entry.batch, entry.origin, parts_of(entry.position)[0]), []).append(entry)
    return list(groups.values())


def _outcome(entry: QuarantineEntry, position: str, decoded: Decoded, by: Source) -> Replayed:
    """Return the outcome of an entry whose part is at `position` in what was decoded.

    A record that cannot be read at all is bad at its line, with all of its parts.
    """
    head = parts_of(position)[0]
    found = next((bad for bad in decoded.bad if bad.position in (position, head)), None)
    if found is None and entry.parts > 1:  # the rest of many parts with one reason
        found = next((bad for bad in decoded.bad if bad.reason == entry.reason and bad.kind == entry.kind), None)
    if found is None and position == head:  # the record was not readable before, and is now, in parts
        found = next(iter(decoded.bad), None)
    if found is None:
        return Replayed(id=entry.id, outcome="resolved", reason=entry.reason, detail="", by=by)
    return Replayed(id=entry.id, outcome="bad", reason=found.reason, detail=found.detail, by=by)


def _unavailable(entry: QuarantineEntry, truncated: bool) -> Replayed:
    why = "its kept bytes are truncated" if truncated else "no bytes of it are kept"
    place = f"{entry.origin} does not have the record any more, and " if entry.origin and entry.sender is None else ""
    return Replayed(id=entry.id, outcome="unavailable", reason=entry.reason, detail=f"{place}{why}; send the record again")


def _row(entry: QuarantineEntry, reason: str, detail: str, state: str | None, now: int) -> dict[str, Any]:
    same = ("id", "source", "batch", "position", "kind", "origin", "format", "offset", "length", "digest", "cut", "parts", "user", "sender")
    expires = None if entry.expires is None else int(entry.expires.timestamp() * 1_000_000)
    row = {name: getattr(entry, name) for name in same}
    return row | {"reason": reason, "detail": detail, "state": state, "ingested": now, "expires": expires, "release": release()}
