"""Reads single values that applications write loosely: times, counts, consent, text. A value that decides a record's place
and cannot be read is Rejected; a value that merely describes it becomes None. Knows no format."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

import orjson

from contracts.errors import Rejected

MAX_TEXT_BYTES = 131_072
"""Of prompt and answer together, UTF-8."""

DAY_US = 86_400_000_000
EARLIEST_US = 946_684_800_000_000  # 2000-01-01: an earlier start is a clock or a unit gone wrong
_SECONDS_BELOW = 10**11
_MOST_TOKENS = 1 << 40
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}")


def moment(value: Any) -> int:
    """Microseconds since the epoch, from a number or digits in s, ms, us or ns (told apart by magnitude), or from ISO 8601.

    A time without a zone is UTC. Rejected `bad_timestamp` where it is absent, unreadable, or before 2000.
    """
    micros = _iso(value) if isinstance(value, str) and not value.strip().isdecimal() else _epoch(value)
    if micros < EARLIEST_US:
        raise Rejected("bad_timestamp", "before the year 2000")
    return micros


def start(value: Any, now: int) -> int:
    """Like `moment`, for the start of a call: Rejected `future_timestamp` where it lies more than a day ahead of `now`."""
    micros = moment(value)
    if micros > now + DAY_US:
        raise Rejected("future_timestamp", "more than a day ahead")
    return micros


def _epoch(value: Any) -> int:
    if value is None:
        raise Rejected("bad_timestamp", "absent")
    if isinstance(value, float) and math.isfinite(value):
        if abs(value) < _SECONDS_BELOW:
            return int(value * 1_000_000)
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or len(str(value)[:30]) > 25:
        raise Rejected("bad_timestamp", f"a {type(value).__name__} that is no time")
    whole = int(value)
    for bound, factor, divisor in ((_SECONDS_BELOW, 1_000_000, 1), (10**14, 1_000, 1), (10**17, 1, 1), (10**20, 1, 1_000)):
        if whole < bound:
            return whole * factor // divisor
    raise Rejected("bad_timestamp", "beyond nanoseconds of this era")


def _iso(text: str) -> int:
    try:
        parsed = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Rejected("bad_timestamp", "neither a number nor ISO 8601") from None
    try:
        zoned = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
        delta = zoned - datetime.fromtimestamp(0, UTC)
    except OverflowError:
        raise Rejected("bad_timestamp", "out of range") from None
    return delta.days * DAY_US + delta.seconds * 1_000_000 + delta.microseconds


def duration_ms(begin: int, end: Any) -> float | None:
    """Milliseconds from `begin` (microseconds) to `end`; None where the end is absent, unreadable or earlier."""
    try:
        span = moment(end) - begin
    except Rejected:
        return None
    return span / 1000 if span >= 0 else None


def count(value: Any) -> int | None:
    """A number of tokens: a whole number of at least 0, also as text."""
    found = number(value)
    if found is None or found < 0 or found > _MOST_TOKENS or found != int(found):
        return None
    return int(found)


def number(value: Any) -> float | None:
    """A finite number, also as text; a boolean is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def consent(value: Any) -> bool | None:
    """True for a clear yes (true, 1, "true", "1"), None where the record is silent, False for all else."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip().lower() in ("true", "1")
    return isinstance(value, bool | int | float) and value == 1


def name(value: Any) -> str | None:
    """A short identifier as text: user, session, model, region; None where it is absent, empty or no scalar."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return clean(str(value)).strip() or None


def slug(value: Any) -> str | None:
    """A slice: a short plain name, because it becomes part of metric names and reports; None for anything else."""
    found = name(value)
    return found if found and _SLUG.fullmatch(found) else None


def rating(value: Any) -> float:
    """A rating in [0, 1], or true/false. Rejected `bad_value` otherwise."""
    found = float(value) if isinstance(value, bool) else number(value)
    if found is None or not 0 <= found <= 1:
        raise Rejected("bad_value", "a rating lies in [0, 1]")
    return found


def clean(text: str) -> str:
    """Without U+0000, which columns stores and databases choke on."""
    return text.replace("\x00", "") if "\x00" in text else text


def parse(data: bytes | str) -> Any:
    """One JSON value (RFC 8259). Rejected `malformed_json`, `invalid_encoding` or `too_deep`; NaN and half surrogates are malformed."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        message = str(error).lower()
        reason = (
            "too_deep"
            if "recursion" in message
            else "invalid_encoding"
            if "utf-8" in message or "surrogate" in message
            else "malformed_json"
        )
        raise Rejected(reason, message.partition(": line")[0]) from None


def dump(value: Any) -> str:
    """Compact JSON. Rejected `too_deep` or `wrong_type` where it cannot be written."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise Rejected("too_deep" if "recursion" in str(error).lower() else "wrong_type", "cannot be written as JSON") from None


def fits(*texts: str | None) -> None:
    """Rejected `too_large` where the texts together are longer than MAX_TEXT_BYTES."""
    if sum(len(text) for text in texts if text) * 4 <= MAX_TEXT_BYTES:  # no character takes more than four bytes
        return
    size = sum(len(text.encode()) for text in texts if text)
    if size > MAX_TEXT_BYTES:
        raise Rejected("too_large", f"prompt and answer have {size} bytes, the limit is {MAX_TEXT_BYTES}")
