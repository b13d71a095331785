"""Whether two answers say the same and differ in their form only, so that neither is better than the other."""

from __future__ import annotations

import json
from functools import lru_cache

from ratchet.contracts.ids import canonical, normalise

_ENDS = " .,;:!?。"
"""Characters at the end of a text that do not count."""
_VALUE = tuple("{[-0123456789")
"""Beginnings of JSON whose equal values have several forms."""
_EXACT = 2.0**53


def is_same_answer(one: str, other: str) -> bool:
    """Return whether two answers are equal JSON values, or equal but for upper case, white space and punctuation at the end."""
    if _plain(one) == _plain(other):
        return True
    value = _value(one)
    return value is not None and value == _value(other)


@lru_cache(maxsize=64)
def _plain(text: str) -> str:
    plain = normalise(text)
    return plain.rstrip(_ENDS) or plain


@lru_cache(maxsize=64)
def _value(text: str) -> bytes | None:
    """Return the canonical form of JSON, in which 1 and 1.0 are one number; None for another text."""
    text = text.strip()
    if not text.startswith(_VALUE):
        return None
    try:
        return canonical(json.loads(text, parse_float=_number))
    except (ValueError, RecursionError):
        return None


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < _EXACT else number
