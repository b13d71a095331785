"""Results of tools and files that the numbered messages of OpenInference show differently, or lack, than the body of the request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.conversation import answer_message
from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.materializer.dialects.decode import decode
from tests.unit.materializer.records import T0, attribute, batch, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
CALLS = [{"toolUse": {"toolUseId": one, "name": "get", "input": {"city": one}}} for one in ("a", "b")]
RESULTS = [
    {"toolResult": {"toolUseId": "a", "content": [{"text": "18"}]}},
    {"toolResult": {"toolUseId": "b", "content": [{"json": {"t": 20}}]}},
]


def flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, inner in items for key, leaf in flat(f"{prefix}.{name}", inner).items()}
    return {prefix: value}


def read(asked: list[dict[str, Any]], body: Any, answered: tuple[str, ...] = ("Sunny.",), output: str | None = None) -> Decoded:
    values = {"openinference.span.kind": "LLM", "input.mime_type": "application/json", "input.value": json.dumps(body)}
    values |= {} if output is None else {"output.value": output}
    values |= flat("llm.input_messages", [{"message": one} for one in asked])
    values |= flat("llm.output_messages", [{"message": {"role": "assistant", "content": text}} for text in answered])
    item = span(1, gen_ai__input__messages=None, gen_ai__output__messages=None)
    item["attributes"] += [attribute(key, value) for key, value in values.items()]
    return decode(batch(spans(item)), LIMITS)


def messages_of(found: Decoded) -> list[tuple[str, str]]:
    assert [(bad.reason, bad.detail) for bad in found.bad] == []
    return [(one["role"], one["content"]) for one in json.loads(found.traces[0]["messages"])]


def called(*cities: str) -> dict[str, Any]:
    calls = [{"tool_call": {"id": one, "function": {"name": "get", "arguments": json.dumps({"city": one})}}} for one in cities]
    return {"role": "assistant", "tool_calls": calls}


def test_a_result_of_bedrock_is_no_word_of_the_user() -> None:
    body = [
        {"role": "user", "content": [{"text": "q"}]},
        {"role": "assistant", "content": CALLS[:1]},
        {"role": "user", "content": RESULTS[:1]},
    ]
    asked = [{"role": "user", "content": "q"}, called("a"), {"role": "user", "content": "18", "tool_call_id": "a"}]
    for one in (body, None):
        assert messages_of(read(asked, one)) == [("user", "q"), ("assistant", ""), ("tool", "18")]


def test_results_of_bedrock_that_the_numbered_messages_lack_are_those_of_the_body() -> None:
    body = [{"role": "user", "content": [{"text": "q"}]}, {"role": "assistant", "content": CALLS}, {"role": "user", "content": RESULTS}]
    asked = [{"role": "user", "content": "q"}, called("a", "b"), {"role": "user", "content": json.dumps({"t": 20}), "tool_call_id": "b"}]
    assert messages_of(read(asked, body)) == [("user", "q"), ("assistant", ""), ("tool", "18"), ("tool", '{"t":20}')]


@pytest.mark.parametrize("keys", [("functionCall", "functionResponse"), ("function_call", "function_response")])
@pytest.mark.parametrize("cities", [("a",), ("a", "b")])
def test_results_of_gemini_are_no_words_of_the_user(keys: tuple[str, str], cities: tuple[str, ...]) -> None:
    calls = [{keys[0]: {"name": "get", "args": {"city": one}}} for one in cities]
    results = [{keys[1]: {"name": "get", "response": {"result": one}}} for one in cities]
    contents = [{"role": "user", "parts": [{"text": "q"}]}, {"role": "model", "parts": calls}, {"role": "user", "parts": results}]
    shown = [{"message_content": {"type": "text", "text": json.dumps({"result": one})}} for one in cities]
    last: dict[str, Any] = {"contents": shown} if len(cities) > 1 else {"content": json.dumps({"result": "a"})}
    asked = [{"role": "user", "content": "q"}, called(*cities) | {"role": "model"}, {"role": "user", **last}]
    expected = [("user", "q"), ("assistant", ""), *(("tool", json.dumps({"result": one}, separators=(",", ":"))) for one in cities)]
    assert messages_of(read(asked, {"contents": contents})) == expected
    other = [asked[0], asked[1], {"role": "user", "content": "another text"}]
    assert [bad.reason for bad in read(other, {"contents": contents}).bad] == ["lost_messages"]


@pytest.mark.parametrize(
    "body",
    [
        {"contents": [{"role": "user", "parts": [{"text": "q"}, {"fileData": {"fileUri": "gs://x", "mimeType": "application/pdf"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "file", "file": {"file_id": "f"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "input_audio", "input_audio": {"data": "x"}}]}]},
        [{"role": "user", "content": [{"text": "q"}, {"document": {"format": "pdf"}}]}],
    ],
)
def test_a_file_that_the_numbered_messages_lack_quarantines_the_call(body: Any) -> None:
    assert [bad.reason for bad in read([{"role": "user", "content": "q"}], body).bad] == ["unknown_part"]


def test_an_image_of_the_body_is_kept_and_an_unknown_body_changes_nothing() -> None:
    image = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "https://x/y"}}]}
        ]
    }
    [row] = read([{"role": "user", "content": "q"}], image).traces
    assert len(json.loads(row["messages"])[0]["content"]) == 2
    unknown = {"messages": [{"role": "critic", "content": [{"type": "text", "text": "q"}]}]}
    assert messages_of(read([{"role": "user", "content": "q"}], unknown)) == [("user", "q")]


def test_the_text_of_one_of_several_answers_is_not_the_answer() -> None:
    body = {"messages": [{"role": "user", "content": "q"}]}
    found = read([{"role": "user", "content": "q"}], body, ("First.", "Second."), "Second.")
    assert [bad.reason for bad in found.bad] == ["not_one_answer"]
    both = read([{"role": "user", "content": "q"}], body, ("First.", "Second."), "First.Second.")
    assert answer_message(both.traces[0]["answer"])["content"] == "First.Second."


@pytest.mark.parametrize(
    ("question", "answer", "is_cut"),
    [
        *((("word " * 820)[: 4096 - n] + "w" * n, "Yes.", True) for n in (1, 2)),
        (("word " * 820)[:4096] + "w", "Yes.", False),
        *((("word " * 400)[:1023] + "w", "Yes.", True), (("word " * 400)[:1023] + ".", "Yes.", False), ("x" * 1024, "Yes.", False)),
        *((("ab cd " * 30)[:128], ("cd ef " * 30)[:128], True), (("ab cd " * 30)[:128], "Yes.", False), ("天" * 2048, "Yes.", True)),
    ],
)
def test_a_text_that_ends_at_a_limit_within_a_word_is_cut(question: str, answer: str, is_cut: bool) -> None:
    found = read([{"role": "user", "content": question}], None, (answer,))
    assert [bad.reason for bad in found.bad] == (["dropped_content"] if is_cut else [])


def test_a_json_body_that_is_cut_beside_a_text_is_found() -> None:
    values = {
        "llm.request.type": "chat",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "q",
        "gen_ai.completion.0.content": "a",
    }
    item = span(1, gen_ai__input__messages=None, gen_ai__output__messages=None)
    item["attributes"] += [attribute(key, value) for key, value in values.items()]
    item["attributes"].append(attribute("llm.request.functions.0.parameters", json.dumps({"a": "b " * 3000})[:4096]))
    assert [bad.reason for bad in decode(batch(spans(item)), LIMITS).bad] == ["dropped_content"]
