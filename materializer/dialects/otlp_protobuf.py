"""Converts protobuf requests to their JSON form, as `google.protobuf.json_format.MessageToDict` does, several times faster.

OTLP has no maps, no wrapper types and no numbers with 32 bits of precision, which MessageToDict treats in special ways.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from ratchet.materializer.dialects.otlp_attributes import ReadAttributes

Convert = Callable[[Any], Any]
_IS_KNOWN = {field.name for field in KeyValue.DESCRIPTOR.fields} <= {"key", "value", "key_strindex"}
"""Whether an attribute has the fields that `_key_value` knows. A later version of the library may have more."""
_STRINDEX = "key_strindex" in KeyValue.DESCRIPTOR.fields_by_name
_WHOLE = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def json_form(message: Message) -> dict[str, Any]:
    """Return the JSON form of a message, with whole numbers of 64 bits as text, bytes in base64 and enums as numbers."""
    fields = _fields(message.DESCRIPTOR)
    made = {}
    for field, value in message.ListFields():
        name, convert = fields[field.number]
        made[name] = value if convert is None else convert(value)
    return made


@cache
def _fields(descriptor: Descriptor) -> dict[int, tuple[str, Convert | None]]:
    """Return for each number of a field its name in JSON, and how its value is converted; None: not at all."""
    return {field.number: (field.json_name, _conversion(field)) for field in descriptor.fields}


def _conversion(field: FieldDescriptor) -> Convert | None:
    one = _of_one(field)
    if not field.is_repeated:
        return one
    if one is _key_value:
        return _key_values
    return list if one is None else lambda values: [one(value) for value in values]


def _key_value(message: Any) -> dict[str, Any]:
    """Convert an attribute. Most of them are text, a boolean or a whole number."""
    return _key_values([message])[0]


def _key_values(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """Convert attributes to their JSON form. If all values are texts, truths or whole numbers, `read` of the result has them, too."""
    listed, read, is_read = ReadAttributes(), dict[str, Any](), True
    for message in messages:
        if _STRINDEX and message.key_strindex:
            listed.append(json_form(message))
            is_read = False
            continue
        key, value = message.key, message.value
        # Each access costs as much as a dictionary.
        if key and (inner := value.string_value):
            made: Any = {"stringValue": inner}
        else:
            kind = value.WhichOneof("value")
            if kind == "string_value":
                inner, made = "", {"stringValue": ""}
            elif kind == "int_value":
                inner = value.int_value
                made = {"intValue": str(inner)}
            elif kind == "bool_value":
                inner = value.bool_value
                made = {"boolValue": inner}
            else:
                listed.append(json_form(message))
                is_read = False
                continue
        if key:
            is_read = is_read and key not in read
            read[key] = inner
            listed.append({"key": key, "value": made})
        else:
            listed.append({"value": made})
    listed.read = read if is_read else None
    return listed


def _of_one(field: FieldDescriptor) -> Convert | None:
    if field.message_type is not None and field.message_type.full_name == KeyValue.DESCRIPTOR.full_name and _IS_KNOWN:
        return _key_value
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return json_form
    if field.cpp_type in _WHOLE:
        return str
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _base64
    return _double if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE else None


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _double(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
