"""Recognises a full disk as the cause of a failure, and keeps room on it for the result that says so.

A job on a full disk cannot write a result, so its end would look like a kill. It therefore reserves a file at its start, which is deleted
before a result that has no room is written again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from ratchet.contracts.errors import Retryable
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.jobs.job_protocol import IncarnationFile

RESERVED = 64 * 1024
"""Bytes that a job reserves. A result and its folder entry need a few blocks."""
NO_ROOM = 1024 * 1024
"""Free bytes of a volume below which a process that left no result is taken to have died of the full disk."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_WORDS = ("No space left on device", "Disk quota exceeded", "(os error 28)", "(os error 122)", "PytorchStreamWriter failed writing")
"""How libraries word it that raise errors of their own, without a number."""


def is_full_disk(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, says that a disk or the user's quota on it is full."""
    return any(
        (isinstance(one, OSError) and one.errno in _FULL) or (not isinstance(one, OSError) and any(word in str(one) for word in _WORDS))
        for one in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def has_no_room(folder: Path) -> bool:
    """Return whether less than NO_ROOM bytes, or no files, are free on the volume of `folder`. False if that cannot be measured."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return blocks * found.f_frsize < NO_ROOM or (found.f_files > 0 and found.f_ffree == 0)


def full_disk_text(folder: Path) -> str:
    """Return the reason of a failure by a full disk."""
    return f"the disk is full: no room is left on the volume of {folder}; free space there"


def reserve(folder: Path) -> None:
    """Reserve room for a result in the folder of an incarnation. Raises OSError if there is none."""
    path = folder / IncarnationFile.RESERVE
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(os.urandom(RESERVED))  # a file system may compress zeros, or not store them
        file.flush()
        os.fsync(file.fileno())


def release(folder: Path) -> None:
    """Delete the reserved file, if there is one."""
    with contextlib.suppress(OSError):
        (folder / IncarnationFile.RESERVE).unlink()


def write_result(path: Path, data: bytes) -> None:
    """Write a result atomically into the folder of an incarnation, with the reserved room if the disk is full.

    Raises Retryable if writing fails nevertheless.
    """
    try:
        write_atomic(path, data)
    except Retryable as error:
        if not is_full_disk(error):
            raise
        release(path.parent)
        write_atomic(path, data)
