"""Blocks of an API that an exporter writes as texts, and parts whose content an exporter leaves out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.conversation import answer_message
from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.materializer.dialects.decode import decode
from tests.unit.materializer.records import T0, batch, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
PRINTED = "media_resolution=None executable_code=None file_data=FileData(file_uri='gs://x') text=None thought=None"


def text(content: Any) -> dict[str, Any]:
    return {"type": "text", "content": content if isinstance(content, str) else json.dumps(content)}


def read(asked: list[Any], answered: list[Any], *between: Any, **more: Any) -> Decoded:
    given = json.dumps([{"role": "user", "parts": asked}, *between])
    reply = json.dumps([{"role": "assistant", "parts": answered, "finish_reason": "stop"}])
    return decode(batch(spans(span(1, gen_ai__input__messages=given, gen_ai__output__messages=reply, **more))), LIMITS)


def answer_of(found: Decoded) -> str:
    assert [(bad.reason, bad.detail) for bad in found.bad] == []
    content = answer_message(found.traces[0]["answer"])["content"]
    assert isinstance(content, str)
    return content


def messages_of(found: Decoded) -> list[dict[str, Any]]:
    assert [(bad.reason, bad.detail) for bad in found.bad] == []
    listed: list[dict[str, Any]] = json.loads(found.traces[0]["messages"])
    return listed


@pytest.mark.parametrize(
    "block",
    [
        {"type": "redacted_thinking", "data": "EmwK"},
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
        {"reasoningContent": {"redactedContent": "b'x'"}},
        str({"reasoningContent": {"redactedContent": b"x"}}),
    ],
)
def test_reasoning_that_is_written_as_text_is_left_out_of_the_answer(block: Any) -> None:
    assert answer_of(read([text("q")], [text(block), text("Sunny.")])) == "Sunny."
    call = {"type": "tool_call", "id": "c", "name": "get", "arguments": {}}
    found = read([text("q")], [text(block), call])
    assert (answer_of(found), len(answer_message(found.traces[0]["answer"])["tool_calls"])) == ("", 1)


def test_a_cache_point_is_no_text_and_guarded_content_is_its_text() -> None:
    guarded = {"guardContent": {"text": {"text": "Is it so?", "qualifiers": ["query"]}}}
    found = read([text("Read."), text(guarded), text({"cachePoint": {"type": "default"}})], [text("Yes.")])
    assert messages_of(found) == [{"role": "user", "content": "Read.\nIs it so?"}]


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        *((PDF, "unknown_part"), (str(PDF), "unknown_part"), (PRINTED, "repr"), ("code='1' language=<Language.PYTHON: 'PYTHON'>", "repr")),
        ({"document": {"format": "pdf", "name": "a", "source": {"bytes": "x"}}}, "unknown_part"),
        ({"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://x"}}}}, "unknown_part"),
    ],
)
def test_a_file_that_is_written_as_text_is_not_taken_for_a_text(block: Any, reason: str) -> None:
    for parts in ([text("Sum up."), text(block)], [text(block)]):
        assert [bad.reason for bad in read(parts, [text("Done.")]).bad] == [reason]


@pytest.mark.parametrize(
    "own",
    [
        *({"document": "letter"}, {"type": "document", "title": "a"}, {"type": "thinking"}, {"type": "reasoning", "a": 1}, {"image": 3}),
        *({"a": 1}, {"reasoningContent": "x"}, {"type": "function_call", "call_id": "c"}, "{'a': 1", "code='x'", '{"cachePoint": 1'),
    ],
)
def test_a_json_text_of_another_form_stays(own: Any) -> None:
    written = own if isinstance(own, str) else json.dumps(own)
    found = read([text(written)], [text("Done."), text(written)])
    assert messages_of(found) == [{"role": "user", "content": written}]
    assert answer_of(found) == f"Done.\n{written}"


def test_an_address_is_an_image_only_by_its_type() -> None:
    def uri(kind: str | None, modality: str) -> Decoded:
        return read([text("What?"), {"type": "uri", "modality": modality, "mime_type": kind, "uri": "https://x/y"}], [text("A cat.")])

    assert [bad.reason for bad in uri("application/pdf", "image").bad] == ["unknown_part"]
    assert [bad.reason for bad in uri(None, "video").bad] == ["unknown_part"]
    for kind, modality in (("image/png", "image"), (None, "image"), ("image/png", "data")):
        assert messages_of(uri(kind, modality))[0]["content"][1]["type"] == "image_url"


def test_results_find_their_calls_by_name_where_ids_are_names_and_places() -> None:
    def called(*places: int) -> dict[str, Any]:
        return {"role": "assistant", "parts": [{"type": "tool_call", "id": f"get_{n}", "name": "get", "arguments": {}} for n in places]}

    def result(place: int, value: int) -> dict[str, Any]:
        return {"type": "tool_call_response", "id": f"get_{place}", "response": {"result": value}}

    results = {"role": "user", "parts": [result(0, 18), result(1, 20)]}
    found = messages_of(read([text("q")], [text("a")], called(1, 2), results))
    assert [(one["tool_call_id"], one["content"]) for one in found[2:]] == [("get_1", '{"result":18}'), ("get_2", '{"result":20}')]
    other = {"role": "user", "parts": [result(0, 18) | {"id": "find_0"}]}
    assert [bad.reason for bad in read([text("q")], [text("a")], called(1, 2), other).bad] == ["unpaired_result"]


def test_instructions_that_are_also_the_first_message_count_once() -> None:
    system = {"role": "system", "parts": [text("Be brief.")]}
    given, said = json.dumps([system, {"role": "user", "parts": [text("q")]}]), json.dumps([text("Be brief.")])
    found = decode(batch(spans(span(1, gen_ai__input__messages=given, gen_ai__system_instructions=said))), LIMITS)
    assert [one["role"] for one in messages_of(found)] == ["system", "user"]


def test_messages_without_their_texts_were_not_captured() -> None:
    bare = {"type": "text"}
    found = read([bare], [bare], model_request_parameters=json.dumps({"function_tools": [{"name": "f", "description": "d"}]}))
    assert (found.bad, found.traces, dict(found.skipped["traces"])) == ([], [], {"content_not_captured": 1})
    assert [bad.reason for bad in read([bare], [text("Sunny.")]).bad] == ["unknown_part"]


def test_results_of_vertex_ai_in_log_records_find_their_calls() -> None:
    def value(item: Any) -> dict[str, Any]:
        if isinstance(item, dict):
            return {"kvlistValue": {"values": [{"key": key, "value": value(one)} for key, one in item.items()]}}
        return {"arrayValue": {"values": [value(one) for one in item]}} if isinstance(item, list) else {"stringValue": item}

    called = [{"function_call": {"name": name, "args": {"a": "1"}}} for name in ("get", "find")]
    bodies = {
        "gen_ai.user.message": [{"role": "user", "content": [{"text": "q"}]}],
        "gen_ai.assistant.message": [{"role": "model", "content": called}],
        "gen_ai.tool.message": [{"role": "user", "id": f"{name}_{n}", "content": {"r": name}} for n, name in enumerate(("get", "find"))],
        "gen_ai.choice": [{"finish_reason": "stop", "message": {"role": "model", "content": [{"text": "Sunny."}]}}],
    }
    ids = {"traceId": f"{1:032x}", "spanId": f"{1:016x}", "timeUnixNano": str(T0)}
    sent = [{**ids, "eventName": name, "body": value(body)} for name, listed in bodies.items() for body in listed]
    found = messages_of(decode(batch({"resourceLogs": [{"scopeLogs": [{"logRecords": sent}]}]}), LIMITS))
    assert [(one["role"], one["content"]) for one in found[2:]] == [("tool", '{"r":"get"}'), ("tool", '{"r":"find"}')]
