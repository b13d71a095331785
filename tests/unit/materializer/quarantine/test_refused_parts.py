"""No bytes of a quarantined record are kept against a refusal, wherever it is written, and its people are never in clear."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Limits
from ratchet.materializer.dialects.people.places import PLACES, PLAIN
from ratchet.materializer.quarantine.excerpt import is_kept, masked_part, part_of, user_of
from tests.unit.materializer.records import T0, attribute, span, spans

LIMITS = Limits(now=T0 // 1000, assume_consent=True)


def hide(subject: str, text: str) -> str:
    return f"{subject}_{len(text)}"


@pytest.mark.parametrize("place", [place.name for place in PLACES])
def test_a_refusal_in_every_place_keeps_no_bytes_and_people_become_pseudonyms(place: str) -> None:
    start = "" if place == PLAIN else f"{place}."
    item = span(1, metadata__consent=None, user__id=None)
    item["attributes"] += [attribute(f"{start}userId", "ada-1815"), attribute(f"{start}session_id", "s-1815")]
    assert is_kept(spans(item), "otlp-json", LIMITS)
    assert user_of(spans(item), "otlp-json", LIMITS, hide) == "u_8"
    kept = json.dumps(masked_part(spans(item), LIMITS, hide, lambda value: value))
    assert "1815" not in kept
    assert "u_8" in kept
    item["attributes"].append(attribute(f"{start}consent", "no"))
    assert not is_kept(spans(item), "otlp-json", LIMITS)


def test_people_in_the_objects_of_a_record_become_pseudonyms() -> None:
    record: dict[str, Any] = {"id": "a", "metadata": {"userId": "ada-1815", "requester_metadata": json.dumps({"end_user": "ada-1815"})}}
    assert "1815" not in json.dumps(masked_part(record, LIMITS, hide, lambda value: value))
    assert not is_kept(record | {"trace": {"metadata": {"consent": False}}}, "jsonl", LIMITS)


def test_a_part_has_the_refusal_of_the_span_above_it() -> None:
    outer = span(2, gen_ai__operation__name="invoke_agent", metadata__consent=False)
    inner = span(3, metadata__consent=None) | {"traceId": outer["traceId"], "parentSpanId": outer["spanId"]}
    other = span(4, metadata__consent=None)
    request = spans(outer, inner, other)
    assert [is_kept(part_of(request, f", span {at}"), "otlp-json", LIMITS) for at in (1, 2)] == [False, True]
