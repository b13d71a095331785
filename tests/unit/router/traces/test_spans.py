"""Tests of the spans: their attributes, their status, and their content."""

from __future__ import annotations

import json

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from ratchet.router.traces.spans import attributes, call_span, content_values, messages_json, new_ids


def span(error: str | None = None):  # type: ignore[no-untyped-def]
    """Return a chat span, with an error status if `error` is given."""
    return call_span(new_ids(), 1, 2, {"gen_ai.request.model": "m", "none": None}, error)


def test_attributes_keep_their_types() -> None:
    found = {kv.key: kv.value for kv in attributes({"s": "x", "b": True, "i": 3, "f": 0.5, "l": ["a", "b"], "none": None})}
    assert set(found) == {"s", "b", "i", "f", "l"}
    assert (found["s"].string_value, found["b"].bool_value, found["i"].int_value, found["f"].double_value) == ("x", True, 3, 0.5)
    assert [value.string_value for value in found["l"].array_value.values] == ["a", "b"]
    assert found["b"].WhichOneof("value") == "bool_value"


def test_an_error_sets_the_status() -> None:
    assert (span("HTTP 500").status.code, span("HTTP 500").status.message) == (Status.STATUS_CODE_ERROR, "HTTP 500")
    assert span().status.code == Status.STATUS_CODE_UNSET
    assert span().end_time_unix_nano > span().start_time_unix_nano


def test_messages_have_roles_and_parts() -> None:
    assert json.loads(messages_json([{"role": "user", "content": "é"}, {"content": None}])) == [
        {"role": "user", "parts": [{"type": "text", "content": "é"}]},
        {"role": "user", "parts": [{"type": "text", "content": ""}]},
    ]


def test_content_too_large_for_a_trace_is_omitted_and_marked() -> None:
    asked = [{"role": "user", "content": "x" * 300_000}]
    assert content_values(asked, None) == {"ratchet.content_omitted": "too_large"}
    kept = content_values(asked[:0], [{"role": "assistant", "content": "yes"}])
    assert "yes" in str(kept["gen_ai.output.messages"])
    assert "ratchet.content_omitted" not in kept


BROKEN = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{cut"}}


@pytest.mark.parametrize("calls", [{"tool_calls": [{"id": "1"}]}, {"tool_calls": [BROKEN]}, {"function_call": {"name": "f"}}])
def test_content_that_a_trace_can_represent_in_part_only_is_omitted_and_marked(calls: dict[str, object]) -> None:
    question, answer = {"role": "user", "content": "how warm is it?"}, {"role": "assistant", "content": "I look."}
    assert content_values([question], [answer | calls]) == {"ratchet.content_omitted": "unreadable"}
    assert content_values([question, answer | calls, question], [answer]) == {"ratchet.content_omitted": "unreadable"}
    assert "gen_ai.output.messages" in content_values([question], [answer | dict.fromkeys(calls)])


def test_tool_calls_their_results_and_images_are_parts() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    image = {"type": "image_url", "image_url": {"url": "https://example.test/a.png"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    assert [message["parts"] for message in json.loads(messages_json(messages))] == [
        [{"type": "text", "content": "look"}, {"type": "uri", "modality": "image", "uri": "https://example.test/a.png"}],
        [{"type": "tool_call", "id": "c1", "name": "f", "arguments": '{"x": 1}'}],
        [{"type": "tool_call_response", "id": "c1", "response": "sunny"}],
    ]
    tool = {"type": "function", "function": {"name": "f"}}
    assert json.loads(str(content_values(messages, None, [tool])["gen_ai.tool.definitions"])) == [tool]
