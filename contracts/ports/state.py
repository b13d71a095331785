"""Ports to time and to what is stored: the ledger and the artifacts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from ratchet.contracts.cycle import Append, Entry, Head, Lease
from ratchet.contracts.ids import Digest
from ratchet.contracts.moment import Moment


class Clock(Protocol):
    """Source of time, replaceable in tests and simulations."""

    def now(self) -> datetime:
        """Return the current time as a timezone-aware UTC value."""

    def moment(self) -> Moment:
        """Return the present moment. Durations are measured between moments, because the wall clock may be set."""

    def sleep(self, seconds: float) -> None:
        """Block for the given number of seconds."""
        ...


class Ledger(Protocol):
    """Append-only store of record: hash-chained streams with compare-and-set, and leases."""

    def read(self, stream: str, after: int = 0) -> list[Entry]:
        """Return the rows with a sequence number above `after`, in order. Returns an empty list for an unknown stream.

        Raises `NewerRelease` if a newer release wrote one of these rows.
        """

    def append(self, appends: Sequence[Append], lease: Lease | None, at: datetime) -> list[Entry]:
        """Write all rows of all appends in one transaction, and return the new entries.

        `at` is the timestamp of the entries. `lease` is None for streams that need no lease. Raises `Conflict` if a stream has newer
        rows than expected, `Fenced` if `lease` is no longer the newest, and `NewerRelease` if a newer release wrote the last row of
        a stream. In these cases nothing is written.
        """

    def streams(self, prefix: str) -> list[str]:
        """Return the sorted names of all streams that start with `prefix`."""

    def lengths(self, streams: Collection[str]) -> dict[str, int]:
        """Return the number of rows of each of these streams that exists. The service asks this often, so it must be cheap."""

    def heads(self) -> list[Head]:
        """Return the last row of every stream, sorted by stream, from one consistent view."""

    def acquire(self, name: str, holder: str, ttl: float, now: datetime) -> Lease | None:
        """Acquire a lease with a new epoch for `ttl` seconds. Returns None while the lease of another holder has not ended.

        A lease that ends more than two `ttl` after `now` was granted before the clock was set back, and has ended too.
        """

    def holder(self, name: str) -> Lease | None:
        """Return the newest lease of that name, including an expired one. None if there is no lease."""

    def renew(self, lease: Lease, ttl: float, now: datetime) -> Lease:
        """Extend the lease to `now` plus `ttl` seconds and keep its epoch. Raises `Fenced` if another holder has acquired it."""

    def release(self, lease: Lease) -> None:
        """End the lease immediately. Does nothing if the lease is no longer the newest."""


class Artifacts(Protocol):
    """Store of content-addressed files and folders, and of names that are bound once."""

    def put(self, data: bytes) -> Digest:
        """Store `data` and return its digest."""
        ...

    def put_file(self, path: Path) -> Digest:
        """Store a file and return the digest of its content."""
        ...

    def take(self, source: BinaryIO, size: int, key: Digest) -> bool:
        """Store an open file if it has `size` more bytes with the digest `key`. Return whether it does; otherwise nothing is stored."""
        ...

    def put_folder(self, path: Path, follow_links: bool = False) -> Digest:
        """Store every file below `path` and a manifest {"files": {relative name: digest}}. Returns the digest of the manifest.

        With `follow_links`, a symbolic link counts as the file that it points to; otherwise it raises `Permanent`. Only a folder that the
        operator names may contain links.
        """

    def get(self, digest: Digest) -> bytes:
        """Return the content. Raises `Permanent` if it is missing or does not match its digest."""

    def fetch(self, digest: Digest, into: Path) -> Path:
        """Copy a file or a folder to `into`, verify its content and return `into`.

        Existing files are accepted only if their content is equal. Otherwise raises `Permanent`.
        """

    def bind(self, name: str, digest: Digest) -> Digest:
        """Bind a name once. Returns the digest that the name is bound to, which is the digest of the first call."""

    def resolve(self, name: str) -> Digest | None:
        """Return the digest that `name` is bound to, or None."""
        ...
