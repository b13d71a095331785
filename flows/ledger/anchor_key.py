"""Ed25519 key that signs the exports of the ledger's heads (RFC 8032). It is a file outside the database.

The public key in the file `KEY.pub` is sufficient for a verification on another machine.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.contracts.errors import ConfigError
from ratchet.runtime.file_errors import unwritable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PUBLIC = ".pub"
"""Suffix of the file with the public key."""


class AnchorKey:
    """The key in the PEM file `path`: a private key, or a public key, with which exports can only be verified."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Return whether the file exists."""
        return self.path.exists()

    def ensure(self) -> None:
        """Write a new private key with mode 0600 unless the file exists, and the public key next to it unless that file exists.

        Raises Retryable if a file cannot be written.
        """
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            if not self.path.exists():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                new = Ed25519PrivateKey.generate().private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
                with suppress(FileExistsError):  # another process wrote its key first
                    write_new(self.path, new, 0o600)
            public = self.path.with_name(self.path.name + PUBLIC)
            if isinstance(key := self._load(), Ed25519PrivateKey) and not public.exists():
                with suppress(FileExistsError):
                    write_new(public, key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo), 0o644)
        except OSError as error:
            raise unwritable(f"write the anchor key {self.path}", error, "name a writable file in RATCHET_ANCHOR_KEY") from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold an exclusive lock on the key, so that one process exports at a time. Waits for another process."""
        with self.path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def sign(self, content: bytes) -> str:
        """Return the signature of `content` as hexadecimal text.

        Raises ConfigError if the file contains no private key, or if others than its owner can read it.
        """
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if stat.S_IMODE(self.path.stat().st_mode) & 0o077:
            raise ConfigError(f"the anchor key {self.path} can be read by others than its owner; run chmod 600 {self.path}")
        key = self._load()
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"{self.path} contains a public key, which cannot sign; name the file with the private key")
        return key.sign(content).hex()

    def verifies(self, content: bytes, signature: str) -> bool:
        """Return whether `signature` is this key's signature of `content`. Raises ConfigError if the file contains no Ed25519 key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = self._load()
        public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
        try:
            public.verify(bytes.fromhex(signature), content)
        except (InvalidSignature, ValueError):
            return False
        return True

    def _load(self) -> Ed25519PrivateKey | Ed25519PublicKey:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

        try:
            content = self.path.read_bytes()
            key = form.load_pem_public_key(content) if b"PUBLIC KEY" in content else form.load_pem_private_key(content, None)
        except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"cannot read the anchor key {self.path}: {error}; restore the file from a copy") from error
        if not isinstance(key, Ed25519PrivateKey | Ed25519PublicKey):
            raise ConfigError(f"{self.path} contains no Ed25519 key; name another file")
        return key


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a new file, which has its name only when it is complete. Raises FileExistsError if it exists, and OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(partial)
    finally:
        partial.unlink(missing_ok=True)
