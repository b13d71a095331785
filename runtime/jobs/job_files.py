"""Reads files that a job may have written. The service reads run folders only through this module.

A job can replace each file below the folder of its plan, also while the service reads it: by a FIFO, which would block the reader; by a
symbolic link to a file outside; by a folder; by a huge file; or by content of another form. A file is therefore opened without following
links and without blocking, its type and size are checked on the open file, and its content is validated before use. A file that fails is
reported as `BadJobFile`, whose message names the file and the defect. Failures of the disk remain `OSError`. The module imports little, so
that the process that launches a job starts fast.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeGuard

from ratchet.contracts.errors import Permanent

SMALL_BYTES = 1 << 20
"""Maximum size of a JSON document in a run folder."""
MANIFEST_BYTES = 64 << 20
"""Maximum size of the manifest of a checkpoint."""
BEAT_BYTES = 4096
"""Maximum size of a heartbeat."""
HIGHEST_STEP = 2**53
"""Highest step number that is accepted. JSON readers represent larger integers inexactly."""
_DEPTH = 3
"""Number of names at the end of a path that a job can replace by links: run folder, folder of the incarnation, file."""
_BAD = {
    errno.ELOOP: "is a symbolic link or is reached through one",
    errno.ENOTDIR: "is below a file or a symbolic link instead of a folder",
    errno.EISDIR: "is a folder",
    errno.ENXIO: "is a socket or a device",
    errno.ENODEV: "is a socket or a device",
    errno.ENAMETOOLONG: "has a name that is too long",
}
"""Errors of `open` that the content of the folder causes. All others come from the disk or from missing permissions."""


class BadJobFile(Permanent):
    """A file of a job is not what the protocol defines. The message names the file and the defect."""

    def __init__(self, path: Path, defect: str) -> None:
        super().__init__(f"{path.parent.name}/{path.name} {defect}; the job wrote or changed it, so start the job again with trusted code")
        self.path, self.defect = path, defect


@contextlib.contextmanager
def open_job_file(path: Path, depth: int = _DEPTH) -> Iterator[BufferedReader]:
    """Open a regular file for reading, without following links in the last `depth` names of the path and without blocking.

    Raises FileNotFoundError, BadJobFile if it is not a regular file or is reached through a link, and OSError if the disk fails.
    """
    handle = _open(path, depth)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadJobFile(path, "is not a regular file")
    with os.fdopen(handle, "rb") as file:
        yield file


def _open(path: Path, depth: int) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = None
    try:
        *folders, name = path.parts[-depth:]
        folder = os.open(path.parents[depth - 1], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in folders:
            above, folder = folder, None
            try:
                folder = os.open(part, flags | os.O_DIRECTORY, dir_fd=above)
            finally:
                os.close(above)
        return os.open(name, flags | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno in _BAD:
            raise BadJobFile(path, _BAD[error.errno]) from None
        if error.filename is not None:
            error.filename = str(path)
        raise
    finally:
        if folder is not None:
            os.close(folder)


def read_job_file(path: Path, limit: int, depth: int = _DEPTH) -> bytes | None:
    """Return the content of a file of at most `limit` bytes; None if it does not exist. Raises BadJobFile and OSError."""
    try:
        with open_job_file(path, depth) as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    if len(data) > limit:
        raise BadJobFile(path, f"is longer than {limit} bytes")
    return data


def read_job_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file does not exist.

    Raises BadJobFile if the file is not usable, or its content is not an object that can be written as JSON again (NaN, infinite
    numbers, invalid text, deep nesting). Raises OSError if the disk fails.
    """
    data = read_job_file(path, SMALL_BYTES)
    if data is None:
        return None
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadJobFile(path, f"is not valid JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise BadJobFile(path, f"contains a JSON {type(value).__name__} instead of an object")
    return value


def read_tail(path: Path, size: int) -> bytes:
    """Return the last `size` bytes of a file; none if it does not exist. Raises BadJobFile and OSError."""
    try:
        with open_job_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size)
    except FileNotFoundError:
        return b""


def is_there(path: Path) -> bool:
    """Return whether there is anything with this name, also a link without a target."""
    return os.path.lexists(path)


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def modified(path: Path, now: float) -> float | None:
    """Return the modification time of a regular file, at most `now`; None if there is none. Times are seconds since the epoch."""
    try:
        with open_job_file(path) as file:
            return min(os.fstat(file.fileno()).st_mtime, now)
    except (FileNotFoundError, BadJobFile):
        return None


def regular_files(folder: Path, follow_links: bool = False) -> list[Path]:
    """Return the sorted regular files below a folder. Raises Permanent if it contains a link, a FIFO, a socket or a device.

    With `follow_links`, a link to a regular file counts as one. A link to a folder is always refused.
    """
    found = []
    for above, folders, names in os.walk(folder, onerror=_fail):
        for name in (*folders, *names):
            path = Path(above) / name
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) or (follow_links and stat.S_ISLNK(mode) and path.is_file()):
                found.append(path)
            elif not stat.S_ISDIR(mode):
                what = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
                raise Permanent(f"{path} is {what}; replace it by a copy of the file, for example with cp -rL")
    return sorted(found)


def _fail(error: OSError) -> None:
    raise error


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number. A bool is not one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
