"""Forms of single libraries, each built by hand: read whole, or rejected where the record does not say enough."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.conversation import answer_message
from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.materializer.dialects.decode import decode
from tests.unit.materializer.records import T0, attribute, batch, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
NOTHING = {"gen_ai__input__messages": None, "gen_ai__output__messages": None}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
SAID = {"type": "message", "role": "assistant", "id": "m_1", "status": "completed", "content": [{"type": "output_text", "text": "Sunny."}]}
TOOL = {"type": "function", "name": "weather", "description": "", "parameters": {"type": "object", "properties": {}}}


def read(values: dict[str, Any], events: list[Any] | None = None) -> Decoded:
    item = span(1, events=events or [], **NOTHING)
    item["attributes"] += [
        attribute(key, value if isinstance(value, str | int | bool) else json.dumps(value)) for key, value in values.items()
    ]
    return decode(batch(spans(item)), LIMITS)


def conversation(found: Decoded) -> tuple[list[tuple[str, str]], str, list[str]]:
    assert [(bad.reason, bad.detail) for bad in found.bad] == []
    [row] = found.traces
    answer = answer_message(row["answer"])
    calls = [call["function"]["name"] for call in answer.get("tool_calls", [])]
    return [(one["role"], one["content"]) for one in json.loads(row["messages"])], answer["content"], calls


def openinference(asked: dict[int, tuple[str, str]], answered: dict[int, str], **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"openinference.span.kind": "LLM"}
    for place, (role, text) in asked.items():
        values |= {f"llm.input_messages.{place}.message.role": role, f"llm.input_messages.{place}.message.content": text}
    for place, text in answered.items():
        values |= {f"llm.output_messages.{place}.message.role": "assistant", f"llm.output_messages.{place}.message.content": text}
    return values | {key.replace("__", "."): value for key, value in more.items()}


def test_openinference_counts_instructions_that_a_request_does_not_have() -> None:
    body = {"model": "m", "input": "Weather?"}
    reply = {"object": "response", "status": "completed", "output": [SAID], "tools": [TOOL]}
    values = openinference({1: ("user", "Weather?")}, {0: "Sunny."}, input__value=body, output__value=reply)
    assert conversation(read(values)) == ([("user", "Weather?")], "Sunny.", [])
    assert json.loads(read(values).traces[0]["tools"])[0]["function"]["name"] == "weather"


def test_openinference_leaves_reasoning_out_of_the_indexes() -> None:
    body = {"model": "m", "input": [{"role": "user", "content": "Weather?"}, REASONING, SAID, {"role": "user", "content": "And now?"}]}
    reply = {"object": "response", "status": "completed", "output": [REASONING, SAID]}
    asked = {1: ("user", "Weather?"), 3: ("assistant", "Sunny."), 4: ("user", "And now?")}
    found = read(openinference(asked, {1: "Sunny."}, input__value=body, output__value=reply))
    assert conversation(found) == ([("user", "Weather?"), ("assistant", "Sunny."), ("user", "And now?")], "Sunny.", [])


def test_an_agent_whose_body_lacks_the_instructions_keeps_them() -> None:
    body = [{"role": "user", "content": "Weather?"}, REASONING, SAID, {"role": "user", "content": "And now?"}]
    reply = {"object": "response", "status": "completed", "output": [REASONING, SAID]}
    asked = {0: ("system", "Be brief."), 1: ("user", "Weather?"), 3: ("assistant", "Sunny."), 4: ("user", "And now?")}
    found = read(openinference(asked, {1: "Sunny."}, input__value=body, output__value=reply))
    assert conversation(found)[0][:2] == [("system", "Be brief."), ("user", "Weather?")]


@pytest.mark.parametrize(
    ("asked", "body"),
    [
        ({1: ("user", "Weather?")}, None),
        ({1: ("user", "Weather?")}, {"model": "m", "input": "Another question"}),
        ({0: ("user", "Weather?"), 2: ("user", "And now?")}, {"model": "m", "input": [{"role": "user", "content": "And now?"}]}),
    ],
)
def test_a_gap_that_the_body_does_not_explain_is_a_loss(asked: dict[int, tuple[str, str]], body: Any) -> None:
    values = openinference(asked, {0: "Sunny."}) | ({"input.value": body} if body else {})
    assert [bad.reason for bad in read(values).bad] == ["lost_messages"]


def test_openinference_writes_a_call_inside_of_the_contents() -> None:
    start = "llm.output_messages.0.message"
    values = openinference({0: ("user", "Weather?")}, {}) | {
        f"{start}.role": "assistant",
        f"{start}.contents.0.message_content.type": "tool_use",
        f"{start}.contents.0.tool_call.id": "t_1",
        f"{start}.contents.0.tool_call.function.name": "weather",
        f"{start}.contents.0.tool_call.function.arguments": '{"city": "Oslo"}',
    }
    assert conversation(read(values)) == ([("user", "Weather?")], "", ["weather"])


def test_an_image_or_an_item_that_the_indexes_leave_out_is_not_lost() -> None:
    image = {"type": "input_image", "image_url": "https://example.test/cat.png"}
    asked = {1: ("user", "What is it?")}
    body = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, image]}]
    found = read(openinference(asked, {0: "A cat."}, input__value=body))
    [row] = found.traces
    assert [part["type"] for part in json.loads(row["messages"])[0]["content"]] == ["text", "image_url"]
    searched = [
        {"type": "message", "role": "user", "content": "What is it?"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
    ]
    assert len(read(openinference(asked, {0: "A cat."}, input__value=searched)).bad) == 1


def test_a_call_that_the_provider_executes_is_no_function() -> None:
    values = openllmetry("call_1", "call_1") | {
        "gen_ai.completion.0.tool_calls.0.id": "ws_1",
        "gen_ai.completion.0.tool_calls.0.name": "web_search_call",
    }
    assert [bad.reason for bad in read(values).bad] == ["unknown_part"]


@pytest.mark.parametrize("prompts", ['["Weather?"]', ["Weather?"]])
def test_llamaindex_writes_the_prompt_as_a_list(prompts: Any) -> None:
    item = span(1, openinference__span__kind="LLM", output__value="Sunny.", **NOTHING)
    value = (
        {"stringValue": prompts} if isinstance(prompts, str) else {"arrayValue": {"values": [{"stringValue": text} for text in prompts]}}
    )
    item["attributes"].append({"key": "llm.prompts", "value": value})
    assert conversation(decode(batch(spans(item)), LIMITS)) == ([("user", "Weather?")], "Sunny.", [])


def openllmetry(call: str, result: str, more: str | None = None) -> dict[str, Any]:
    calls = [call] if more is None else [call, more]
    values: dict[str, Any] = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Weather?", "gen_ai.prompt.1.role": "assistant"}
    for place, identity in enumerate(calls):
        start = f"gen_ai.prompt.1.tool_calls.{place}"
        values |= {f"{start}.id": identity, f"{start}.name": f"weather_{place}", f"{start}.arguments": "{}"}
    values |= {"gen_ai.prompt.2.role": "tool", "gen_ai.prompt.2.content": "sun", "gen_ai.prompt.2.tool_call_id": result}
    return values | {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Sunny."}


@pytest.mark.parametrize(
    ("values", "read_whole"),
    [
        (openllmetry("fc_8a", "call_xyz"), True),
        (openllmetry("fc_1", "call_1", "fc_2"), True),
        (openllmetry("call_1", "call_1"), True),
        (openllmetry("fc_8a", "call_xyz", "fc_8b"), False),
        (openllmetry("call_1", "call_2"), False),
        (openllmetry("toolu_1", "call_2"), False),
    ],
)
def test_openllmetry_names_calls_by_the_ids_of_their_items(values: dict[str, Any], read_whole: bool) -> None:
    found = read(values)
    assert [bad.reason for bad in found.bad] == ([] if read_whole else ["unpaired_result"])


def test_strands_writes_a_call_as_several_events() -> None:
    def event(**values: Any) -> dict[str, Any]:
        named = {f"gen_ai.{key.replace('__', '.')}": json.dumps(value) for key, value in values.items()}
        return {"name": "gen_ai.client.inference.operation.details", "attributes": [attribute(key, value) for key, value in named.items()]}

    def message(role: str, text: str) -> list[dict[str, Any]]:
        return [{"role": role, "parts": [{"type": "text", "content": text}]}]

    system, asked = (
        event(system_instructions=[{"type": "text", "content": "Be brief."}]),
        event(input__messages=message("user", "Weather?")),
    )
    answered, other = event(output__messages=message("assistant", "Sunny.")), event(output__messages=message("assistant", "Rain."))
    wanted = [("system", "Be brief."), ("user", "Weather?")], "Sunny.", []
    assert conversation(read({}, [system, asked, answered])) == wanted
    assert conversation(read({}, [answered, answered, system, asked])) == wanted
    assert [bad.reason for bad in read({}, [system, asked, answered, other]).bad] == ["not_one_answer"]


def test_a_result_whose_role_is_the_name_of_its_tool() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "weather", "content": "sun"},
    ]
    record = {"id": "a", "traceId": "t", "type": "GENERATION", "startTime": T0, "model": "m", "input": turns, "output": "Sunny."}
    assert conversation(decode(batch(record, kind="jsonl"), LIMITS))[0][2] == ("tool", "sun")
    [bad] = decode(batch(record | {"input": [turns[0], turns[2]]}, kind="jsonl"), LIMITS).bad
    assert bad.reason == "unknown_role"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image-url", "url": "https://example.test/cat.png"},
        {"type": "binary", "media_type": "image/png", "content": "AAAA"},
    ],
)
def test_an_image_stays_a_reference(part: dict[str, Any]) -> None:
    messages = [{"role": "user", "parts": [{"type": "text", "content": "What is it?"}, part]}]
    item = span(1, gen_ai__input__messages=json.dumps(messages))
    [row] = decode(batch(spans(item)), LIMITS).traces
    assert [one["type"] for one in json.loads(row["messages"])[0]["content"]] == ["text", "image_url"]


def test_reasoning_of_another_language_and_a_role_that_a_stream_does_not_know() -> None:
    parts = [{"type": "text", "content": "Sunny."}, {"type": "Microsoft.Extensions.AI.TextReasoningContent", "content": {"text": "Hm"}}]
    item = span(1, "Weather?", gen_ai__output__messages=json.dumps([{"role": "unknown", "parts": parts}]))
    assert conversation(decode(batch(spans(item)), LIMITS)) == ([("user", "Weather?")], "Sunny.", [])
