"""Signatures of prompts in a file: 500 bytes each, which are most of what a split needs, and seldom needed together."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ratchet.contracts.errors import Retryable
from ratchet.materializer.texts import unnamed_file
from ratchet.materializer.training_sets.near_duplicates import BANDS, PERMUTATIONS, bucket_hashes

_ROW = PERMUTATIONS * 4
"""Bytes of a signature."""
_TOUCHED = 1 << 14
"""Rows that are read before the pages of the file leave the memory of the process: a page or two each."""


class SignatureFile:
    """Rows of signatures (numbers x PERMUTATIONS), with the hashes of their bands, in files without names."""

    def __init__(self, folder: Path) -> None:
        """`folder` is on the disk that gets the files. Raises Retryable if they cannot be written."""
        self._rows, self._bands = unnamed_file(folder), unnamed_file(folder)
        self._folder, self._blocks, self._touched = folder, list[int](), 0
        self._mapped: mmap.mmap | None = None

    def append(self, signatures: npt.NDArray[np.uint32]) -> None:
        """Add rows, before the first one is read. Raises Retryable if the disk is full."""
        if len(signatures):
            self._blocks.append(len(signatures))
            hashes = [bucket_hashes(signatures, band) for band in range(BANDS)]
            for file, data in ((self._rows, signatures.tobytes()), (self._bands, b"".join(one.tobytes() for one in hashes))):
                self._write(file.fileno(), memoryview(data))

    def _write(self, descriptor: int, data: memoryview) -> None:
        try:
            while len(data):
                data = data[os.write(descriptor, data) :]
        except OSError as error:
            raise Retryable(f"cannot keep signatures in a file below {self._folder}: {error}; free disk space, then try again") from error

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(self._blocks)

    def band(self, number: int) -> npt.NDArray[np.uint64]:
        """Return the hash of a band of each row."""
        found, begin = [np.empty(0, dtype=np.uint64)], 0
        for size in self._blocks:
            found.append(np.frombuffer(os.pread(self._bands.fileno(), size * 8, begin + number * size * 8), dtype=np.uint64))
            begin += BANDS * size * 8
        return np.concatenate(found)

    def rows(self, begin: int, end: int) -> npt.NDArray[np.uint32]:
        """Return the rows from `begin` to before `end`."""
        data = os.pread(self._rows.fileno(), (end - begin) * _ROW, begin * _ROW)
        return np.frombuffer(data, dtype=np.uint32).reshape(-1, PERMUTATIONS)

    def __getitem__(self, numbers: npt.NDArray[np.intp]) -> npt.NDArray[np.uint32]:
        """Return the rows with these numbers."""
        if self._mapped is None:
            self._mapped = mmap.mmap(self._rows.fileno(), len(self) * _ROW, access=mmap.ACCESS_READ)
        self._touched += len(numbers)
        found: npt.NDArray[np.uint32] = np.frombuffer(self._mapped, dtype=np.uint32).reshape(-1, PERMUTATIONS)[numbers]
        if self._touched > _TOUCHED:
            self._mapped.madvise(mmap.MADV_DONTNEED)
            self._touched = 0
        return found
