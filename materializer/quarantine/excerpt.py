"""Finds the quarantined part of a record, reads its consent and its user, and masks it, so that it can be kept.

Everything here fails closed: a part whose consent cannot be read, or that cannot be masked, is not kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ratchet.contracts.data.decoding import Limits
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.call_logs import is_part_of_call
from ratchet.materializer.dialects.conversation import is_generation
from ratchet.materializer.dialects.exports.litellm import record_of
from ratchet.materializer.dialects.jsonl import Record
from ratchet.materializer.dialects.langfuse import is_observation, told_by_observation
from ratchet.materializer.dialects.otlp import PLACES_OF_CONSENT
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.people.above import refused_above, told_by_resource
from ratchet.materializer.dialects.people.told import Told, as_object, merged, statement, subject_of, told, unquoted
from ratchet.materializer.dialects.values import dump, person
from ratchet.materializer.quarantine.shown import IDENTITY, PLAIN
from ratchet.runtime.secrets.pseudonyms import Subject
from ratchet.runtime.secrets.span_signature import SIGNATURE

Hide = Callable[[Subject, str], str]
"""Returns the pseudonym of a user or session."""
Mask = Callable[[Any], Any]
"""Returns a JSON value with placeholders in its texts. Raises Rejected if it cannot be searched."""

_PART = re.compile(r", (span|record) (\d+)")
_TEXTUAL = re.compile(
    rb"""(\\*["'][\w.:-]{0,80}?(?i:user|end_?user|session|conversation|thread|chat)[._-]?(?i:id)\\*["']\s*"""
    rb"""(?::|,\s*\\*["']value\\*["']\s*:\s*\{\s*\\*["']\w+\\*["']\s*:)\s*)"""
    rb"""(\\*"[^"]*"?|\\*'[^']*'?|[^\s,"'}\]]+)"""
)
"""A key with the id of a user or a session in a text that is no JSON, alone or as an OTLP attribute, also inside of a text in it."""


def parts_of(position: str) -> tuple[str, str]:
    """Split the position of a bad part into the line or frame and the place within it, for example `line 3` and `, span 2`."""
    head, separator, rest = position.partition(", ")
    return head, separator + rest


def part_of(record: Any, place: str) -> Any:
    """Return the part of a record at a place within it, as a record of its own.

    A part of an OTLP request is a request with one span, or with the log records of one call. Of other records it is the whole record.
    """
    found = _PART.match(place)
    if found is None or not isinstance(record, dict):
        return record
    keys = ("resourceSpans", "scopeSpans", "spans") if found[1] == "span" else ("resourceLogs", "scopeLogs", "logRecords")
    walked = list(_walk(record, *keys))
    at = int(found[2])
    if at >= len(walked):
        return record
    item, resource = walked[at]
    items = [item]
    if found[1] == "span":
        items = [_with_refusal(item, walked)]
    if is_part_of_call(item):
        call = item.get("traceId"), item.get("spanId")
        items = [one for one, _ in walked if is_part_of_call(one) and (one.get("traceId"), one.get("spanId")) == call]
    holder: dict[str, Any] = {keys[1]: [{keys[2]: items}]}
    return {keys[0]: [holder | ({"resource": resource} if resource is not None else {})]}


def _with_refusal(span: Any, spans: list[tuple[Any, Any]]) -> Any:
    """Return a span with the refusal of the spans above it, which its part does not have."""
    if not isinstance(span, dict) or not isinstance(span.get("attributes"), list | None):
        return span
    if not refused_above(spans, is_generation).added_to(Told(), span).refuses():
        return span
    return span | {"attributes": [*(span.get("attributes") or ()), {"key": "ratchet.above.consent", "value": {"boolValue": False}}]}


def place_in_part(place: str) -> str:
    """Return the place that a part has within its own record, the result of `part_of`."""
    return _PART.sub(lambda found: f", {found[1]} 0", place, count=1)


def _walk(request: Mapping[str, Any], outer: str, middle: str, inner: str) -> Iterator[tuple[Any, Any]]:
    """Yield each span or log record with its resource, in the order of the decoder."""
    for holder in _items(request, outer):
        for scope in _items(holder, middle):
            for item in _items(scope, inner):
                yield item, holder.get("resource")


def _items(holder: Any, key: str) -> list[Any]:
    items = holder.get(key) if isinstance(holder, dict) else None
    return items if isinstance(items, list) else []


def is_kept(part: Any, form: str, limits: Limits) -> bool:
    """Return whether the consent in a part allows to keep its content. `form` is the format of its batch.

    A refusal never allows it. Without a statement, it is allowed if the loop file assumes consent. Records of other packages' dialects
    are not kept, because their refusals cannot be read.
    """
    said = _consents(part, form, limits)
    return said is not None and False not in said and (True in said or limits.assume_consent)


def _consents(part: Any, form: str, limits: Limits) -> list[bool | None] | None:
    """Return all statements about consent in the part; None if they cannot be read."""
    if not isinstance(part, dict):
        return None
    try:
        if form.startswith("otlp"):
            return [said for item, resource in _pieces(part) for said in _of_item(item, resource, limits)] or None
        part = record_of(part) if form == "litellm" else part
        if form not in ("jsonl", "langfuse", "litellm"):
            return None
        if is_observation(part):
            return [_said(told_by_observation(part, limits), None, limits, PLACES_OF_CONSENT)]
        record = Record(part, limits.mapping)
        return [True] if record.get("consent_for") is not None else [_said(record.told(), None, limits, ())]  # a statement has no content
    except Rejected:
        return None


def _said(own: Told, shared: Told | None, limits: Limits, default: tuple[str, ...], signed: bool = False) -> bool | None:
    untimed = Told(consents=own.consents), None if shared is None else Told(consents=shared.consents)
    found = statement(*untimed, limits.now, limits, default, signed)
    return None if found is None else found.given


def _pieces(part: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    return [*_walk(part, "resourceSpans", "scopeSpans", "spans"), *_walk(part, "resourceLogs", "scopeLogs", "logRecords")]


def _of_item(item: Any, resource: Any, limits: Limits) -> Iterator[bool | None]:
    if not isinstance(item, dict):
        raise Rejected("wrong_type", "a span must be an object")
    attributes = Attributes(item.get("attributes"))
    # the router's signature does not cover the resource
    yield _said(told(attributes), told_by_resource(resource), limits, PLACES_OF_CONSENT, SIGNATURE in attributes)


def user_of(part: Any, form: str, limits: Limits, hide: Hide) -> str | None:
    """Return the pseudonym of the user whom a part names; None if it names none or cannot be read."""
    try:
        if form.startswith("otlp"):
            both = [merged(told(Attributes(item.get("attributes"))), told_by_resource(resource)) for item, resource in _pieces(part)]
            found = next((one for one in (each.value("user") for each in both) if one), None)
        else:
            part = record_of(part) if form == "litellm" else part
            record = told_by_observation(part, limits) if is_observation(part) else Record(part, limits.mapping).told()
            found = record.value("user")
    except (Rejected, AttributeError, TypeError):
        return None
    return None if found is None else hide("u", found)


def masked_part(part: Any, limits: Limits, hide: Hide, mask: Mask) -> Any:
    """Return a part, masked and with pseudonyms in place of the ids of users and sessions.

    Raises Rejected `masking_failed` if it cannot be searched, or `too_deep`.
    """
    paths: dict[str, Subject] = {limits.mapping.get("user_id", "user_id"): "u", limits.mapping.get("session_id", "session_id"): "s"}
    try:
        return _masked(part, "", paths, hide, mask)
    except Rejected:
        raise
    except Exception as error:  # nothing is kept that was not searched
        raise Rejected("masking_failed", f"the record could not be searched for personal data: {type(error).__name__}") from error


def masked_text(data: bytes, hide: Hide, mask: Mask) -> str:
    """Return the bytes of an unreadable record as masked text, with pseudonyms where ids of users stand at their usual keys."""

    def replaced(found: re.Match[bytes]) -> bytes:
        before, value = found[1], found[2]
        subject: Subject = "u" if b"user" in before.lower() else "s"
        return before + b'"' + hide(subject, _unescaped(value)).encode() + b'"'

    return str(mask(_TEXTUAL.sub(replaced, data).decode(errors="replace")))


def _unescaped(value: bytes) -> str:
    """Return the text of a JSON value that may be cut off or damaged."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    return found if isinstance(found, str) else value.strip(b"\"'\\").decode(errors="replace")


def _masked(value: Any, at: str, paths: Mapping[str, Subject], hide: Hide, mask: Mask) -> Any:
    """Return the value masked. `at` is its dotted key; `paths` are the dotted keys with the id of a user or a session."""
    if isinstance(value, list):
        return [_masked(item, at, paths, hide, mask) for item in value]
    if isinstance(value, str) and (found := as_object(value)):
        return dump(_masked(found, at, paths, hide, mask))  # a JSON document as text, or a printed dictionary, may name a user too
    if not isinstance(value, dict):
        return mask(value)
    attribute = subject_of(value["key"]) if isinstance(value.get("key"), str) else None
    if attribute is not None and isinstance(value.get("value"), dict):
        name = next((person(unquoted(item)) for item in value["value"].values()), None)
        return {"key": value["key"], "value": {"stringValue": hide(attribute, name)} if name else {}}
    made: dict[str, Any] = {}
    for key, item in value.items():
        path = f"{at}.{key}" if at else key
        subject = paths.get(path) or subject_of(path) or subject_of(key)
        if subject is not None and isinstance(item, list):
            made[key] = [hide(subject, name) for one in item if (name := person(one)) is not None]
        elif isinstance(item, dict | list):
            made[mask(key)] = _masked(item, path, paths, hide, mask)
        elif subject is not None:
            name = person(item)
            made[key] = None if name is None else hide(subject, name)
        elif key in PLAIN and (not isinstance(item, str) or IDENTITY.fullmatch(item)):
            made[key] = item
        else:
            made[mask(key)] = _masked(item, path, paths, hide, mask)
    return made
