"""Key files: versioned secret keys. The newest key is used, and the older ones stay valid until they are removed."""

from __future__ import annotations

import secrets
from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.model import Frozen
from ratchet.contracts.schema import parse, stamped
from ratchet.runtime.secrets.files import create_secret, locked, replace_secret
from ratchet.runtime.watched_file import WatchedFile

SETTLED_SECONDS = 600.0
"""Age at which a key is used for signatures. Each verifier has read it by then, also from a Secret that a node mounts."""


class Key(Frozen):
    """A secret key of 256 bits."""

    id: int
    """Number of the key, from 1. It is part of what is computed with the key."""
    secret: str
    """The key in hex."""
    created: AwareDatetime


class Keyring(Frozen):
    """The keys of one file, oldest first."""

    keys: tuple[Key, ...] = ()

    @property
    def newest(self) -> Key | None:
        """Return the key to use, or None if there is no key."""
        return self.keys[-1] if self.keys else None

    def to_sign(self, now: datetime) -> Key | None:
        """Return the newest key that every process has read by now, or the newest of all if all are new. None if there is no key."""
        settled = [key for key in self.keys if (now - key.created).total_seconds() >= SETTLED_SECONDS]
        return settled[-1] if settled else self.keys[0] if self.keys else None

    def find(self, number: int) -> Key | None:
        """Return the key with this id, or None."""
        return next((key for key in self.keys if key.id == number), None)


def ensure_keyring(path: Path, now: datetime) -> None:
    """Create the file with one random key unless it exists. Raises Retryable if it cannot be written."""
    create_secret(path, stamped(Keyring(keys=(_new(1, now),))))


def add_key(path: Path, now: datetime) -> None:
    """Add a key, which is used from now on. Raises ConfigError if the file is missing or damaged."""
    with locked(path):
        known = read_keyring(path)
        replace_secret(path, stamped(Keyring(keys=(*known.keys, _new(known.keys[-1].id + 1, now)))))


def drop_old_keys(path: Path) -> None:
    """Remove all keys except the newest. Raises ConfigError if the file is missing or damaged."""
    with locked(path):
        replace_secret(path, stamped(Keyring(keys=read_keyring(path).keys[-1:])))


def read_keyring(path: Path) -> Keyring:
    """Return the keys of a file. Raises ConfigError if it is missing, damaged or has no key."""
    try:
        known = parse(Keyring, path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"the key file {path} is not readable ({type(error).__name__}); restore it from a backup") from error
    if not known.keys:
        raise ConfigError(f"the key file {path} has no key; restore it from a backup")
    return known


def _new(number: int, now: datetime) -> Key:
    return Key(id=number, secret=secrets.token_hex(32), created=now)


class KeyFile:
    """A key file that another process may change. It is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, Keyring)

    def keys(self) -> Keyring:
        """Return the keys. Without a file there are none. If it is damaged, the last valid keys stay in force."""
        return self._file.current() or Keyring()
