"""Reads OTLP attributes, a list of key and AnyValue. Values are converted to Python only on access."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.values import parse_json

MAX_DEPTH = 64
"""Largest nesting depth of an attribute value."""


_OF_ITSELF = frozenset({"stringValue", "boolValue", "bytesValue"})
"""Kinds of values that are their own Python value."""
_TEXT_OR_TRUTH = (str, bool)
_NUMBERED = re.compile(r"(\d{1,6})\.(.+)", re.DOTALL)


class ReadAttributes(list[dict[str, Any]]):
    """A list of entries in its JSON form, with the values that a parser has read already. Nobody changes the list."""

    read: dict[str, Any] | None = None
    """Key -> value of all entries with a key, if no key is repeated and each value is a text, a truth or a whole number."""


class Attributes:
    """Attributes of one span, event or log record. If a key is repeated, its last value counts; `earlier` has the others."""

    def __init__(self, raw: Any) -> None:
        """Read `raw`, a list of entries or None. Entries without a string key are skipped.

        Raises Rejected `wrong_type` if `raw` has another type.
        """
        self._metadata: dict[str, Any] | None = None
        self.is_call: bool | None = None
        """The result of `is_generation`, once it is known."""
        if raw.__class__ is ReadAttributes and raw.read is not None:
            self._set(raw.read)
            return
        if raw is not None and not isinstance(raw, list):
            raise Rejected("wrong_type", f"attributes must be a list, not {type(raw).__name__}")
        pairs = [(item["key"], item.get("value")) for item in raw or () if isinstance(item, dict) and isinstance(item.get("key"), str)]
        self._raw = dict(pairs)
        self._pairs = pairs if len(pairs) > len(self._raw) else []
        self._value: Callable[[Any], Any] = any_value

    def _set(self, values: dict[str, Any]) -> None:
        self._raw, self._pairs, self._value = values, [], _itself

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Attributes:
        """Return attributes that are Python values already, for example those that another system stores with a call."""
        made = cls(None)
        made._set(dict(values))
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __contains__(self, key: str) -> bool:
        return key in self._raw

    def get(self, *keys: str) -> Any:
        """Return the value of the first of `keys` that has one; None if none of them has."""
        held, read = self._raw, self._value
        for key in keys:
            raw = held.get(key)
            if raw is not None and (read is _itself or (raw := read(raw)) is not None):
                return raw
        return None

    def lengths(self) -> list[tuple[str, int]]:
        """Return the keys whose values are texts, and the numbers of their characters."""
        if self._value is _itself:
            return [(key, len(value)) for key, value in self._raw.items() if value.__class__ is str]
        held = ((key, raw.get("stringValue")) for key, raw in self._raw.items() if raw.__class__ is dict)
        return [(key, len(value)) for key, value in held if value.__class__ is str]

    def earlier(self, key: str) -> list[Attributes]:
        """Return the values of a repeated key before its last one, each as attributes with this key alone."""
        return [Attributes([{"key": key, "value": value}]) for name, value in self._pairs if name == key][:-1]

    def raw(self, key: str) -> Any:
        """Return the value of a key as it was received; None if it is missing."""
        return self._raw.get(key)

    def is_unreadable(self, key: str) -> bool:
        """Return whether a key has a value that cannot be read, for example the integer `x`. An empty value can be read."""
        raw = self._raw.get(key)
        if raw is None or self._value(raw) is not None:
            return False
        return not isinstance(raw, dict) or any(inner is not None for inner in raw.values())

    def unreadable_inside(self, key: str) -> Iterator[str]:
        """Yield the dotted keys inside of an object whose values cannot be read, so that `get` has None there."""
        if self._value is any_value:
            yield from _unreadable_inside(self._raw.get(key), "")

    def plain(self) -> dict[str, Any]:
        """Return all attributes as Python values."""
        return {key: self._value(raw) for key, raw in self._raw.items()}

    def metadata(self, name: str) -> Any:
        """Return the attribute `metadata.<name>`, or the key `name` of a `metadata` attribute that holds JSON (OpenInference)."""
        value = self.get(f"metadata.{name}")
        if value is None and "metadata" in self._raw:
            value = self._metadata_object().get(name)
        return value

    def _metadata_object(self) -> dict[str, Any]:
        if self._metadata is None:
            value = self.get("metadata")
            try:
                value = parse_json(value) if isinstance(value, str) else value
            except Rejected:
                value = None
            self._metadata = value if isinstance(value, dict) else {}
        return self._metadata

    def indexed(self, prefix: str) -> list[dict[str, Any]]:
        """Return the flattened list `<prefix>.<i>.<field>` as a list of {field: value}, in the order of i."""
        found = self._numbered(prefix)
        return [found[index] for index in sorted(found)]

    def _numbered(self, prefix: str) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        start = f"{prefix}."
        for key, raw in self._raw.items():
            match = _NUMBERED.fullmatch(key, len(start)) if key.startswith(start) else None
            if match:
                found.setdefault(int(match[1]), {})[match[2]] = self._value(raw)
        return found

    def listed(self, prefix: str) -> list[dict[str, Any]]:
        """As `indexed`. Raises Rejected `lost_messages` if an index is missing, because the exporter has left out an element."""
        found = self._numbered(prefix)
        if sorted(found) != list(range(len(found))):
            raise Rejected("lost_messages", f"{prefix} has {len(found)} elements, and an index among them is missing")
        return [found[index] for index in range(len(found))]


def _itself(value: Any) -> Any:
    return value


def any_value(raw: Any, depth: int = 0) -> Any:
    """Convert an OTLP/JSON AnyValue to a Python value; None if it is empty or unreadable.

    `depth` is the nesting depth of `raw`. Raises Rejected `too_deep` beyond MAX_DEPTH.
    """
    if not isinstance(raw, dict):
        return None
    if depth > MAX_DEPTH:
        raise Rejected("too_deep", f"an attribute has more than {MAX_DEPTH} nesting levels")
    for kind, inner in raw.items():
        if kind in _OF_ITSELF:
            return inner if isinstance(inner, _TEXT_OR_TRUTH) else None
        if kind == "intValue":
            return _whole(inner)
        if kind == "doubleValue":
            return _double(inner)
        if kind == "arrayValue":
            return [any_value(item, depth + 1) for item in _values(inner)]
        if kind == "kvlistValue":
            return {
                item["key"]: any_value(item.get("value"), depth + 1) for item in _values(inner) if isinstance(item, dict) and _keyed(item)
            }
    return None


def _unreadable_inside(raw: Any, path: str) -> Iterator[str]:
    inner = raw if isinstance(raw, dict) else {}
    for item in _values(inner.get("kvlistValue")):
        if isinstance(item, dict) and _keyed(item):
            where = f"{path}.{item['key']}" if path else item["key"]
            if Attributes([item]).is_unreadable(item["key"]):
                yield where
            yield from _unreadable_inside(item.get("value"), where)
    for item in _values(inner.get("arrayValue")):
        yield from _unreadable_inside(item, path)


def _keyed(item: dict[str, Any]) -> bool:
    return isinstance(item.get("key"), str)


def _values(inner: Any) -> list[Any]:
    values = inner.get("values") if isinstance(inner, dict) else None
    return values if isinstance(values, list) else []


def _whole(inner: Any) -> int | None:
    """Read an integer. OTLP/JSON writes 64-bit integers as text, but many exporters write plain numbers."""
    try:
        return int(inner) if isinstance(inner, int) or (isinstance(inner, str) and len(inner) < 25) else None
    except ValueError:
        return None


def _double(inner: Any) -> float | None:
    try:
        value = float(inner)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None
