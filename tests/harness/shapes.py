"""The places of an export where a library writes something: keys of attributes, names of events, and keys inside of JSON texts.

A release that writes its spans in another way has other places than the recorded fixtures, also if the dialects still read it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_DEPTH = 5
_OWN = re.compile(r"arguments|\.args|\.input\.|schema|parameters|properties|properties\.|response_cost|model_map_information")
"""Keys below which the names belong to the tools of the script, or to a list of prices."""


@dataclass(frozen=True)
class Change:
    """What a library writes elsewhere than in its fixture."""

    gone: tuple[str, ...]
    new: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.gone or self.new)

    def __str__(self) -> str:
        parts = [f"{len(places)} places {word}: {', '.join(places)}" for word, places in (("gone", self.gone), ("new", self.new)) if places]
        return "; ".join(parts) or "the places of the fixture"


def shape_of(records: Iterable[tuple[str, Any]]) -> frozenset[str]:
    """Return the places of exports, given as (form, record)."""
    return frozenset(
        place for form, record in records for place in (_of_request(record) if form == "otlp-json" else _inside("", record, 0))
    )


def changed(before: frozenset[str], now: frozenset[str]) -> Change:
    """Return the difference of two shapes."""
    return Change(tuple(sorted(before - now)), tuple(sorted(now - before)))


def shape_of_fixture(path: Path) -> frozenset[str]:
    """Return the places of a recorded fixture."""
    with gzip.open(path, "rb") as file:
        return shape_of((form, record) for line in file for form, record in json.loads(line)["records"])


def _of_request(request: Any) -> Iterator[str]:
    for kind, outer, middle, inner in (
        ("span", "resourceSpans", "scopeSpans", "spans"),
        ("log record", "resourceLogs", "scopeLogs", "logRecords"),
    ):
        for holder in request.get(outer, ()):
            for scope in holder.get(middle, ()):
                for item in scope.get(inner, ()):
                    yield from _of_item(kind, item)


def _of_item(kind: str, item: dict[str, Any]) -> Iterator[str]:
    if kind == "log record":
        yield f"event {item.get('eventName', '')}"
        yield from _inside("body", _plain(item.get("body")), 0)
    for event in item.get("events", ()):
        yield f"event {event.get('name')}"
        yield from _attributes(f"event {event.get('name')}", event)
    yield from _attributes(kind, item)


def _attributes(where: str, holder: dict[str, Any]) -> Iterator[str]:
    for one in holder.get("attributes", ()):
        key = _NUMBER.sub("N", one["key"])
        yield f"{where} {key}"
        yield from _inside(f"{where} {key}", _plain(one.get("value")), 0)


def _plain(value: Any) -> Any:
    """Return an OTLP value as JSON; a text that is JSON is parsed."""
    if not isinstance(value, dict):
        return value
    for kind, inner in value.items():
        if kind == "kvlistValue":
            return {one["key"]: _plain(one.get("value")) for one in inner.get("values", ())}
        if kind == "arrayValue":
            return [_plain(one) for one in inner.get("values", ())]
        return inner
    return None


def _inside(where: str, value: Any, depth: int) -> Iterator[str]:
    """Yield the places inside of a value: its keys, and the words that say what a part is."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError:
            return
    if depth >= _DEPTH or _OWN.search(where):
        return
    if isinstance(value, list):
        for item in value:
            yield from _inside(where, item, depth)
    elif isinstance(value, dict):
        for key, item in value.items():
            place = f"{where}.{key}" if where else str(key)
            yield f"{place} = {item}" if key in ("type", "role") and isinstance(item, str) else place
            yield from _inside(place, item, depth + 1)
