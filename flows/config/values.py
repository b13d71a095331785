"""Checks of single values of a loop file that its types alone do not make.

They apply to loop files only. The settings of a cycle in the ledger come from a file that was checked.
"""

from __future__ import annotations

import re
import types
import typing
import zoneinfo
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ratchet.contracts.loop import TriggerSettings


def wrong_booleans(data: Any, kind: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and message of each `true` or `false` where the settings class `kind` asks for a number, which it would read as 1 or 0."""
    if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(data, Mapping):
        for name, value in data.items():
            field = kind.model_fields.get(str(name))
            if field is not None:
                yield from wrong_booleans(value, field.annotation, f"{key}.{name}" if key else str(name))
    elif isinstance(data, bool):
        if not _allows(kind, bool) and (_allows(kind, int) or _allows(kind, float)):
            yield key, f"{key}: a number is required (found {str(data).lower()})"
    elif isinstance(data, list):
        inner = [one for one in _parts(kind) if typing.get_origin(one) is tuple]
        for number, value in enumerate(data, 1):
            yield from (found for one in inner[:1] for found in wrong_booleans(value, typing.get_args(one)[0], f"{key}[{number}]"))
    elif isinstance(data, Mapping):
        models = [one for one in _parts(kind) if isinstance(one, type) and issubclass(one, BaseModel)]
        yield from (found for one in models[:1] for found in wrong_booleans(data, one, key))


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types of an annotation: those of a union, and the type inside `Annotated`."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for one in typing.get_args(annotation):
            yield from _parts(one)
    elif typing.get_origin(annotation) is typing.Annotated:
        yield from _parts(typing.get_args(annotation)[0])
    else:
        yield annotation


def _allows(annotation: Any, kind: type) -> bool:
    return any(one is kind or one is Any for one in _parts(annotation))


def wrong_trigger(trigger: TriggerSettings) -> Iterator[str]:
    """Yield one text per impossible field of the schedule, and one for an unknown time zone."""
    if trigger.cron is not None:
        for field, (name, low, high, names) in zip(trigger.cron.split(), _FIELDS, strict=True):
            for part in field.split(","):
                wrong = _wrong_part(part, low, high, names)
                if wrong:
                    yield f"trigger.cron: the {name} {field!r} is impossible: {wrong} (found {trigger.cron!r})"
                    break
    try:
        zoneinfo.ZoneInfo(trigger.timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        similar = [zone for zone in sorted(zoneinfo.available_timezones()) if zone.rpartition("/")[2].lower() == trigger.timezone.lower()]
        hint = f"; did you mean {similar[0]!r}?" if similar else ", such as Europe/Berlin"
        yield f"trigger.timezone: {trigger.timezone!r} is not an IANA time zone{hint}"


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 7, _DAYS),
)
"""Fields of a cron expression: name, lowest and highest number, and the names of its values from the lowest on."""
_SPECIAL = re.compile(r"[Ll]|[0-7][Ll]|(?:[0-7]|[a-zA-Z]{3})#[1-5]")
"""The last day of the month, the last or the n-th weekday of the month."""


def _wrong_part(part: str, low: int, high: int, names: tuple[str, ...]) -> str:
    """Return why one part of a cron field is impossible, or empty text."""
    values, slash, step = part.partition("/")
    if slash and not (step.isdecimal() and int(step) > 0):
        return f"{step!r} is not a step of 1 or more"
    if values in ("*", "?") or (high in (31, 7) and _SPECIAL.fullmatch(values)):
        return ""
    ends = [names.index(end.lower()) + low if end.lower() in names else end for end in values.split("-", 1)]
    for end in ends:
        if isinstance(end, str) and not end.isdecimal():
            return f"{end!r} is not a number" + (f" or one of {', '.join(names)}" if names else "")
        if not low <= int(end) <= high:
            return f"{end} is not within {low} to {high}"
    return ""
