"""Signatures of the router's spans. Only a span with a valid signature is evidence about a version of the line.

The signature is an HMAC-SHA256 over the ids, the start, the end, the outcome and all attributes of the span. Router and ingest share the
key. A router of another package signs its spans with `signature_of`, and sets the attribute SIGNATURE to the result.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from ratchet.contracts.ids import canonical
from ratchet.runtime.secrets.keyring import Key, Keyring

SIGNATURE = "ratchet.signature"
"""Attribute of a span with its signature."""
SPAN_KEYS = "span-keys.json"
"""Name of the key file, which is in the folder of the router's token file."""
_FORM = "ratchet-span-1"
"""Version of the signed form."""


def signed_form(trace: str, span: str, start: int, end: int, failed: bool, attributes: Mapping[str, Any]) -> bytes:
    """Return the bytes that a signature covers.

    `trace` and `span` are ids in lower-case hex, `start` and `end` nanoseconds since the epoch. `failed`: the span has the error status.
    `attributes` are the attributes of the span, of which the signature itself is left out. The values are strings, booleans, integers,
    floats, or lists of these. Raises ValueError for NaN, infinities and unpaired surrogates.
    """
    content = {name: value for name, value in attributes.items() if name != SIGNATURE}
    return canonical([_FORM, trace, span, start, end, failed, content])


def signature_of(form: bytes, key: Key) -> str:
    """Return the signature of `signed_form`: the id of the key, a colon and the HMAC in hex."""
    return f"{key.id}:{_hmac(form, key)}"


def is_signed(form: bytes, signature: str, keys: Keyring) -> bool:
    """Return whether the signature is valid for these bytes and one of the keys."""
    number, _, given = signature.partition(":")
    key = keys.find(int(number)) if number.isdecimal() and number.isascii() and len(number) < 10 else None
    return key is not None and given.isascii() and hmac.compare_digest(_hmac(form, key), given)


def _hmac(form: bytes, key: Key) -> str:
    return hmac.new(bytes.fromhex(key.secret), form, hashlib.sha256).hexdigest()
