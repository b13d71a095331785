"""Writes a new folder whole or not at all, for commands that copy data out of the installation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.contracts.errors import ConfigError


def refuse_existing(folder: Path) -> None:
    """Raise ConfigError if the folder exists: it is not changed."""
    if folder.exists():
        raise ConfigError(f"{folder} exists; name a new folder")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write to, which only its owner can read. It gets the name `folder` if the block ends without an error.

    After an error nothing is left. Raises ConfigError if it cannot be written.
    """
    part = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a command that was killed
        part.mkdir(mode=0o700, parents=True)
        yield part
        part.rename(folder)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
