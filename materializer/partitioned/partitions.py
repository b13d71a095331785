"""Rows in partitions on disk, of which one at a time is in memory.

A join or a group needs only rows with equal keys together. So rows are divided by a hash of the keys, or by ranges of digests if the order
matters, and a step reads one partition after the other. Rows of one partition stay in memory: a small lake needs no disk.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from ratchet.contracts.errors import Retryable
from ratchet.materializer.texts import unnamed_file

ROWS = 100_000
"""Rows of a partition, about. The memory of a step grows with it, and its time with the number of partitions."""
_WAITING = 100_000
"""Rows that are divided at once: each part of them takes half a millisecond to write and to read, however small it is."""
_NUMBER = "partition"
_DIGITS = 4
"""Hexadecimal digits of a digest that decide about its range."""


def partitions_for(rows: int) -> int:
    """Return the number of partitions for so many rows."""
    return 1 + rows // ROWS


def by_hash(*keys: str) -> pl.Expr:
    """Return the number by which rows with equal values in the columns `keys` come into one partition. It holds in this process only."""
    return pl.struct(*keys).hash() if len(keys) > 1 else pl.col(keys[0]).hash()


class Partitions:
    """Rows in a file without a name, which the operating system removes with the last reference, also after a crash."""

    def __init__(self, folder: Path, count: int, none: pl.DataFrame | None = None) -> None:
        """Divide rows into `count` partitions. `folder` is on the disk that gets them, `none` a frame with their columns.

        Raises Retryable if the folder cannot be written.
        """
        self.count = count
        self._folder = folder
        self._file = unnamed_file(folder) if count > 1 else None
        self._end = self._rows = 0
        self._none = none
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self._memory: list[pl.DataFrame] = []
        self._waiting: list[pl.DataFrame] = []

    def add(self, rows: pl.DataFrame, number: pl.Expr) -> None:
        """Add rows. The partition of a row is `number` modulo the number of partitions. Raises Retryable if the disk is full."""
        if self.count == 1:
            self.put(rows, 0)
            return
        self._none = rows.clear() if self._none is None else self._none
        self._waiting.append(rows.with_columns((number % self.count).cast(pl.UInt32).alias(_NUMBER)))
        if sum(map(len, self._waiting)) >= _WAITING:
            self._divide()

    def add_digests(self, rows: pl.DataFrame, column: str) -> None:
        """Add rows by the range of a column with digests: no digest of a partition is less than one of an earlier partition."""
        self.add(rows, range_of(column, self.count))

    def _divide(self) -> None:
        if waiting := self._waiting:
            self._waiting = []
            for (at,), part in pl.concat(waiting).partition_by(_NUMBER, as_dict=True, include_key=False).items():
                self.put(part, int(at))

    def put(self, rows: pl.DataFrame, number: int) -> None:
        """Add rows to one partition. Raises Retryable if the disk is full."""
        self._none = rows.clear() if self._none is None else self._none
        self._rows += len(rows)
        if self._file is None:
            self._memory = [pl.concat([*self._memory, rows])]
        elif len(rows):
            buffer = io.BytesIO()
            rows.write_ipc_stream(buffer, compression="lz4", compat_level=pl.CompatLevel.oldest())  # a view would keep the texts of others
            self._places[number].append((self._end, buffer.tell()))
            self._write(buffer.getbuffer())

    def _write(self, data: memoryview) -> None:
        assert self._file is not None
        try:
            while len(data):
                written = os.pwrite(self._file.fileno(), data, self._end)
                data, self._end = data[written:], self._end + written
        except OSError as error:
            raise Retryable(f"cannot keep rows in a file below {self._folder}: {error}; free disk space, then try again") from error

    def read(self, number: int) -> pl.DataFrame:
        """Return the rows of one partition, in the order in which they were added. `none`, if no rows were added."""
        assert self._none is not None
        self._divide()
        if self._file is None:
            return self._memory[0] if self._memory else self._none
        parts = [io.BytesIO(os.pread(self._file.fileno(), size, begin)) for begin, size in self._places[number]]
        return pl.concat([self._none, *(pl.read_ipc_stream(part) for part in parts)], rechunk=True)

    def __iter__(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of each partition."""
        return map(self.read, range(self.count))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows + sum(map(len, self._waiting))

    def is_empty(self) -> bool:
        """Return whether there is no row."""
        return not len(self)

    def every(self) -> pl.DataFrame:
        """Return all rows in one frame."""
        return pl.concat(self)


def range_of(column: str, count: int) -> pl.Expr:
    """Return the number of the range of a column with digests, if the digests are divided into `count` ranges of one size."""
    first = pl.col(column).str.slice(0, _DIGITS).str.to_integer(base=16, dtype=pl.UInt64)
    found: pl.Expr = first * count // 16**_DIGITS
    return found
