"""The conversion of protobuf requests to JSON is that of the protobuf library."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ratchet.materializer.dialects.otlp_protobuf import json_form


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
