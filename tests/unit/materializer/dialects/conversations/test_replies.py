"""An answer that is JSON: the reply of an API is read as that reply, also as text; an application's own JSON stays whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.conversation import answer_message
from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.materializer.dialects.decode import decode
from tests.unit.materializer.records import T0, attribute, batch, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)

REPLIES: dict[str, Any] = {
    "chat completion": {"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]},
    "chat completion of a gateway": {"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}], "cost": 1},
    "text completion": {"object": "text_completion", "choices": [{"text": "hi", "index": 0, "finish_reason": "stop"}]},
    "responses": {"object": "response", "status": "completed", "output": [
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    ]},
    "items of responses": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}],
    "anthropic": {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"},
    "converse": {"output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}}, "stopReason": "end_turn"},
    "gemini": {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]},
    "ollama chat": {"model": "m", "message": {"role": "assistant", "content": "hi"}, "done": True, "done_reason": "stop"},
    "ollama generate": {"model": "m", "created_at": "2026", "response": "hi", "done": True, "context": [1, 2]},
    "tgi": [{"generated_text": "hi"}],
    "tgi alone": {"generated_text": "hi", "details": {"finish_reason": "eos_token"}},
    "llama on bedrock": {"generation": "hi", "prompt_token_count": 3, "generation_token_count": 1, "stop_reason": "stop"},
    "titan": {"inputTextTokenCount": 3, "results": [{"tokenCount": 1, "outputText": "hi", "completionReason": "FINISH"}]},
    "watsonx": {"model_id": "m", "results": [{"generated_text": "hi", "stop_reason": "eos_token"}]},
    "pipeline of transformers": [{"generated_text": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "hi"}]}],
    "llama.cpp": {"content": "hi", "stop": True, "tokens_predicted": 1, "generation_settings": {}, "stop_type": "eos"},
    "cohere version 1": {"response_id": "r", "text": "hi", "generation_id": "g", "finish_reason": "COMPLETE", "meta": {}},
    "converse stream": [
        {"messageStart": {"role": "assistant"}},
        *({"contentBlockDelta": {"delta": {"text": text}, "contentBlockIndex": 0}} for text in "hi"),
        {"contentBlockStop": {"contentBlockIndex": 0}}, {"messageStop": {"stopReason": "end_turn"}}, {"metadata": {"usage": {}}},
    ],
    "cohere": {"id": "x", "finish_reason": "COMPLETE", "message": {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}},
    "message": {"role": "assistant", "content": "hi"},
    "message with nulls": {"role": "assistant", "content": "hi", "tool_calls": None, "refusal": None, "annotations": []},
    "message without a role": {"content": "hi", "tool_calls": None, "function_call": None, "refusal": None},
    "messages of an agent": {"messages": [{"role": "assistant", "content": "hi"}]},
    "list of one message": [{"role": "assistant", "content": "hi"}],
    "parts": [{"type": "text", "text": "hi"}],
    "otel": [{"role": "assistant", "parts": [{"type": "text", "content": "hi"}], "finish_reason": "stop"}],
    "langchain": {"generations": [[
        {"text": "hi", "message": {"lc": 1, "type": "constructor", "id": ["AIMessage"], "kwargs": {"content": "hi"}}},
    ]]},
    "langchain message": {"lc": 1, "type": "constructor", "id": ["langchain", "AIMessage"], "kwargs": {"content": "hi"}},
    "ai sdk": {"text": "hi", "toolCalls": [], "finishReason": "stop"},
    "chunks": [{"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]} for text in ("h", "i")],
}  # fmt: skip
OWN: list[Any] = [
    {"content": "Buy milk", "stop": True},
    {"text": "Hello", "generation_id": "g"},
    {"metadata": {"a": 1}},
    {"model_id": "m", "results": [{"generated_text": "Hello"}]},
    {"content": "Buy milk", "title": "Note", "done": False},
    {"content": "Buy milk"},
    {"text": "Hello", "lang": "en"},
    {"text": "Hello"},
    {"parts": ["bolt", "nut"], "total": 2},
    {"parts": [{"name": "bolt"}]},
    {"message": "Saved", "status": "ok"},
    {"message": {"subject": "Hi", "body": "x"}},
    {"answer": "4", "sources": ["a"]},
    {"choices": ["a", "b"], "question": "Which?"},
    {"choices": [{"text": "yes", "index": 0}, {"text": "no", "index": 1}], "question": "Which?"},
    {"role": "admin", "content": "all"},
    {"role": "assistant", "salary": 3},
    {"type": "message", "to": "bob"},
    {"name": "get_weather", "city": "Paris"},
    {"output": "4", "unit": "m"},
    {"output": [1, 2]},
    {"candidates": ["Ada", "Alan"]},
    {"candidates": [{"name": "Ada"}]},
    {"messages": ["a", "b"]},
    {"response": "x", "score": 1},
    {"model": "T", "year": 1908},
    {"tool_calls": 3},
    {"object": "chair"},
    {"error": "none found"},
    {"error": {"line": 3}, "fixed": True},
    {"data": {"content": "x"}},
    {"id": 7, "type": "function", "name": "f"},
    [{"role": "lead", "content": "Ada"}],
    [{"text": "a"}, {"text": "b"}],
    [1, 2, 3],
    [],
    {},
    "quoted",
]


def texts_of(value: Any) -> list[str]:
    return [json.dumps(value), json.dumps(value, indent=1), json.dumps(json.dumps(value))]


def jsonl(response: Any) -> Decoded:
    return decode(batch({"id": "a", "timestamp": T0, "messages": "q", "response": response}, kind="jsonl"), LIMITS)


def langfuse(output: Any) -> Decoded:
    record = {"id": "a", "traceId": "t", "type": "GENERATION", "startTime": T0, "model": "m", "input": "q", "output": output}
    return decode(batch(record, kind="jsonl"), LIMITS)


def langfuse_span(output: str) -> Decoded:
    item = span(1, gen_ai__input__messages=None, gen_ai__output__messages=None)
    values = {"langfuse.observation.type": "generation", "langfuse.observation.input": "q", "langfuse.observation.output": output}
    item["attributes"] += [attribute(key, value) for key, value in values.items()]
    return decode(batch(spans(item)), LIMITS)


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_is_read_as_an_object_and_as_text(name: str) -> None:
    reply = REPLIES[name]
    found = [read(value) for value in (reply, *texts_of(reply)) for read in (jsonl, langfuse)]
    found += [langfuse_span(value) for value in texts_of(reply)]
    for one in found:
        assert [bad.detail for bad in one.bad] == []
        assert one.traces[0]["answer"] == "hi"


@pytest.mark.parametrize("own", OWN, ids=json.dumps)
def test_an_applications_own_json_is_never_cut_down(own: Any) -> None:
    for text in texts_of(own)[:2]:
        for read in (jsonl, langfuse, langfuse_span):
            [row] = read(text).traces
            assert row["answer"] == text
    if isinstance(own, dict | list) and own:  # as an object it is kept whole, or it is doubtful
        for read in (jsonl, langfuse):
            found = read(own)
            kept = [json.loads(row["answer"]) for row in found.traces]
            assert kept == [own] or [bad.reason for bad in found.bad] in (["unknown_wrapper"], ["not_one_answer"])


STREAMS = (
    'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"h"}}]}\n\n'
    'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"i"}}]}\n\ndata: [DONE]\n\n',
    "event: message_start\ndata: "
    + json.dumps({"type": "message_start", "message": {"role": "assistant"}})
    + "\n\nevent: content_block_start\ndata: "
    + json.dumps({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    + "\n\nevent: content_block_delta\ndata: "
    + json.dumps({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}})
    + '\n\nevent: message_stop\ndata: {"type": "message_stop"}\n\n',
    'data: {"candidates":[{"content":{"parts":[{"text":"h"}]}}]}\r\n\r\n'
    'data: {"candidates":[{"content":{"parts":[{"text":"i"}]}}]}\r\n\r\n',
    '{"model":"m","message":{"role":"assistant","content":"h"},"done":false}\n{"model":"m","message":{"content":"i"},"done":true}\n',
    'f:{"messageId":"m"}\n0:"h"\n0:"i"\ne:{"finishReason":"stop"}\nd:{"finishReason":"stop"}\n',
    '{"messageStart":{"role":"assistant"}}\n{"contentBlockDelta":{"delta":{"text":"hi"},"contentBlockIndex":0}}\n'
    '{"messageStop":{"stopReason":"end_turn"}}',
    'event: response.completed\ndata: {"type":"response.completed","response":'
    + json.dumps(REPLIES["responses"])
    + "}\n\n",
)  # fmt: skip


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_as_one_text_is_read(stream: str) -> None:
    for read in (jsonl, langfuse):
        found = read(stream)
        assert ([bad.detail for bad in found.bad], [row["answer"] for row in found.traces]) == ([], ["hi"])


@pytest.mark.parametrize(
    "text",
    [
        'data: {"object":"chat.completion.chunk","choi',
        'data: {"x": 1}\n\ndata: {"x": 2}\n',
        '{"id":"resp_1","object":"response","output":[{"type":"mess',
        '[{"role":"assistant","content":"h',
        json.dumps({"error": {"message": "Rate limit", "type": "rate_limit_error", "code": 429}}),
        json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        json.dumps({"object": "chat.completion", "choices": []}),
        json.dumps([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]),
        "ChatCompletion(id='x', choices=[])",
        "{'role': 'assistant', 'content': 'x'}",
        "content='x' additional_kwargs={}",
    ],
)
def test_a_damaged_reply_or_an_error_is_no_answer(text: str) -> None:
    for read in (jsonl, langfuse, langfuse_span):
        found = read(text)
        assert (len(found.bad), found.traces) == (1, [])


@pytest.mark.parametrize(
    "text",
    [
        "Point(x=1, y=2)",
        '{"a": 1} is a dict',
        "{'a': 1}",
        '[1, 2, 3] has three elements, and ["a"] has one',
        "[INST] is a tag",
        '{"name": "Ada", "born": 18',
        "data: the plural of datum",
        "class Note(BaseModel):\n    content: str",
        'print("{}")',
    ],
)
def test_answers_that_begin_like_code_or_json_are_kept(text: str) -> None:
    for read in (jsonl, langfuse, langfuse_span):
        found = read(text)
        assert [row["answer"] for row in found.traces] == [text], found.bad


@pytest.mark.parametrize(
    ("body", "lost"),
    [
        ({"prompt": "Answer", "context": "LONG DOC"}, True),
        ({"messages": [{"role": "user", "content": "q"}], "context": "LONG DOC"}, True),
        ({"messages": [{"role": "user", "content": "q"}], "documents": [{"text": "d"}]}, True),
        ({"messages": [{"role": "user", "content": "q"}], "system_prompt": "Be brief"}, True),
        ({"prompt": "q", "input": "other"}, True),
        ({"input": "q", "model": "m", "chat_history": ["a"]}, True),
        ({"messages": [{"role": "user", "content": "q"}], "model": "m", "temperature": 0, "stop": ["x"], "metadata": {"a": "b"}}, False),
        ({"prompt": "q", "system": "Be brief"}, False),
    ],
)
def test_an_input_loses_no_part_of_the_prompt(body: dict[str, Any], lost: bool) -> None:
    record = {"id": "a", "traceId": "t", "type": "GENERATION", "startTime": T0, "model": "m", "input": body, "output": "ok"}
    found = decode(batch(record, kind="jsonl"), LIMITS)
    assert [bad.reason for bad in found.bad] == (["unknown_wrapper"] if lost else [])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<think>Hmm.\nYes.</think>\n\nFour.", "Four."),
        ("<think></think>Four.", "Four."),
        ("<thinking>x</thinking>Four.", "Four."),
        ("Okay, 2 + 2.\n</think>\n\nFour.", "Four."),
        ("Write `<think>` and `</think>` around it.", "Write `<think>` and `</think>` around it."),
        ("The tag </think> ends it.", "The tag </think> ends it."),
    ],
)
def test_reasoning_is_left_out_of_every_dialect(text: str, shown: str) -> None:
    parts = json.dumps([{"role": "assistant", "parts": [{"type": "reasoning", "content": "Hmm."}, {"type": "text", "content": text}]}])
    message = {"role": "assistant", "content": text, "reasoning_content": "Hmm."}
    found = [jsonl(text), jsonl(message), langfuse(text), langfuse_span(text), decode(batch(spans(span(1, "q", text))), LIMITS)]
    item = span(1, gen_ai__output__messages=parts)
    found.append(decode(batch(spans(item)), LIMITS))
    assert [one.traces[0]["answer"] for one in found] == [shown] * len(found)
    again = {
        "id": "a",
        "timestamp": T0,
        "response": "ok",
        "messages": [{"role": "user", "content": "q"}, message, {"role": "user", "content": "r"}],
    }
    [row] = decode(batch(again, kind="jsonl"), LIMITS).traces
    assert [one["content"] for one in json.loads(row["messages"])] == ["q", shown, "r"]


def test_an_answer_that_is_only_reasoning_is_empty() -> None:
    for text in ("<think> is a tag at the beginning", "<think>cut in the mid", "<think>all</think>"):
        assert [bad.reason for bad in jsonl(text).bad] == ["empty_response"]


def test_instructions_beside_the_messages_are_the_first_message() -> None:
    reply = REPLIES["responses"] | {"instructions": "Be brief."}
    base = {"id": "a", "timestamp": T0, "messages": [{"role": "user", "content": "q"}], "response": "ok"}
    for record in (
        base | {"model_parameters": {"instructions": "Be brief."}},
        base | {"response": reply},
        base | {"response": reply, "model_parameters": {"instructions": "Be brief."}},
        base
        | {"messages": [{"role": "system", "content": "Be brief."}, *base["messages"]], "model_parameters": {"instructions": "Be brief."}},
    ):
        [row] = decode(batch(record, kind="jsonl"), LIMITS).traces
        assert [(one["role"], one["content"]) for one in json.loads(row["messages"])] == [("system", "Be brief."), ("user", "q")]


def test_calls_without_tools_are_counted() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    found = jsonl({"role": "assistant", "content": None, "tool_calls": [call | {"async_": None, "extra": []}]})
    assert answer_message(found.traces[0]["answer"])["tool_calls"] == [call]
    assert found.told["call without tools", ""] == 1


@pytest.mark.parametrize(
    ("stream", "finish"),
    [
        *((STREAMS[0], "stop"), (STREAMS[0].removesuffix("data: [DONE]\n\n"), "length"), (STREAMS[2], "length")),
        *((STREAMS[1], None), (STREAMS[1].partition("event: message_stop")[0], "length"), (STREAMS[4], "stop"), (STREAMS[5], "end_turn")),
    ],
)
def test_a_stream_without_an_end_was_cut(stream: str, finish: str | None) -> None:
    [row] = jsonl(stream).traces
    assert (row["answer"], row["finish_reason"]) == ("hi", finish)


@pytest.mark.parametrize(
    "stream",
    ['0:"h"\n0:"i"\n', '0:"hi"\n9:{"toolCallId":"c","toolName":"f","args":{}}\nd:{"finishReason":"tool-calls"}\n', '0:"h"\n3:"failed"\n'],
)
def test_a_stream_of_the_ai_sdk_with_more_than_text_is_not_read(stream: str) -> None:
    assert [bad.reason for bad in jsonl(stream).bad] == ["unknown_wrapper"]


def test_calls_of_a_stream_of_converse_are_read() -> None:
    events = [
        {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t", "name": "get"}}, "contentBlockIndex": 1}},
        {"contentBlockDelta": {"delta": {"reasoningContent": {"text": "hm"}}, "contentBlockIndex": 0}},
        *({"contentBlockDelta": {"delta": {"toolUse": {"input": piece}}, "contentBlockIndex": 1}} for piece in ('{"a":', "1}")),
    ]
    [row] = jsonl([*events, {"messageStop": {"stopReason": "tool_use"}}]).traces
    assert json.loads(row["answer"])["tool_calls"][0]["function"] == {"name": "get", "arguments": '{"a":1}'}
    assert [bad.reason for bad in jsonl(events).bad] == ["unknown_wrapper"]


HARMONY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Sunny.<|return|>"


@pytest.mark.parametrize(
    "text",
    [
        *("[THINK]hm[/THINK]Sunny.", "<seed:think>hm</seed:think>\nSunny.", "◁think▷hm◁/think▷Sunny.", "<thought>hm</thought>Sunny."),
        *("\n<thought>hm</thought>Sunny.", HARMONY, f"<|start|>assistant{HARMONY}", HARMONY.removesuffix("<|return|>")),
    ],
)
def test_reasoning_in_the_tags_of_any_model_is_left_out(text: str) -> None:
    spans_of = span(1, "q", text)
    found = [*jsonl(text).traces, *langfuse(text).traces, *decode(batch(spans(spans_of)), LIMITS).traces]
    assert [row["answer"] for row in found] == ["Sunny."] * 3


@pytest.mark.parametrize("text", ["[THINK]hm", "◁think▷hm", "<thought>hm", HARMONY.partition("<|end|>")[0]])
def test_an_answer_that_was_cut_within_its_reasoning_is_empty(text: str) -> None:
    assert [bad.reason for bad in jsonl(text).bad] == ["empty_response"]


@pytest.mark.parametrize("text", ["I use <thought> as a tag.", "The [THINK] tag", "A <|channel|> mark"])
def test_a_tag_elsewhere_is_text(text: str) -> None:
    assert [row["answer"] for row in jsonl(text).traces] == [text]
