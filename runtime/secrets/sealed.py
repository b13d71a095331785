"""Encrypts bytes with a key of a key file (AES-256-GCM), for content that only Ratchet itself reads again.

Sealed bytes begin with the id of the key (4 bytes, big-endian) and the nonce (12 bytes). Without the key, nobody can read or change them.
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ratchet.runtime.secrets.keyring import Key, Keyring

NONCE = 12
"""Bytes of a nonce, which must be random."""
_HEAD = 4


def seal(data: bytes, key: Key, nonce: bytes) -> bytes:
    """Return `data` encrypted. `nonce` are NONCE random bytes, other ones for each call."""
    head = struct.pack(">I", key.id)
    return head + nonce + _cipher(key).encrypt(nonce, data, head)


def unseal(sealed: bytes, keys: Keyring) -> bytes | None:
    """Return the bytes that were sealed; None if their key has been removed, or if they are damaged."""
    head, nonce = sealed[:_HEAD], sealed[_HEAD : _HEAD + NONCE]
    key = keys.find(struct.unpack(">I", head)[0]) if len(nonce) == NONCE else None
    if key is None:
        return None
    try:
        return _cipher(key).decrypt(nonce, sealed[_HEAD + NONCE :], head)
    except InvalidTag:
        return None


def _cipher(key: Key) -> AESGCM:
    """Return the cipher. Its key is derived, because pseudonyms are computed with the key itself."""
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"ratchet sealed").derive(bytes.fromhex(key.secret))
    return AESGCM(derived)
