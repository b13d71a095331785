"""The conversion of protobuf requests to JSON is that of the protobuf library."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.otlp_protobuf import json_form
from ratchet.materializer.dialects.people.told import told


def _fill(message: Any, rng: random.Random, depth: int) -> None:
    """Set random fields of a message, also to defaults, empty texts and odd numbers."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.4:
            continue
        if field.message_type is not None:
            if depth < 7:
                for _ in range(rng.randint(1, 2) if field.is_repeated else 1):
                    inner = getattr(message, field.name)
                    inner = inner.add() if field.is_repeated else inner
                    inner.SetInParent()
                    _fill(inner, rng, depth + 1)
            continue
        values: Any = {
            field.CPPTYPE_STRING: ("", "text", "안녕", "\x00") if field.type != field.TYPE_BYTES else (b"", b"\x00\xff", b"12345678"),
            field.CPPTYPE_DOUBLE: (0.0, -0.0, 1.5, 1e300, float("nan"), float("inf"), float("-inf")),
            field.CPPTYPE_BOOL: (True, False),
            field.CPPTYPE_ENUM: (0, 1, 2, 77),
        }.get(field.cpp_type, (0, 1, 2**31 - 1))
        if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            values = (0, 1, 2**63 - 1)
        if field.is_repeated:
            getattr(message, field.name).extend(rng.choice(values) for _ in range(2))
        else:
            setattr(message, field.name, rng.choice(values))


@pytest.mark.parametrize("kind", [ExportTraceServiceRequest, ExportLogsServiceRequest])
def test_random_requests_have_the_json_form_of_the_library(kind: type[Any]) -> None:
    for seed in range(60):
        made = kind()
        _fill(made, random.Random(seed), 0)
        read = kind.FromString(made.SerializeToString())
        assert repr(json_form(read)) == repr(MessageToDict(read, use_integers_for_enums=True))


def _span_of(rng: random.Random) -> Any:
    """A span whose attributes are texts, truths and whole numbers, in part also empty, repeated, without a key or of another kind."""
    span = ExportTraceServiceRequest().resource_spans.add().scope_spans.add().spans.add()
    for _ in range(rng.randint(0, 6)):
        key = rng.choice(("user.id", "metadata.consent", "metadata", "gen_ai.request.model", "x") if rng.random() < 0.9 else ("",))
        value = span.attributes.add(key=key).value
        kind = rng.choice(("string_value", "string_value", "int_value", "bool_value", "double_value", "kvlist_value", ""))
        if kind == "kvlist_value":
            value.kvlist_value.values.add(key="consent").value.bool_value = rng.random() < 0.5
        elif kind:
            values: Any = {"string_value": ("", "a", "\x00"), "int_value": (0, -1, 2**63 - 1), "bool_value": (True, False)}
            setattr(value, kind, rng.choice(values.get(kind, (0.0, 0.5, float("nan")))))
    return span


def test_attributes_that_are_read_from_protobuf_have_the_values_of_their_json_form() -> None:
    rng, read = random.Random(3), 0
    for _ in range(600):
        listed = json_form(_span_of(rng)).get("attributes")
        found, plain = Attributes(listed), Attributes(None if listed is None else list(listed))
        read += getattr(listed, "read", None) is not None
        assert list(found) == list(plain)
        for key in plain:
            assert repr(found.get(key)) == repr(plain.get(key))
            assert (key in found, found.is_unreadable(key)) == (key in plain, plain.is_unreadable(key))
            assert list(found.unreadable_inside(key)) == list(plain.unreadable_inside(key))
            assert len(found.earlier(key)) == len(plain.earlier(key))
        assert found.plain() == plain.plain() or "nan" in repr(plain.plain())
        assert told(found) == told(plain)
    assert 50 < read < 550
