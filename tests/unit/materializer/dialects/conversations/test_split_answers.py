"""Answers that exporters write in pieces, with pieces missing, or with other texts: read whole, or quarantined where a piece is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.conversation import answer_message
from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.dialects.exports.litellm import record_of
from ratchet.materializer.dialects.values import consent
from tests.unit.materializer.records import T0, attribute, batch, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
NOTHING = {"gen_ai__input__messages": None, "gen_ai__output__messages": None, "gen_ai__response__id": None}
CITIES = ("Oslo", "Bergen")


def read(values: dict[str, Any]) -> Decoded:
    item = span(1, **NOTHING)
    item["attributes"] += [
        attribute(key, value if isinstance(value, str | int | bool) else json.dumps(value)) for key, value in values.items()
    ]
    return decode(batch(spans(item)), LIMITS)


def row_of(values: dict[str, Any]) -> dict[str, Any]:
    found = read(values)
    assert [(bad.reason, bad.detail) for bad in found.bad] == []
    [row] = found.traces
    return row


def told(messages: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    return [(one["role"], one["content"], [call["function"]["name"] for call in one.get("tool_calls", [])]) for one in messages]


def part_of_call(city: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": f"call_{city}", "name": f"weather_{city}", "arguments": {"city": city}}


def result_of(city: str, value: Any) -> dict[str, Any]:
    return {"role": "tool", "parts": [{"type": "tool_call_response", "id": f"call_{city}", "response": value}]}


def texts(*values: str) -> list[dict[str, Any]]:
    return [{"type": "text", "content": value} for value in values]


def otel(asked: list[dict[str, Any]], answered: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    said = [{"role": "assistant", "parts": answered or texts("Sunny.")}]
    question = [{"role": "user", "parts": texts("Weather?")}]
    return {"gen_ai.input.messages": [*question, *asked], "gen_ai.output.messages": said, **more}


WHOLE = [
    ("user", "Weather?", []),
    ("assistant", "Let me look.", ["weather_Oslo", "weather_Bergen"]),
    ("tool", "rain", []),
    ("tool", "sun", []),
]


def test_the_calls_of_one_answer_in_several_messages_are_one_answer() -> None:
    pieces = [texts("Let me look."), *[[part_of_call(city)] for city in CITIES]]
    asked = [{"role": "assistant", "parts": parts} for parts in pieces] + [result_of("Oslo", "rain"), result_of("Bergen", "sun")]
    assert told(json.loads(row_of(otel(asked))["messages"])) == WHOLE


def indexed(*messages: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"openinference.span.kind": "LLM", "llm.output_messages.0.message.role": "assistant"}
    values["llm.output_messages.0.message.content"] = "Sunny."
    for place, message in enumerate(messages):
        values |= {f"llm.input_messages.{place}.message.{key}": value for key, value in message.items()}
    return values


def indexed_call(city: str) -> dict[str, Any]:
    start = "tool_calls.0.tool_call"
    named = {f"{start}.id": f"call_{city}", f"{start}.function.name": f"weather_{city}", f"{start}.function.arguments": "{}"}
    return {"role": "assistant", **named}


def test_openinference_numbers_the_items_of_an_answer_and_its_reasoning() -> None:
    thought = {"contents.0.message_content.type": "reasoning", "contents.0.message_content.text": "Rain is likely."}
    results = [
        {"role": "tool", "tool_call_id": f"call_{city}", "content": value} for city, value in zip(CITIES, ("rain", "sun"), strict=True)
    ]
    asked = [{"role": "user", "content": "Weather?"}, {"role": "assistant", **thought}, {"role": "assistant", "content": "Let me look."}]
    row = row_of(indexed(*asked, *map(indexed_call, CITIES), *results))
    assert told(json.loads(row["messages"])) == WHOLE


def test_two_answers_of_a_chat_request_stay_two() -> None:
    asked = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "Let me look."}, indexed_call("Oslo")]
    result = {"role": "tool", "tool_call_id": "call_Oslo", "content": "rain"}
    body = {"messages": [{"role": "user", "content": "Weather?"}] * 4}
    row = row_of(indexed(*asked, result) | {"input.value": body})
    assert [one["role"] for one in json.loads(row["messages"])] == ["user", "assistant", "assistant", "tool"]


def langchain(*parts: Any) -> dict[str, Any]:
    message = {
        "lc": 1,
        "type": "constructor",
        "id": ["AIMessage"],
        "kwargs": {"content": list(parts), "type": "ai", "response_metadata": {"id": "resp_1"}},
    }
    return {"generations": [[{"text": "Sunny.", "type": "ChatGeneration", "message": message}]], "llm_output": None, "type": "LLMResult"}


@pytest.mark.parametrize(
    ("left_out", "whole"), [({"type": "reasoning", "id": "rs_1", "summary": []}, True), ({"type": "audio", "data": "AA"}, False)]
)
def test_a_part_that_openinference_leaves_out_of_an_answer(left_out: dict[str, Any], whole: bool) -> None:
    values = indexed({"role": "user", "content": "Weather?"})
    values.pop("llm.output_messages.0.message.content")
    start = "llm.output_messages.0.message.contents.1.message_content"
    body = langchain(left_out, {"type": "text", "text": "Sunny."})
    values |= {f"{start}.type": "text", f"{start}.text": "Sunny.", "output.value": body, "output.mime_type": "application/json"}
    found = read(values)
    if whole:
        assert (found.traces[0]["answer"], found.traces[0]["response_id"]) == ("Sunny.", "resp_1")
    else:
        assert [bad.reason for bad in found.bad] == ["lost_messages"]


def as_item(city: str) -> str:
    return json.dumps(
        {"type": "function_call", "call_id": f"call_{city}", "name": f"weather_{city}", "arguments": "{}", "id": f"fc_{city}"}
    )


@pytest.mark.parametrize("role", ["assistant", "unknown"])
def test_openllmetry_repeats_items_of_an_answer_as_texts(role: str) -> None:
    thought = json.dumps({"id": "rs_1", "type": "reasoning", "summary": []})
    parts = [*texts(thought, "Let me look.", as_item("Oslo")), part_of_call("Oslo")]
    values = otel([]) | {"gen_ai.output.messages": [{"role": role, "parts": parts}]}
    answer = answer_message(row_of(values)["answer"])
    assert told([answer]) == [("assistant", "Let me look.", ["weather_Oslo"])]


def test_a_text_that_looks_like_an_item_of_another_call_stays() -> None:
    answer = answer_message(row_of(otel([], [*texts(as_item("Bergen")), part_of_call("Oslo")]))["answer"])
    assert answer["content"] == as_item("Bergen")
    assert (
        answer_message(row_of(otel([], texts('{"type": "reasoning", "text": "x"}')))["answer"])["content"]
        == '{"type": "reasoning", "text": "x"}'
    )


@pytest.mark.parametrize(("system", "wanted"), [("strands-agents", "rain"), ("openai", '[{"text":"rain"}]')])
def test_strands_writes_the_result_of_a_tool_as_parts(system: str, wanted: str) -> None:
    asked = [{"role": "assistant", "parts": [part_of_call("Oslo")]}, result_of("Oslo", [{"text": "rain"}])]
    row = row_of(otel(asked, **{"gen_ai.provider.name": system}))
    assert json.loads(row["messages"])[-1]["content"] == wanted


def test_strands_writes_reasoning_beside_a_call() -> None:
    thought = {"reasoningContent": {"reasoningText": {"text": "Rain is likely."}}}
    use = {"toolUse": {"toolUseId": "t", "name": "weather", "input": {}}}
    result = {"toolResult": {"toolUseId": "t", "content": [{"text": "rain"}]}}
    names = {"user": {"text": "Weather?"}, "assistant": [thought, use], "tool": [result]}
    events = [
        {"name": f"gen_ai.{role}.message", "attributes": [attribute("content", json.dumps(value if isinstance(value, list) else [value]))]}
        for role, value in names.items()
    ]
    events.append({"name": "gen_ai.choice", "attributes": [attribute("message", json.dumps([thought, {"text": "Sunny."}]))]})
    [row] = decode(batch(spans(span(1, events=events, **NOTHING))), LIMITS).traces
    assert told(json.loads(row["messages"])) == [("user", "Weather?", []), ("assistant", "", ["weather"]), ("tool", "rain", [])]
    assert row["answer"] == "Sunny."


def test_a_user_message_without_its_parts_is_lost() -> None:
    values = {"gen_ai.input.messages": [{"role": "system", "parts": texts("Be brief.")}, {"role": "user", "parts": []}]}
    assert [bad.reason for bad in read(otel([]) | values).bad] == ["empty_message"]


def test_the_agents_sdk_writes_a_streamed_answer_as_a_list_with_one_response() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}", "provider_data": {"model": "m"}}
    body = [{"id": "__fake_id__", "object": "response", "status": None, "output": [call], "tools": []}]
    values = {"openinference.span.kind": "LLM", "input.value": [{"role": "user", "content": "Weather?"}]}
    row = row_of(values | {"output.value": body, "output.mime_type": "application/json"})
    assert told([answer_message(row["answer"])]) == [("assistant", "", ["weather"])]
    assert row["response_id"] is None


def test_langfuse_writes_the_consent_the_model_and_the_usage_in_forms_of_its_own() -> None:
    values = {
        "langfuse.observation.type": "generation",
        "langfuse.observation.input": [{"role": "user", "content": "Weather?"}],
        "langfuse.observation.output": {"role": "assistant", "content": "Sunny."},
        "langfuse.observation.model.name": "large",
        "langfuse.observation.usage_details": {"prompt_tokens": 21, "completion_tokens": 3},
        "langfuse.trace.metadata.consent": '"true"',
    }
    item = span(1, gen_ai__request__model=None, metadata__consent=None, **NOTHING)
    item["attributes"] += [attribute(key, value if isinstance(value, str) else json.dumps(value)) for key, value in values.items()]
    [row] = decode(batch(spans(item)), Limits(LIMITS.now, False, consent_places=("langfuse.trace.metadata",))).traces
    assert (row["consent"], row["model"], row["input_tokens"], row["output_tokens"]) == (True, "large", 21, 3)
    assert row["answer"] == "Sunny."


@pytest.mark.parametrize(("value", "wanted"), [('"true"', True), ('"1"', True), ('"false"', False), ('"yes"', False), ('""', False)])
def test_consent_may_be_the_json_text_of_a_text(value: str, wanted: bool) -> None:
    assert consent(value) is wanted


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"id": "chatcmpl-1", "choices": []}, "chatcmpl-1"),
        ({"id": "msg_1", "type": "message", "content": []}, "msg_1"),
        ({"id": "7", "title": "An answer in JSON"}, None),
        ([{"id": "a"}, {"id": "b"}], None),
        ("no JSON", None),
    ],
)
def test_the_id_of_the_response_is_that_of_the_body_of_a_reply(body: Any, wanted: str | None) -> None:
    values = indexed({"role": "user", "content": "Weather?"})
    assert row_of(values | {"output.value": body, "output.mime_type": "application/json"})["response_id"] == wanted


def test_the_user_of_a_litellm_payload_is_that_of_the_request() -> None:
    payload = {"id": "a", "startTime": 1.0, "model_parameters": {"user": "ada"}, "metadata": {"user_api_key_user_id": "service"}}
    assert record_of(payload)["user_id"] == "ada"
    assert record_of(payload | {"end_user": "eva"})["user_id"] == "eva"
