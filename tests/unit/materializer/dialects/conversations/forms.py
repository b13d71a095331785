"""One conversation about the weather in the form of every dialect, written by hand from the specifications of the dialects.

`answered` ends with text after two parallel tool calls. `calling` ends with the calls.
"""

from __future__ import annotations

import json
from typing import Any

from ratchet.materializer.dialects.canonical.exchange import Record
from ratchet.materializer.dialects.otlp_attributes import Attributes

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA = {"name": "get_weather", "description": "Current weather", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": SCHEMA}
SYSTEM, QUESTION, ANSWER = "Be brief.", "Weather in Paris and Rome?", "Sunny in Paris, rain in Rome."
CITIES = (("c1", "Paris", "sunny"), ("c2", "Rome", "rain"))


def call(identity: str, city: str) -> dict[str, Any]:
    return {
        "id": identity,
        "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"city": city}, separators=(",", ":"))},
    }


CALLS = [call(identity, city) for identity, city, _ in CITIES]
ASKED = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
CALLING = {"role": "assistant", "content": "", "tool_calls": CALLS}
RESULTS = [{"role": "tool", "content": weather, "tool_call_id": identity} for identity, _, weather in CITIES]
HISTORY = [*ASKED, CALLING, *RESULTS]
FINAL = {"role": "assistant", "content": ANSWER}


def record(attributes: dict[str, Any] | None = None, events: Any = (), asked: Any = None, answered: Any = None) -> Record:
    found = [(name, Attributes.of_values(values)) for name, values in events]
    return Record(Attributes.of_values(attributes or {}), found, asked, answered)


def flat(prefix: str, value: Any) -> dict[str, Any]:
    """Flatten nested lists and objects to dotted keys, as indexed attributes are."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, inner in items for key, leaf in flat(f"{prefix}.{name}", inner).items()}
    return {prefix: value}


# OpenAI chat

CHAT_REQUEST = {"model": "m", "messages": HISTORY, "tools": [TOOL], "temperature": 0}


def completion(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": finish, "message": message}], "usage": {}}


CHUNKS = [
    {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]},
    *(
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": at, "id": one["id"], **piece}]}}]}
        for at, one in enumerate(CALLS)
        for piece in (
            {"function": {"name": "get_weather", "arguments": ""}},
            {"function": {"arguments": one["function"]["arguments"][:5]}},
            {"function": {"arguments": one["function"]["arguments"][5:]}},
        )
    ),
    {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {"object": "chat.completion.chunk", "choices": [], "usage": {"total_tokens": 3}},
]

# OTel GenAI


def otel(message: dict[str, Any]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = (
        [{"type": "text", "content": message["content"]}] if message["content"] and message["role"] != "tool" else []
    )
    for one in message.get("tool_calls", []):
        arguments = json.loads(one["function"]["arguments"])
        parts.append({"type": "tool_call", "id": one["id"], "name": "get_weather", "arguments": arguments})
    if message["role"] == "tool":
        parts = [{"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}]
    return {"role": message["role"], "parts": parts}


def otel_attributes(history: list[dict[str, Any]], answer: dict[str, Any], encode: Any = json.dumps) -> dict[str, Any]:
    return {
        "gen_ai.system_instructions": encode([{"type": "text", "content": SYSTEM}]),
        "gen_ai.input.messages": encode([otel(message) for message in history[1:]]),
        "gen_ai.output.messages": encode([otel(answer) | {"finish_reason": "stop"}]),
        "gen_ai.tool.definitions": encode([{"type": "function", **SCHEMA}]),
    }


def message_events(history: list[dict[str, Any]], answer: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    named = {"system": "gen_ai.system.message", "user": "gen_ai.user.message", "assistant": "gen_ai.assistant.message"}
    events = []
    for message in history:
        own = {"content": message["content"]} if message["content"] else {}
        own |= {"tool_calls": json.dumps(message["tool_calls"])} if message.get("tool_calls") else {}
        own |= {"id": message["tool_call_id"]} if message["role"] == "tool" else {}
        events.append((named.get(message["role"], "gen_ai.tool.message"), own))
    return [*events, ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": json.dumps(answer)})]


# OpenLLMetry and OpenInference


def openllmetry(history: list[dict[str, Any]], answer: dict[str, Any]) -> dict[str, Any]:
    def fields(message: dict[str, Any]) -> dict[str, Any]:
        calls = [{"id": one["id"], **one["function"]} for one in message.get("tool_calls", [])]
        own = {key: message[key] for key in ("role", "content", "tool_call_id") if message.get(key)}
        return own | ({"tool_calls": calls} if calls else {})

    function = SCHEMA | {"parameters": json.dumps(PARAMETERS)}
    return {
        **flat("gen_ai.prompt", [fields(message) for message in history]),
        **flat("gen_ai.completion", [fields(answer) | {"finish_reason": "stop"}]),
        **flat("llm.request.functions", [function]),
    }


def openinference(history: list[dict[str, Any]], answer: dict[str, Any], contents: bool = False) -> dict[str, Any]:
    def fields(message: dict[str, Any]) -> dict[str, Any]:
        calls = [{"tool_call": {"id": one["id"], "function": one["function"]}} for one in message.get("tool_calls", [])]
        own = {key: message[key] for key in ("role", "content", "tool_call_id") if message.get(key)}
        if contents and message["role"] == "user":
            own["contents"] = [{"message_content": {"type": "text", "text": own.pop("content")}}]
        return {"message": own | ({"tool_calls": calls} if calls else {})}

    return {
        "openinference.span.kind": "LLM",
        **flat("llm.input_messages", [fields(message) for message in history]),
        **flat("llm.output_messages", [fields(answer)]),
        "llm.tools.0.tool.json_schema": json.dumps(TOOL),
    }


# Vercel AI SDK


def vercel(history: list[dict[str, Any]], answer: dict[str, Any], arguments: str = "input") -> dict[str, Any]:
    def turned(message: dict[str, Any]) -> dict[str, Any]:
        if message["role"] == "system":
            return message
        if message["role"] == "tool":
            output = {"type": "text", "value": message["content"]} if arguments == "input" else None
            result = {"output": output} if output else {"result": message["content"]}
            return {
                "role": "tool",
                "content": [{"type": "tool-result", "toolCallId": message["tool_call_id"], "toolName": "get_weather", **result}],
            }
        text = [{"type": "text", "text": message["content"]}] if message["content"] else []
        return {"role": message["role"], "content": [*text, *(made(one, json.loads) for one in message.get("tool_calls", []))]}

    def made(one: dict[str, Any], decode: Any) -> dict[str, Any]:
        given = decode(one["function"]["arguments"])
        return {"type": "tool-call", "toolCallId": one["id"], "toolName": "get_weather", arguments: given}

    tool = {"type": "function", "name": "get_weather", "description": "Current weather"}
    schema = {"inputSchema" if arguments == "input" else "parameters": PARAMETERS}
    answers = {"ai.response.text": answer["content"] or None, "ai.response.finishReason": "stop"}
    if answer.get("tool_calls"):
        answers["ai.response.toolCalls"] = json.dumps([made(one, str) for one in answer["tool_calls"]])
    return {
        "ai.operationId": "ai.streamText.doStream",
        "ai.prompt.messages": json.dumps([turned(message) for message in history]),
        "ai.prompt.tools": [json.dumps(tool | schema)],
        **answers,
    }


# LangChain


def langchain(message: dict[str, Any], dumped: bool = False) -> dict[str, Any]:
    kinds = {"system": "system", "user": "human", "assistant": "ai", "tool": "tool"}
    calls = [
        {"name": "get_weather", "args": json.loads(one["function"]["arguments"]), "id": one["id"], "type": "tool_call"}
        for one in message.get("tool_calls", [])
    ]
    own = {"content": message["content"], "additional_kwargs": {}, "response_metadata": {}, "name": None}
    own |= {"tool_calls": calls, "invalid_tool_calls": []} if message["role"] == "assistant" else {}
    own |= {"tool_call_id": message["tool_call_id"], "status": "success"} if message["role"] == "tool" else {}
    if dumped:
        name = {"system": "SystemMessage", "human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage"}[kinds[message["role"]]]
        return {
            "lc": 1,
            "type": "constructor",
            "id": ["langchain", "schema", "messages", name],
            "kwargs": own | {"type": kinds[message["role"]]},
        }
    return own | {"type": kinds[message["role"]]}


def generations(answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "generations": [[{"text": answer["content"], "generation_info": {"finish_reason": "stop"}, "message": langchain(answer, True)}]]
    }


# OpenAI Responses


def response_items(history: list[dict[str, Any]], role_parts: bool = True) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for message in history:
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]})
            continue
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        content = [{"type": kind, "text": message["content"], "annotations": []}] if role_parts else message["content"]
        if message["content"]:
            items.append({"type": "message", "role": message["role"], "content": content, "id": "msg_1"})
        items += [
            {"type": "function_call", "call_id": one["id"], "id": f"fc_{one['id']}", **one["function"]}
            for one in message.get("tool_calls", [])
        ]
    return items


RESPONSE_TOOL = {"type": "function", **SCHEMA, "strict": True}


def response(answer: dict[str, Any]) -> dict[str, Any]:
    items = [{"type": "reasoning", "id": "rs_1", "summary": []}, *response_items([answer])]
    return {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": items,
        "tools": [RESPONSE_TOOL],
        "previous_response_id": None,
    }


# Anthropic and Bedrock


def anthropic_messages(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for message in history:
        if message["role"] == "tool":
            block = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": [{"type": "text", "text": message["content"]}],
            }
            if found[-1]["role"] == "user" and isinstance(found[-1]["content"], list):
                found[-1]["content"].append(block)
            else:
                found.append({"role": "user", "content": [block]})
        elif message["role"] == "assistant":
            found.append({"role": "assistant", "content": blocks(message)})
        elif message["role"] == "user":
            found.append(message)
    return found


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": message["content"]}] if message["content"] else []
    thinking = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
    calls = [
        {"type": "tool_use", "id": one["id"], "name": "get_weather", "input": json.loads(one["function"]["arguments"])}
        for one in message.get("tool_calls", [])
    ]
    return [*thinking, *text, *calls]


ANTHROPIC_TOOL = {"name": "get_weather", "description": "Current weather", "input_schema": PARAMETERS}


def anthropic_request(history: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": "messages-1",
        "system": [{"type": "text", "text": SYSTEM}],
        "messages": anthropic_messages(history),
        "tools": [ANTHROPIC_TOOL],
    }


def anthropic_reply(answer: dict[str, Any]) -> dict[str, Any]:
    return {"id": "msg", "type": "message", "role": "assistant", "content": blocks(answer), "stop_reason": "end_turn", "usage": {}}


def anthropic_events(answer: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"role": "assistant", "content": []}}]
    for at, block in enumerate(blocks(answer)):
        begun = block | ({"text": ""} if block["type"] == "text" else {"input": {}} if block["type"] == "tool_use" else {})
        events.append({"type": "content_block_start", "index": at, "content_block": begun})
        if block["type"] == "text":
            events.append({"type": "content_block_delta", "index": at, "delta": {"type": "text_delta", "text": block["text"]}})
        if block["type"] == "tool_use":
            text = json.dumps(block["input"], separators=(",", ":"))
            events += [
                {"type": "content_block_delta", "index": at, "delta": {"type": "input_json_delta", "partial_json": piece}}
                for piece in (text[:4], text[4:])
            ]
        events.append({"type": "content_block_stop", "index": at})
    return [*events, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}, {"type": "message_stop"}]


def bedrock(history: list[dict[str, Any]], answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    def turned(message: dict[str, Any]) -> dict[str, Any]:
        if message["role"] == "tool":
            return {
                "role": "user",
                "content": [{"toolResult": {"toolUseId": message["tool_call_id"], "content": [{"text": message["content"]}]}}],
            }
        calls = [
            {"toolUse": {"toolUseId": one["id"], "name": "get_weather", "input": json.loads(one["function"]["arguments"])}}
            for one in message.get("tool_calls", [])
        ]
        return {"role": message["role"], "content": [*([{"text": message["content"]}] if message["content"] else []), *calls]}

    tool = {"toolSpec": {"name": "get_weather", "description": "Current weather", "inputSchema": {"json": PARAMETERS}}}
    asked = {"system": [{"text": SYSTEM}], "messages": [turned(message) for message in history[1:]], "toolConfig": {"tools": [tool]}}
    return asked, {"output": {"message": turned(answer)}, "stopReason": "end_turn"}


# Gemini, Vertex AI and the Agent Development Kit


def gemini_content(message: dict[str, Any], camel: bool = False) -> dict[str, Any]:
    call_key, result_key = ("functionCall", "functionResponse") if camel else ("function_call", "function_response")
    if message["role"] == "tool":
        part = {result_key: {"name": "get_weather", "response": {"result": message["content"]}}}
        return {"role": "user", "parts": [part]}
    calls = [{call_key: {"name": "get_weather", "args": json.loads(one["function"]["arguments"])}} for one in message.get("tool_calls", [])]
    text = [{"text": message["content"]}] if message["content"] else []
    return {"role": "model" if message["role"] == "assistant" else "user", "parts": [*text, *calls]}


def gemini_request(history: list[dict[str, Any]], camel: bool = False) -> dict[str, Any]:
    contents = [gemini_content(message, camel) for message in history[1:]]
    tools = [{"functionDeclarations" if camel else "function_declarations": [SCHEMA]}]
    if camel:
        return {"model": "g", "contents": contents, "systemInstruction": {"parts": [{"text": SYSTEM}]}, "tools": tools}
    return {"model": "g", "contents": contents, "config": {"system_instruction": SYSTEM, "tools": tools}}


def gemini_reply(answer: dict[str, Any], camel: bool = False) -> dict[str, Any]:
    content = gemini_content(answer, camel)
    content["parts"] = [{"text": "hm", "thought": True}, *content["parts"]]
    return {"candidates": [{"content": content, "finishReason" if camel else "finish_reason": "STOP"}], "usage_metadata": {}}
