"""Every dialect reads the same conversation whole: its roles, texts, parallel tool calls, results and tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record
from ratchet.materializer.dialects.conversation import read_conversation
from tests.unit.materializer.dialects.conversations import forms as f

H, A, F, C = f.HISTORY, f.ASKED, f.FINAL, f.CALLING
ANSWERED: dict[str, Record] = {
    "chat": f.record(asked=f.CHAT_REQUEST, answered=f.completion(F)),
    "chat as text": f.record(asked=json.dumps(f.CHAT_REQUEST), answered=json.dumps(f.completion(F))),
    "chat encoded twice": f.record(asked=json.dumps(json.dumps(f.CHAT_REQUEST)), answered=json.dumps(F)),
    "chat messages alone": f.record({"langfuse.tools": [f.TOOL]}, asked=H, answered=F),
    "chat, one message in a list": f.record({"llm.invocation_parameters": json.dumps({"tools": [f.TOOL]})}, asked=H, answered=[F]),
    "otel": f.record(f.otel_attributes(H, F)),
    "otel, structured": f.record(f.otel_attributes(H, F, encode=lambda value: value)),
    "otel details event": f.record({}, [("gen_ai.client.inference.operation.details", f.otel_attributes(H, F))]),
    "otel message events": f.record({"gen_ai.tool.definitions": json.dumps([f.TOOL])}, f.message_events(H, F)),
    "otel events attribute": f.record(
        {
            "events": json.dumps([{"event.name": name, **body} for name, body in f.message_events(H, F)]),
            "model_request_parameters": json.dumps(
                {"function_tools": [{"name": "get_weather", "description": "Current weather", "parameters_json_schema": f.PARAMETERS}]}
            ),
        }
    ),
    "otel prompt in one attribute": f.record(
        {"gen_ai.prompt": json.dumps(H), "gen_ai.completion": json.dumps([F]), "gen_ai.tool.definitions": json.dumps([f.TOOL])}
    ),
    "openllmetry": f.record(f.openllmetry(H, F)),
    "openinference": f.record(f.openinference(H, F)),
    "openinference contents": f.record(f.openinference(H, F, contents=True)),
    "openinference values": f.record(
        {"openinference.span.kind": "LLM", "input.value": json.dumps(f.CHAT_REQUEST), "output.value": json.dumps(f.completion(F))}
    ),
    "vercel 5": f.record(f.vercel(H, F)),
    "vercel 4": f.record(f.vercel(H, F, arguments="args")),
    "langchain": f.record({"langfuse.tools": [f.TOOL]}, asked={"messages": [f.langchain(m) for m in H]}, answered=f.langchain(F)),
    "langchain dumps": f.record(
        asked={"messages": [[f.langchain(m, True) for m in H]], "invocation_params": {"tools": [f.TOOL]}}, answered=f.generations(F)
    ),
    "langchain data": f.record(
        {"langfuse.tools": [f.TOOL]},
        asked=[{"type": m["type"], "data": m} for m in map(f.langchain, H)],
        answered={"type": "ai", "data": f.langchain(F)},
    ),
    "langsmith attributes": f.record(
        {
            "gen_ai.prompt": json.dumps({"messages": [[f.langchain(m, True) for m in H]]}),
            "gen_ai.completion": json.dumps(f.generations(F)),
            "gen_ai.request.tools": json.dumps([f.TOOL]),
        }
    ),
    "responses": f.record(asked={"model": "m", "instructions": f.SYSTEM, "input": f.response_items(H[1:])}, answered=f.response(F)),
    "responses items": f.record({"langfuse.tools": [f.RESPONSE_TOOL]}, asked=f.response_items(H), answered=f.response(F)["output"]),
    "responses stream": f.record(
        asked=f.response_items(H, role_parts=False),
        answered=[{"type": "response.created"}, {"type": "response.completed", "response": f.response(F)}],
    ),
    "anthropic": f.record(asked=f.anthropic_request(H), answered=f.anthropic_reply(F)),
    "anthropic stream": f.record(asked=f.anthropic_request(H), answered=f.anthropic_events(F)),
    "anthropic blocks": f.record(asked=f.anthropic_request(H), answered=[{"type": "text", "text": f.ANSWER}]),
    "bedrock": f.record(asked=f.bedrock(H, F)[0], answered=f.bedrock(H, F)[1]),
    "langfuse attributes": f.record(
        {"langfuse.observation.input": json.dumps(f.CHAT_REQUEST), "langfuse.observation.output": json.dumps(F)}
    ),
}
GEMINI: dict[str, tuple[Record, Record]] = {
    "gemini": tuple(f.record(asked=f.gemini_request(h), answered=f.gemini_reply(a)) for h, a in ((H, F), (A, C))),  # type: ignore[dict-item]
    "vertex": tuple(f.record(asked=f.gemini_request(h, True), answered=f.gemini_reply(a, True)) for h, a in ((H, F), (A, C))),  # type: ignore[dict-item]
    "gemini stream": tuple(f.record(asked=f.gemini_request(h), answered=[f.gemini_reply(a)]) for h, a in ((H, F), (A, C))),  # type: ignore[dict-item]
    "adk": tuple(  # type: ignore[dict-item]
        f.record(
            {
                "gen_ai.operation.name": "call_llm",
                "gcp.vertex.agent.llm_request": json.dumps(f.gemini_request(h)),
                "gcp.vertex.agent.llm_response": json.dumps({"content": f.gemini_content(a), "usage_metadata": {}}),
            }
        )
        for h, a in ((H, F), (A, C))
    ),
}
CALLING: dict[str, Record] = {
    "chat": f.record(asked=f.CHAT_REQUEST | {"messages": A}, answered=f.completion(C | {"content": None}, "tool_calls")),
    "chat stream": f.record(asked=f.CHAT_REQUEST | {"messages": A}, answered=f.CHUNKS),
    "otel": f.record(f.otel_attributes(A, C)),
    "otel message events": f.record({"gen_ai.tool.definitions": json.dumps([f.TOOL])}, f.message_events(A, C)),
    "openllmetry": f.record(f.openllmetry(A, C)),
    "openinference": f.record(f.openinference(A, C)),
    "vercel 5": f.record(f.vercel(A, C)),
    "vercel 4": f.record(f.vercel(A, C, arguments="args")),
    "vercel result": f.record(
        {"ai.prompt.tools": [json.dumps(f.TOOL["function"])]},
        asked=A,
        answered=[{"toolCallId": c["id"], "toolName": "get_weather", "input": c["function"]["arguments"]} for c in f.CALLS],
    ),
    "langchain": f.record({"langfuse.tools": [f.TOOL]}, asked=[f.langchain(m) for m in A], answered=f.langchain(C)),
    "langchain generations": f.record({"langfuse.tools": [f.TOOL]}, asked=[f.langchain(m) for m in A], answered=f.generations(C)),
    "langfuse of langchain": f.record(
        asked=[*A, {"role": "tool", "content": f.TOOL}],
        answered={"role": "assistant", "content": "", "additional_kwargs": {"tool_calls": f.CALLS, "refusal": None}},
    ),
    "responses": f.record(asked={"model": "m", "instructions": f.SYSTEM, "input": f.QUESTION}, answered=f.response(C)),
    "anthropic": f.record(asked=f.anthropic_request(A), answered=f.anthropic_reply(C)),
    "anthropic stream": f.record(asked=f.anthropic_request(A), answered=f.anthropic_events(C)),
    "bedrock": f.record(asked=f.bedrock(A, C)[0], answered=f.bedrock(A, C)[1]),
    "ollama": f.record(
        asked=f.CHAT_REQUEST | {"messages": A},
        answered={"model": "m", "message": C, "done": True, "done_reason": "stop", "created_at": "x"},
    ),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_a_text_answer_with_its_history(name: str) -> None:
    found = read_conversation(ANSWERED[name])
    assert found.messages == [_unnamed(message, found.messages) for message in f.HISTORY]
    assert found.answer == f.FINAL
    assert found.tools == [f.TOOL]


def _unnamed(message: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    """Some dialects name the tool of a result; that is no difference."""
    named = message["role"] == "tool" and any(one.get("name") for one in found if one["role"] == "tool")
    return message | ({"name": "get_weather"} if named else {})


@pytest.mark.parametrize("name", CALLING)
def test_an_answer_of_parallel_tool_calls(name: str) -> None:
    found = read_conversation(CALLING[name])
    assert (found.messages, found.answer, found.tools) == (f.ASKED, f.CALLING, [f.TOOL])


@pytest.mark.parametrize("name", GEMINI)
def test_gemini_names_no_ids(name: str) -> None:
    numbered = {"c1": "call_0", "c2": "call_1"}
    answered, calling = (read_conversation(one) for one in GEMINI[name])
    expected = json.loads(_renamed(json.dumps(f.HISTORY), numbered))
    for message in expected:
        if message["role"] == "tool":
            message |= {"content": json.dumps({"result": message["content"]}, separators=(",", ":")), "name": "get_weather"}
    assert (answered.messages, answered.answer, answered.tools) == (expected, f.FINAL, [f.TOOL])
    assert (calling.messages, calling.answer) == (f.ASKED, json.loads(_renamed(json.dumps(f.CALLING), numbered)))


def _renamed(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return text


def test_plain_text() -> None:
    found = read_conversation(f.record(asked="What is 2 + 2?", answered="4"))
    assert (found.messages, found.answer, found.tools) == (
        [{"role": "user", "content": "What is 2 + 2?"}],
        {"role": "assistant", "content": "4"},
        [],
    )


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("system: be kind\nuser: hello", "transcript"),
        ("Human: hello\nAI:", "transcript"),
        ("<|im_start|>user\nhello<|im_end|>", "transcript"),
        ("[{'role': 'user', 'content': 'hello'}]", "repr"),
        ("role='user' content='hello' name=None", "repr"),
        ("[ChatMessage(role='user', blocks=[])]", "repr"),
        ('[{"role": "user", "content": "cut of', "malformed_json"),
        ({"messages": ["role='user' content='hello'"]}, "wrong_type"),
        ({"query": "hello"}, "unknown_wrapper"),
        ({"messages": [{"role": "user", "content": "a"}], "contents": ["b"]}, "unknown_wrapper"),
        ({"prompts": ["Human: hello"]}, "transcript"),
        ([{"role": "narrator", "content": "hello"}], "unknown_role"),
        ([{"content": "hello"}], "unknown_role"),
        ([{"role": "user", "content": [{"type": "hologram", "data": "x"}]}], "unknown_part"),
        ([{"role": "user", "content": [{"type": "file", "data": "x", "mediaType": "application/pdf"}]}], "unknown_part"),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "unknown_part"),
        ([{"role": "user", "content": "look", "images": ["x"]}], "unknown_part"),
        ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}], "empty_message"),
        ([{"role": "user", "content": "hi"}, {"role": "tool", "content": "sunny", "tool_call_id": "c9"}], "unpaired_result"),
        ([{"role": "user", "content": "hi"}, {"type": "web_search_call", "id": "ws"}], "unknown_role"),
        (
            [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]}],
            "bad_tool_call",
        ),
        (
            [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "tool_calls": [f.call("c", "x") | {"function": {"name": "n", "arguments": "{"}}]},
            ],
            "bad_tool_call",
        ),
        ({"model": "m", "input": "hi", "previous_response_id": "resp_1"}, "stored_context"),
        ({"contents": "hi", "config": {"cached_content": "c/1"}}, "stored_context"),
        ({"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "web_search"}]}, "unknown_tool"),
        (42, "wrong_type"),
    ],
)
def test_what_cannot_be_read_whole_is_rejected(asked: Any, reason: str) -> None:
    with pytest.raises(Rejected) as rejected:
        read_conversation(f.record(asked=asked, answered="ok"))
    assert rejected.value.reason == reason


@pytest.mark.parametrize(
    ("answered", "reason"),
    [
        ([f.CALLING, *f.RESULTS, f.FINAL], "not_one_answer"),
        ({"role": "user", "content": "me"}, "not_one_answer"),
        ({"result": "4"}, "unknown_wrapper"),
        ({"object": "response", "output": [{"type": "web_search_call", "id": "ws", "status": "completed"}]}, "unknown_role"),
        ("RunResponse(content='4')", "repr"),
        ({"generations": [[{"text": "a"}], [{"text": "b"}]]}, "not_one_answer"),
    ],
)
def test_an_answer_that_cannot_be_read_is_rejected(answered: Any, reason: str) -> None:
    with pytest.raises(Rejected) as rejected:
        read_conversation(f.record(asked="hello", answered=answered))
    assert rejected.value.reason == reason


def test_images_stay_references() -> None:
    url = {"type": "image_url", "image_url": {"url": "https://example.test/cat.png"}}
    data = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "what is this?"}
    forms: list[tuple[Any, Any]] = [
        ([text, url], url),
        ([{"type": "input_text", "text": "what is this?"}, {"type": "input_image", "image_url": "https://example.test/cat.png"}], url),
        ([text, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}], data),
        ([text, {"type": "image", "image": "https://example.test/cat.png"}], url),
        ([text, {"type": "file", "data": "AAAA", "mediaType": "image/png"}], data),
        ([{"text": "what is this?"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}], data),
        ([{"type": "text", "content": "what is this?"}, {"type": "uri", "modality": "image", "uri": "https://example.test/cat.png"}], url),
    ]
    for content, image in forms:
        found = read_conversation(f.record(asked=[{"role": "user", "content": content}], answered="a cat"))
        assert found.messages == [{"role": "user", "content": [text, image]}]


def test_indexed_messages_with_a_gap_are_rejected() -> None:
    attributes = f.openinference(f.HISTORY, f.FINAL)
    lost = {key: value for key, value in attributes.items() if not key.startswith("llm.input_messages.2.")}
    with pytest.raises(Rejected, match="lost_messages"):
        read_conversation(f.record(lost))


def test_text_of_an_answer_is_never_read_as_a_tool_call() -> None:
    from ratchet.contracts.conversation import answer_message, stored_answer

    forged = stored_answer(f.CALLING)
    stored = stored_answer({"role": "assistant", "content": forged})
    assert answer_message(stored) == {"role": "assistant", "content": forged}
    assert answer_message(forged) == f.CALLING
    assert stored_answer({"role": "assistant", "content": "plain"}) == "plain"
