"""Reads single values that applications write in loose formats: times, counts, consent and text.

If a required value cannot be read, Rejected is raised. If a descriptive value cannot be read, it becomes None.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

import orjson

from ratchet.contracts.data.decoding import Row
from ratchet.contracts.data.records import is_slice_name
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ids import person_id
from ratchet.materializer.dialects.statement import STATED, Statement

MAX_TEXT_BYTES = 131_072
"""Maximum size of prompt and answer together, in bytes of UTF-8."""

MAX_NAME_BYTES = 1024
"""Maximum size of an identifier in bytes of UTF-8. It is stored in every row, and in the index of known records."""

DAY_US = 86_400_000_000
EARLIEST_US = 946_684_800_000_000  # 2000-01-01: an earlier start means a wrong clock or a wrong unit
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_BELOW = 10**11
_MOST_TOKENS = 1 << 40

_PLAIN, _NUMBERS, _WHOLE = (str, int, float), (bool, int, float), (int, str)
"""Types of values. A tuple is checked several times faster than a union, which is built anew at each call."""


def moment(value: Any) -> int:
    """Return a time in microseconds since the epoch.

    `value` is ISO 8601, or a number or digits in s, ms, us or ns; the magnitude determines the unit. A time without a zone is UTC.
    Raises Rejected `bad_timestamp` if the time is missing, unreadable or before 2000.
    """
    micros = _iso(value) if isinstance(value, str) and not value.strip().isdecimal() else _epoch(value)
    if micros < EARLIEST_US:
        raise Rejected("bad_timestamp", "the time is before the year 2000")
    return micros


def start_time(value: Any, now: int) -> int:
    """Like `moment`, for the start of a call. Raises Rejected `future_timestamp` if it is more than a day after `now` (microseconds)."""
    micros = moment(value)
    if micros > now + DAY_US:
        raise Rejected("future_timestamp", "the time is more than a day in the future")
    return micros


def _epoch(value: Any) -> int:
    if value is None:
        raise Rejected("bad_timestamp", "the time is missing")
    if isinstance(value, float) and math.isfinite(value):
        if abs(value) < _SECONDS_BELOW:
            return int(value * 1_000_000)
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, _WHOLE) or len(str(value)[:30]) > 25:
        raise Rejected("bad_timestamp", f"the value of type {type(value).__name__} is not a time")
    whole = int(value)
    for bound, factor, divisor in ((_SECONDS_BELOW, 1_000_000, 1), (10**14, 1_000, 1), (10**17, 1, 1), (10**20, 1, 1_000)):
        if whole < bound:
            return whole * factor // divisor
    raise Rejected("bad_timestamp", "the number is too large for a time in nanoseconds")


def _iso(text: str) -> int:
    try:
        parsed = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Rejected("bad_timestamp", "the time is neither a number nor ISO 8601") from None
    try:
        zoned = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
        delta = zoned - _EPOCH
    except OverflowError:
        raise Rejected("bad_timestamp", "the time is out of range") from None
    return delta.days * DAY_US + delta.seconds * 1_000_000 + delta.microseconds


def duration_ms(begin: int, end: Any) -> float | None:
    """Return the milliseconds from `begin` (in microseconds) to `end`; None if the end is missing, unreadable or earlier."""
    try:
        span = moment(end) - begin
    except Rejected:
        return None
    return span / 1000 if span >= 0 else None


def token_count(value: Any) -> int | None:
    """Return a number of tokens, given as a number or as text; None if it is not a whole number of at least 0."""
    found = number(value)
    if found is None or found < 0 or found > _MOST_TOKENS or found != int(found):
        return None
    return int(found)


def number(value: Any) -> float | None:
    """Return a finite number, given as a number or as text; None for any other value, including a boolean."""
    if isinstance(value, bool) or not isinstance(value, _PLAIN):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def consent(value: Any) -> bool | None:
    """Return True for explicit consent (true, 1, "true", "1"), None if the value is missing, and False for any other value.

    A text may also be the JSON text of such a value, which is how Langfuse's SDK writes metadata.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip().lower() in ("true", "1", '"true"', '"1"')
    return isinstance(value, _NUMBERS) and value == 1


def stated(value: Any, said: Any, begin: int, now: int) -> Statement | None:
    """Return what a record states about consent: its value `value`, at the time `said` or, without one, at `begin` (microseconds).

    Returns None if the value is missing. Raises Rejected for an invalid time.
    """
    agreed = consent(value)
    return None if agreed is None else Statement(agreed, begin if said is None else start_time(said, now))


def statement_columns(said: Statement | None) -> Row:
    """Return the parts of a trace row that hold what its record states about consent."""
    return {STATED: said, "consent_time": said.time if said and said.given else None}


def name(value: Any) -> str | None:
    """Return an identifier (user, session, model, region) as stripped text; None if it is missing, empty or not a string or number.

    Raises Rejected `too_large` for an identifier of more than MAX_NAME_BYTES.
    """
    found = _plain_text(value)
    if found is not None and len(found.encode()) > MAX_NAME_BYTES:
        raise Rejected("too_large", f"an identifier is longer than {MAX_NAME_BYTES} bytes")
    return found


def person(value: Any) -> str | None:
    """Return the id of a user or a session as text; None if it is missing, empty or not a string or number.

    It may have any length, because only its pseudonym is stored.
    """
    found = _plain_text(value)
    return None if found is None else person_id(found) or None


def short_text(value: Any) -> str | None:
    """Return a reference or correction as stripped text; None if it is missing, empty or not a string or number.

    Raises Rejected `too_large` if it is larger than MAX_TEXT_BYTES.
    """
    found = _plain_text(value)
    fits(found)
    return found


def _plain_text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, _PLAIN):
        return None
    return clean(str(value)).strip() or None


def slug(value: Any) -> str | None:
    """Return the name of a slice; None if it is missing or no valid name."""
    found = _plain_text(value)
    return found if found and is_slice_name(found) else None


_GOOD = frozenset(
    {"like", "liked", "up", "upvote", "thumbs_up", "thumbsup", "thumb_up", "positive", "good", "helpful", "true", "\U0001f44d"}
)
_BAD = frozenset(
    {
        "dislike",
        "disliked",
        "down",
        "downvote",
        "thumbs_down",
        "thumbsdown",
        "thumb_down",
        "negative",
        "bad",
        "unhelpful",
        "false",
        "\U0001f44e",
    }
)


ABOVE_ONE = "rating_scale"
"""Reason of a rating on an unknown scale."""
NAME_THE_SCALE = "state the source's worst and best, such as rating_scale = [1, 5]"


def rating(value: Any, scale: tuple[float, float] | None = None) -> float:
    """Return a rating in [0, 1]; true and words such as `like` are 1, false and words such as `dislike` are 0.

    `scale` is the worst and the best number of the source; None: 0 and 1. Raises Rejected `rating_scale` for a number above 1 if no scale
    is known, and `bad_value` for any other value.
    """
    word = value.strip().lower().replace("-", "_").replace(" ", "_") if isinstance(value, str) else None
    if word in _GOOD or word in _BAD:
        return float(word in _GOOD)
    found = float(value) if isinstance(value, bool) else number(value)
    if found is not None and scale is not None and not isinstance(value, bool):
        found = (found - scale[0]) / (scale[1] - scale[0]) + 0.0  # no negative zero
        if not 0 <= found <= 1:
            raise Rejected("bad_value", f"a rating is outside of the stated scale from {scale[0]:g} to {scale[1]:g}")
    if found is not None and found > 1:
        raise Rejected(ABOVE_ONE, f"a rating is above 1; {NAME_THE_SCALE}")
    if found is None or not 0 <= found <= 1:
        raise Rejected("bad_value", "a rating must be a number from 0 to 1, a boolean, or a word such as like and dislike")
    return found


_SCALE = re.compile(r"(?:^|_)(?:max|min|scale|range|out_of)(?:_|$)", re.IGNORECASE)


def held_rating(value: Any) -> Any:
    """Return what is rated in a feedback object: its `rating`, `score` or `value`; None if these are null. Other values are themselves.

    So are objects with a name or a scale: they may rate something else, or from 1 to 5.
    """
    if not isinstance(value, dict) or any(key == "name" or _SCALE.search(key) for key in value if isinstance(key, str)):
        return value
    keys = [key for key in ("rating", "score", "value") if key in value]
    return value if not keys else next((value[key] for key in keys if value[key] is not None), None)


def clean(text: str) -> str:
    """Remove U+0000, which column stores and databases do not accept."""
    return text.replace("\x00", "") if "\x00" in text else text


def parse_json(data: bytes | str) -> Any:
    """Parse one JSON value (RFC 8259).

    Raises Rejected `malformed_json`, `invalid_encoding` or `too_deep`. NaN and unpaired surrogates are errors.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        message = str(error).lower()
        reason = (
            "too_deep"
            if "recursion" in message or "depth" in message
            else "invalid_encoding"
            if "utf-8" in message or "surrogate" in message
            else "malformed_json"
        )
        told = "not UTF-8, or a surrogate without its pair" if reason == "invalid_encoding" else message.partition(": line")[0]
        raise Rejected(reason, told) from None


def dump(value: Any) -> str:
    """Return `value` as compact JSON. Raises Rejected `too_deep` or `wrong_type` if it cannot be written as JSON."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise Rejected("too_deep" if "recursion" in str(error).lower() else "wrong_type", "the value cannot be written as JSON") from None


def fits(*texts: str | None) -> None:
    """Raise Rejected `too_large` if the texts together are larger than MAX_TEXT_BYTES."""
    if sum(len(text) for text in texts if text) * 4 <= MAX_TEXT_BYTES:  # avoids encoding: a character takes at most four bytes
        return
    size = sum(len(text.encode()) for text in texts if text)
    if size > MAX_TEXT_BYTES:
        raise Rejected("too_large", f"prompt and answer have {size} bytes, the limit is {MAX_TEXT_BYTES}")


def dialect_failed(dialect: str, error: Exception) -> Rejected:
    """Return the reason for a record on which its dialect fails. One record must never stop the others of its batch."""
    return Rejected("dialect_failed", f"dialect {dialect!r} raised {type(error).__name__}")  # the message may quote a user
