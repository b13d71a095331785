"""Keyed pseudonyms of users and sessions. Without the key, nobody can compute or test them.

A pseudonym is `u1_` or `s1_` and 128 bits of an HMAC-SHA256 in base32. The number is the id of the key. The key never leaves its file.
"""

from __future__ import annotations

import hmac
import re
from functools import lru_cache
from typing import Literal, TypeAlias

from ratchet.contracts.ids import person_id
from ratchet.runtime.secrets.keyring import Key

Subject: TypeAlias = Literal["u", "s"]
"""A user, or a session."""
_PSEUDONYM = re.compile(r"[us][1-9]\d{0,8}_[a-z2-7]{26}")


_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS = [first + second for first in _BASE32 for second in _BASE32]
_SHIFTS = range(120, -1, -10)
"""26 characters of base32 (RFC 4648, without padding) are 13 pairs of ten bits."""


def pseudonym(subject: Subject, text: str, key: Key) -> str:
    """Return the pseudonym of a user id or a session id. Ids that are equal as `person_id` have one pseudonym while the key is the same."""
    mac = _keyed(key.secret).copy()
    mac.update(f"{subject}\x1f{person_id(text)}".encode("utf-8", "surrogatepass"))
    bits = int.from_bytes(mac.digest()[:16], "big") << 2
    return f"{subject}{key.id}_{''.join([_PAIRS[bits >> shift & 1023] for shift in _SHIFTS])}"


@lru_cache(maxsize=8)
def _keyed(secret: str) -> hmac.HMAC:
    """Return the HMAC of a key, which is copied for each text: the key is hashed once."""
    return hmac.new(bytes.fromhex(secret), digestmod="sha256")


def is_pseudonym(text: str) -> bool:
    """Return whether the text has the form of a pseudonym."""
    return _PSEUDONYM.fullmatch(text) is not None


def pseudonyms_in(text: str) -> list[str]:
    """Return all parts of the text that have the form of a pseudonym, in their order."""
    return _PSEUDONYM.findall(text)
