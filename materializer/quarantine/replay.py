"""Reads quarantined records again, through today's decoder and admission, and stores what is accepted now, exactly once.

A record is read from its file if that still has the same bytes at the same place, otherwise from the masked bytes that were kept. It is
stored with the digest of its first batch, so that rows that were stored before, by the first ingest or by an interrupted replay, are
recognised. The entry is marked afterwards; a crash in between repeats the replay without an effect on the lake.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Bad, Decoded, Limits
from ratchet.contracts.data.quarantine import QuarantineContent, QuarantineCounts, QuarantineEntry, Replayed, ReplayReport
from ratchet.contracts.data.records import QUARANTINE
from ratchet.contracts.data.senders import Sender
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ports import Clock, Dialect
from ratchet.materializer.dialects.admission import Admission
from ratchet.materializer.dialects.decode import MAX_RECORD, decode
from ratchet.materializer.dialects.screening.rating_scales import refuse_ratings
from ratchet.materializer.dialects.values import ABOVE_ONE
from ratchet.materializer.lake.schemas import arrow_table
from ratchet.materializer.lake.storing.dedup_index import DedupIndex
from ratchet.materializer.lake.storing.ingest import store
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.quarantine.entries import fold_entries
from ratchet.materializer.quarantine.excerpt import parts_of, place_in_part
from ratchet.materializer.quarantine.kept import Bytes, KeptRecords
from ratchet.materializer.quarantine.writing import release
from ratchet.runtime.secrets.pseudonyms import Subject, is_pseudonym

Source: TypeAlias = Literal["file", "kept"]
"""Where a record is read from."""
_COMMIT = 500
"""Entries that are stored with one commit."""
_APART = 1000
"""Distance of the line numbers under which records are read again, so that parts of one record get numbers of their own."""


@dataclass(frozen=True)
class Rules:
    """The rules of ingest by which records are read again."""

    limits: Callable[[str], Limits]
    """Returns the limits of a source by its name."""
    dialects: Mapping[str, Dialect]
    is_signed: Callable[[bytes, str], bool]
    hide: Callable[[Subject, str], str]
    mask: Callable[[dict[str, Any]], Any]
    unseal: Callable[[bytes], bytes | None]
    """Decrypts the masked bytes of a record. None if their key is gone."""


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
        self._kept = KeptRecords(lake.place)

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
        with self._lake.writing(), _Files(self._open_file) as files:
            waiting = [entry for entry in self.entries() if entry.id in wanted and entry.is_open]
            for part in _commits(waiting):
                found, fresh = self._replayed(part, rules, files, dry_run)
                made, stored = made + found, stored + fresh
        return ReplayReport(entries=tuple(made), stored=stored, dry_run=dry_run)

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1_000_000)

    def _replayed(self, entries: Sequence[QuarantineEntry], rules: Rules, files: _Files, dry_run: bool) -> tuple[list[Replayed], int]:
        """Replay entries of one batch with one commit. Return (outcomes, number of new rows)."""
        limits = rules.limits(entries[0].source)
        whole, places, lost = Decoded(), dict[str, tuple[str, Source]](), dict[str, Replayed]()
        for number, group in enumerate(_records(entries), _APART):
            data = files.read(group[0])
            kept = [] if data is not None else [(entry, self._kept.get(entry.id)) for entry in group]
            if data is not None:
                head = f"line {number * _APART}"
                _add(whole, self._decode(group[0], "file", data, number * _APART, limits, rules))
                places |= {entry.id: (head + parts_of(entry.position)[1], "file") for entry in group}
            for at, (entry, content) in enumerate(kept):
                masked = None if content is None or content.expires <= limits.now else _whole(content, rules)
                if masked is None:
                    lost[entry.id] = _unavailable(entry, truncated=content is not None and content.truncated)
                    continue
                own = number * _APART + at  # each kept part is a record of its own, and needs a position of its own
                _add(whole, self._decode(entry, "kept", masked + b"\n", own, limits, rules))
                places[entry.id] = f"line {own}{place_in_part(parts_of(entry.position)[1])}", "kept"
        batch = _batch(entries[0], "file", b"", 1)
        fresh = store(self._lake, self._seen, batch, whole, limits, write=not dry_run).fresh
        bad = _by_line(whole)
        outcomes = [lost[one.id] if one.id in lost else _outcome(one, *places[one.id], bad) for one in entries]
        if not dry_run:
            self._mark(entries, outcomes)
        return outcomes, fresh

    def _decode(self, entry: QuarantineEntry, by: Source, data: bytes, number: int, limits: Limits, rules: Rules) -> Decoded:
        """Decode a record as line `number` of its batch."""

        def kept(subject: Subject, text: str) -> str:
            return text if is_pseudonym(text) else rules.hide(subject, text)

        hide = kept if by == "kept" else rules.hide  # a file has the ids in clear, so nobody can name a user by a pseudonym there
        batch = _batch(entry, by, data, number)
        try:
            found = decode(batch, limits, rules.dialects, Admission(batch.sender, rules.is_signed, hide, rules.mask))
        except ConfigError as error:
            raise ConfigError(f"entry {entry.id} cannot be replayed: {error}") from error
        if entry.reason == ABOVE_ONE and limits.rating_scale is None:
            refuse_ratings(found)  # alone, a 1 of a scale from 1 to 5 is not recognised
        return found

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


class _Files:
    """Reads lines of files. The last file stays open, because its lines are read in their order."""

    def __init__(self, open_file: Callable[[Path], BinaryIO]) -> None:
        self._open_file = open_file
        self._last: tuple[str, BinaryIO] | None = None

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None:
            self._last[1].close()

    def read(self, entry: QuarantineEntry) -> bytes | None:
        """Return the line of an entry from its file; None if the file is gone, or has other bytes there.

        A line that was cut may have become longer.
        """
        if entry.sender is not None or entry.offset is None or not entry.format or not entry.origin or not Path(entry.origin).is_file():
            return None
        try:
            stream = self._stream(entry.origin)
            stream.seek(entry.offset, io.SEEK_SET)
            data = stream.readline(MAX_RECORD + 1)
        except (OSError, EOFError, zlib.error):
            return None
        known = data[: entry.length or 0]
        if not data or (entry.digest is not None and hashlib.sha256(known).hexdigest() != entry.digest):
            return None
        longer = len(data.rstrip(b"\r\n")) > (entry.length or 0)
        return data if entry.cut or not longer else None

    def _stream(self, origin: str) -> BinaryIO:
        if self._last is None or self._last[0] != origin:
            self.__exit__()
            self._last = None
            self._last = origin, self._open_file(Path(origin))
        return self._last[1]


def _commits(entries: Sequence[QuarantineEntry]) -> list[list[QuarantineEntry]]:
    """Group the entries by their batch, in the order of the places. A commit costs the same for one record as for a thousand."""
    groups: dict[tuple[Any, ...], list[QuarantineEntry]] = {}
    for entry in sorted(entries, key=lambda one: (one.origin or "", one.batch, one.offset or 0)):
        groups.setdefault((entry.source, entry.batch, entry.format, entry.origin, entry.sender), []).append(entry)
    return [group[at : at + _COMMIT] for group in groups.values() for at in range(0, len(group), _COMMIT)]


def _records(entries: Sequence[QuarantineEntry]) -> list[list[QuarantineEntry]]:
    """Group the entries of a batch by their record."""
    groups: dict[str, list[QuarantineEntry]] = {}
    for entry in entries:
        groups.setdefault(parts_of(entry.position)[0], []).append(entry)
    return list(groups.values())


def _batch(entry: QuarantineEntry, by: Source, data: bytes, number: int) -> RawBatch:
    form = "otlp-json" if entry.format == "otlp-proto" else entry.format or ""  # a file has no frames, and kept bytes are JSON
    sender = None if entry.sender is None else Sender.of_label(entry.sender)
    origin = f"{entry.origin} ({by})"
    return RawBatch(entry.source, form, entry.batch, origin, partial(io.BytesIO, data), sender, first=number, offset=entry.offset or 0)


def _add(whole: Decoded, found: Decoded) -> None:
    """Add what was decoded of one record."""
    whole.traces += found.traces
    whole.feedback += found.feedback
    whole.consents += found.consents
    whole.bad += found.bad


def _by_line(decoded: Decoded) -> dict[str, list[Bad]]:
    found: dict[str, list[Bad]] = {}
    for bad in decoded.bad:
        found.setdefault(parts_of(bad.position)[0], []).append(bad)
    return found


def _outcome(entry: QuarantineEntry, position: str, by: Source, bad: Mapping[str, Sequence[Bad]]) -> Replayed:
    """Return the outcome of an entry whose part is at `position` in what was decoded, whose bad parts are `bad` by their line.

    A record that cannot be read at all is bad at its line, with all of its parts.
    """
    head = parts_of(position)[0]
    here = bad.get(head, ())
    found = next((one for one in here if one.position in (position, head)), None)
    if found is None and entry.parts > 1:  # the rest of many parts with one reason
        found = next((one for one in here if one.reason == entry.reason and one.kind == entry.kind), None)
    if found is None and position == head:  # the record was not readable before, and is now, in parts
        found = next(iter(here), None)
    if found is None:
        return Replayed(id=entry.id, outcome="resolved", reason=entry.reason, detail="", by=by)
    return Replayed(id=entry.id, outcome="bad", reason=found.reason, detail=found.detail, by=by)


def _whole(content: Bytes, rules: Rules) -> bytes | None:
    """Return the whole masked record; None if it was too large to be kept, or if its key is gone."""
    if content.sealed is not None:
        return rules.unseal(content.sealed)
    return None if content.truncated else content.content


def _unavailable(entry: QuarantineEntry, truncated: bool) -> Replayed:
    why = "its kept bytes are truncated" if truncated else "no bytes of it are kept"
    place = f"{entry.origin} does not have the record any more, and " if entry.origin and entry.sender is None else ""
    return Replayed(id=entry.id, outcome="unavailable", reason=entry.reason, detail=f"{place}{why}; send the record again")


def _row(entry: QuarantineEntry, reason: str, detail: str, state: str | None, now: int) -> dict[str, Any]:
    same = ("id", "source", "batch", "position", "kind", "origin", "format", "offset", "length", "digest", "cut", "parts", "user", "sender")
    expires = None if entry.expires is None else int(entry.expires.timestamp() * 1_000_000)
    row = {name: getattr(entry, name) for name in same}
    return row | {"reason": reason, "detail": detail, "state": state, "ingested": now, "expires": expires, "release": release()}
