"""Texts of traces outside of memory: frames hold a short key for each text, and the texts are in a file.

Prompts and answers are most of a lake's bytes. The rules for which traces may be used, the joins with feedback and the split compare
texts, which keys do as well. Texts are read a part at a time where they are needed: to identify prompts, to score answers, and to write.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import Digest
from ratchet.materializer.lake.arrow import pa

AT_ONCE = 20_000
"""Rows whose texts are in memory together."""
PLACE = "place"
"""Column with the row of a trace in the file."""
_KEY = 12
"""Bytes of a key, which polars stores without a further allocation. Two of a billion texts have the same one with a chance of 6e-12."""
_CHUNK = 1 << 20
_STORED: Mapping[str, str] = {"messages": "messages", "prompt": "messages", "answer": "answer", "tools": "tools"}
"""Column with keys -> column of the lake whose texts they stand for."""

_Number = TypeVar("_Number", bound=np.generic)


def key_of(text: str) -> bytes:
    """Return the key of a text: equal texts have equal keys."""
    return sha256(text.encode()).digest()[:_KEY]


class Texts(Protocol):
    """Where the texts of a frame are."""

    def filled(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the frame with texts in its columns `messages` (or `prompt`), `answer` and `tools`. Nulls stay null."""
        ...


def filled_parts(frame: pl.DataFrame, texts: Texts) -> Iterator[pl.DataFrame]:
    """Yield the rows of the frame with their texts, some at a time."""
    for part in frame.iter_slices(AT_ONCE):
        yield texts.filled(part)


class InMemory:
    """Texts that are in the frames themselves."""

    def filled(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the frame."""
        return frame


def unnamed_file(folder: Path) -> BinaryIO:
    """Return a file without a name on the disk of `folder`, which ends with the process. Raises Retryable if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return cast("BinaryIO", tempfile.TemporaryFile(dir=folder, buffering=0))
    except OSError as error:
        raise _full(folder, error) from error


def digest_open(file: BinaryIO) -> Digest:
    """Return the SHA-256 of an open file. The next byte that is read from it is its first one."""
    seen = sha256()
    file.seek(0)
    while chunk := file.read(_CHUNK):
        seen.update(chunk)
    file.seek(0)
    return seen.hexdigest()


class TextFile:
    """Texts of traces in a file without a name, which the operating system removes with the last reference, also after a crash."""

    def __init__(self, folder: Path) -> None:
        """`folder` is on the disk that gets the file. Raises Retryable if it cannot be written."""
        self._file = unnamed_file(folder)
        self.folder, self._end, self._rows = folder, 0, 0
        self._begins: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in set(_STORED.values())}
        self._lengths: dict[str, list[npt.NDArray[np.int32]]] = {name: [] for name in set(_STORED.values())}

    def keyed(self, traces: pl.DataFrame) -> pl.DataFrame:
        """Store the texts of some rows. Returns the rows with keys in place of texts, and the column PLACE.

        Raises Retryable if the disk is full.
        """
        count = len(traces)
        columns = [pl.int_range(self._rows, self._rows + count, dtype=pl.UInt32, eager=True).alias(PLACE)]
        columns += [self._stored(name, traces[name]) for name in self._begins if name in traces.columns]
        self._rows += count
        return traces.with_columns(columns)

    def _stored(self, name: str, texts: pl.Series) -> pl.Series:
        array = texts.cast(pl.String).rechunk().to_arrow()
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        array = array.cast(pa.large_string())
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1] if len(array) else np.zeros(1, np.int64)
        view = memoryview(data if data is not None else b"")
        places = ends.tolist()
        given = texts.is_not_null().to_list()
        keys = [
            sha256(view[begin:end]).digest()[:_KEY] if is_given else None
            for begin, end, is_given in zip(places, places[1:], given, strict=False)
        ]
        self._begins[name].append(ends[:-1] - ends[0] + self._end)
        self._lengths[name].append(np.diff(ends).astype(np.int32))
        self._write(view[places[0] : places[-1]])
        return pl.Series(name, keys, dtype=pl.Binary)

    def _write(self, data: memoryview) -> None:
        self._end += len(data)
        try:
            while len(data):
                data = data[self._file.write(data) :]
        except OSError as error:
            raise _full(self.folder, error) from error

    def filled(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the frame, which has keys and the column PLACE, with texts in place of keys."""
        places = frame[PLACE].to_numpy()
        return frame.with_columns(self._read(stored, places, frame[name]) for name, stored in _STORED.items() if name in frame.columns)

    def _read(self, stored: str, places: npt.NDArray[np.uint32], keys: pl.Series) -> pl.Series:
        if keys.null_count() == len(keys):
            return pl.Series(keys.name, [None] * len(keys), dtype=pl.String)
        given = keys.is_not_null().to_numpy()
        begins = _whole(self._begins[stored])[places]
        lengths = np.where(given, _whole(self._lengths[stored])[places], 0)
        descriptor, pread = self._file.fileno(), os.pread
        spans = zip(lengths.tolist(), begins.tolist(), strict=True)
        data = b"".join([pread(descriptor, length, begin) for length, begin in spans if length])
        ends = np.zeros(len(keys) + 1, dtype=np.int64)
        np.cumsum(lengths, out=ends[1:])
        valid = None if given.all() else pa.array(given).buffers()[1]
        array = pa.LargeStringArray.from_buffers(len(keys), pa.py_buffer(ends.tobytes()), pa.py_buffer(data), valid)
        found = pl.from_arrow(array)
        assert isinstance(found, pl.Series)
        return found.alias(keys.name)


def _whole(parts: list[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    """Return the parts as one array, and keep only that."""
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0]


def _full(folder: Path, error: OSError) -> Retryable:
    return Retryable(f"cannot keep the texts of traces in a file below {folder}: {error}; free disk space, then try again")
