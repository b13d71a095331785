"""Files with secrets. They are readable only by their owner, whatever the umask, and complete as soon as they have their name."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ratchet.runtime.artifacts import sync
from ratchet.runtime.file_errors import unwritable


def create_secret(path: Path, content: bytes) -> None:
    """Create the file unless it exists. Of several processes, one wins, and all find the same content afterwards.

    Raises Retryable if the file cannot be written.
    """
    if not path.exists():
        _write(path, content, replace=False)


def replace_secret(path: Path, content: bytes) -> None:
    """Write the file, and replace the former one atomically. Raises Retryable if the file cannot be written."""
    _write(path, content, replace=True)


def _write(path: Path, content: bytes, replace: bool) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                Path(partial).replace(path)
            else:
                with suppress(FileExistsError):
                    path.hardlink_to(partial)
        finally:
            Path(partial).unlink(missing_ok=True)
        sync(path.parent)
    except OSError as error:
        raise unwritable(f"write {path}", error) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock for changes of the file `path`, across processes. Raises Retryable if the lock file cannot be opened."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unwritable(f"open {lock}", error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
