"""Fakes of the ports `Clock`, `Ledger` and `Artifacts`, and the shared state of all fakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from ratchet.contracts.cycle import Append, Entry, Head, Lease
from ratchet.contracts.errors import Conflict, Fenced, Permanent
from ratchet.contracts.hash_chain import GENESIS, seal_row
from ratchet.contracts.ids import Digest, canonical, digest
from ratchet.contracts.model import ModelRef
from ratchet.contracts.moment import Moment
from ratchet.contracts.schema import check_version

Faults = Callable[[str], None]
"""Called with the name of a fault point, for example "before append"; it may raise an error."""


def no_faults(_where: str) -> None:
    """Default fault hook that never raises."""


class FakeClock:
    """`Clock` whose time advances only by `sleep`."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.time = start
        self.up = 0.0

    def now(self) -> datetime:
        """Return the current simulated time."""
        return self.time

    def moment(self) -> Moment:
        """Return the current simulated moment."""
        return Moment(self.time.timestamp(), "fake", self.up)

    def sleep(self, seconds: float) -> None:
        """Advance the time without blocking."""
        self.time += timedelta(seconds=seconds)
        self.up += seconds

    def set(self, seconds: float) -> None:
        """Set the wall clock forward by `seconds`, or back if they are negative. No time passes."""
        self.time += timedelta(seconds=seconds)


class MemoryLedger:
    """`Ledger` in a dictionary, with the same invariants as the real one."""

    def __init__(self, faults: Faults = no_faults) -> None:
        self.rows: dict[str, list[Entry]] = {}
        self.leases: dict[str, Lease] = {}
        self.faults = faults

    def read(self, stream: str, after: int = 0) -> list[Entry]:
        """Return the rows of the stream after `after`; refuse those of a newer release."""
        rows = self.rows.get(stream, [])[after:]
        for row in rows:
            check_version(row.schema_version, f"row {row.seq} of {stream}")
        return rows

    def streams(self, prefix: str) -> list[str]:
        """Return the sorted stream names with this prefix."""
        return sorted(stream for stream in self.rows if stream.startswith(prefix))

    def lengths(self, streams: Collection[str]) -> dict[str, int]:
        """Return the number of rows of each of these streams that exists."""
        return {stream: len(self.rows[stream]) for stream in streams if self.rows.get(stream)}

    def heads(self) -> list[Head]:
        """Return the last row of every stream, sorted by stream."""
        return [Head(stream=stream, seq=rows[-1].seq, hash=rows[-1].hash) for stream, rows in sorted(self.rows.items()) if rows]

    def append(self, appends: Sequence[Append], lease: Lease | None, at: datetime) -> list[Entry]:
        """Append all rows or none; check the lease epoch and the stream lengths."""
        self.faults("before append")
        if lease is not None and (lease.name not in self.leases or self.leases[lease.name].epoch != lease.epoch):
            raise Fenced(f"the lease {lease.name!r} (epoch {lease.epoch}) was acquired by another process")
        lengths = {append.stream: len(self.rows.get(append.stream, [])) for append in appends}
        for append in appends:
            self.read(append.stream, lengths[append.stream] - 1)
            if lengths[append.stream] != append.after:
                raise Conflict(f"{append.stream} has newer rows than expected")
            lengths[append.stream] += len(append.rows)
        written = []
        for append in appends:
            rows = self.rows.setdefault(append.stream, [])
            for row in append.rows:
                previous = rows[-1].hash if rows else GENESIS
                rows.append(seal_row(append.stream, len(rows) + 1, row, at, lease.epoch if lease else 0, previous))
                written.append(rows[-1])
        self.faults("after append")
        return written

    def acquire(self, name: str, holder: str, ttl: float, now: datetime) -> Lease | None:
        """Acquire the lease unless another holder's lease is still valid."""
        current = self.leases.get(name)
        if current and current.holder != holder and not current.has_ended(ttl, now):
            return None
        epoch = current.epoch + 1 if current else 1
        self.leases[name] = Lease(name=name, holder=holder, epoch=epoch, expires=now + timedelta(seconds=ttl))
        return self.leases[name]

    def holder(self, name: str) -> Lease | None:
        """Return the newest lease of this name."""
        return self.leases.get(name)

    def renew(self, lease: Lease, ttl: float, now: datetime) -> Lease:
        """Extend the lease; raise `Fenced` if its epoch is no longer current."""
        if lease.name not in self.leases or self.leases[lease.name].epoch != lease.epoch:
            raise Fenced(f"the lease {lease.name!r} was acquired by another process")
        self.leases[lease.name] = lease.model_copy(update={"expires": now + timedelta(seconds=ttl)})
        return self.leases[lease.name]

    def release(self, lease: Lease) -> None:
        """End the lease if its epoch is current."""
        if lease.name in self.leases and self.leases[lease.name].epoch == lease.epoch:
            self.leases[lease.name] = lease.model_copy(update={"expires": datetime.fromtimestamp(0, UTC)})


class MemoryArtifacts:
    """`Artifacts` in dictionaries; `fetch` writes no files."""

    def __init__(self) -> None:
        self.content: dict[Digest, bytes] = {}
        self.names: dict[str, Digest] = {}

    def put(self, data: bytes) -> Digest:
        """Store `data` and return its digest."""
        self.content[digest(data)] = data
        return digest(data)

    def put_file(self, path: Path) -> Digest:
        """Store a file's content and return its digest."""
        return self.put(path.read_bytes())

    def take(self, source: BinaryIO, size: int, key: Digest) -> bool:
        """Store the rest of an open file if it has this size and digest."""
        data = source.read()
        return len(data) == size and digest(data) == key and self.put(data) == key

    def put_folder(self, path: Path, follow_links: bool = False) -> Digest:  # noqa: ARG002 -- the fake follows links
        """Store all files and their manifest; return the manifest's digest."""
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return self.put(canonical({"files": {file.relative_to(path).as_posix(): self.put_file(file) for file in files}}))

    def get(self, digest: Digest) -> bytes:
        """Return the content; raise `Permanent` if it does not exist."""
        if digest not in self.content:
            raise Permanent(f"artifact {digest[:12]} does not exist")
        return self.content[digest]

    def fetch(self, digest: Digest, into: Path) -> Path:
        """Return a path below `into` without writing files."""
        return into / digest

    def bind(self, name: str, digest: Digest) -> Digest:
        """Bind the name once; return the bound digest."""
        return self.names.setdefault(name, digest)

    def resolve(self, name: str) -> Digest | None:
        """Return the bound digest, or None."""
        return self.names.get(name)


@dataclass
class FakeWorld:
    """Shared state of the fakes: injected faults, artifacts, and how often each named effect was executed."""

    faults: Faults = no_faults
    effects: Counter[str] = field(default_factory=Counter)
    artifacts: MemoryArtifacts = field(default_factory=MemoryArtifacts)

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Execute an effect that is idempotent by its name, and return its stored result.

        `make` produces the result. After the effect has succeeded once, later calls return the first result. Faults may be injected
        before and after it.
        """
        bound = self.artifacts.resolve(name)
        if bound is None:
            self.faults(f"before {name}")
            self.effects[name] += 1
            bound = self.artifacts.bind(name, self.artifacts.put(make()))
            self.faults(f"after {name}")
        return self.artifacts.get(bound)


def fake_model(name: str) -> ModelRef:
    """Return a model reference without files; all digests are derived from constant text and `name`."""
    return ModelRef(
        weights=digest(name),
        tokenizer=digest("t"),
        chat_template=digest("c"),
        generation_config=digest("g"),
        others=digest("o"),
        files=digest(name),
    )
