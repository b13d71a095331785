"""Keyed pseudonyms of users and sessions. Without the key, nobody can compute or test them.

A pseudonym is `u1_` or `s1_` and 128 bits of an HMAC-SHA256 in base32. The number is the id of the key. The key never leaves its file.
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import Literal, TypeAlias

from ratchet.contracts.ids import person_id
from ratchet.runtime.secrets.keyring import Key

Subject: TypeAlias = Literal["u", "s"]
"""A user, or a session."""
_PSEUDONYM = re.compile(r"[us][1-9]\d{0,8}_[a-z2-7]{26}")


def pseudonym(subject: Subject, text: str, key: Key) -> str:
    """Return the pseudonym of a user id or a session id. Ids that are equal as `person_id` have one pseudonym while the key is the same."""
    plain = f"{subject}\x1f{person_id(text)}".encode("utf-8", "surrogatepass")
    mac = hmac.digest(bytes.fromhex(key.secret), plain, "sha256")[:16]
    return f"{subject}{key.id}_{base64.b32encode(mac).decode().rstrip('=').lower()}"


def is_pseudonym(text: str) -> bool:
    """Return whether the text has the form of a pseudonym."""
    return _PSEUDONYM.fullmatch(text) is not None


def pseudonyms_in(text: str) -> list[str]:
    """Return all parts of the text that have the form of a pseudonym, in their order."""
    return _PSEUDONYM.findall(text)
