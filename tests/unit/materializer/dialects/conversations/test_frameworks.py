"""Spans of frameworks that are not in any convention alone: what becomes of their pieces, and of what they lose."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.conversation import is_generation, read_conversation
from ratchet.materializer.dialects.conversations.request_keys import check_beside
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.dialects.described import model_of, response_id_of, tokens_of
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.people.told import told
from ratchet.materializer.quarantine.excerpt import masked_part
from tests.unit.materializer.dialects.conversations.forms import CALLS, CHUNKS, HISTORY, TOOL, completion, record
from tests.unit.materializer.records import T0, attribute, batch, span, spans

REQUEST = {"model": "m", "messages": HISTORY, "tools": [TOOL]}
EMPTY = completion({"role": "assistant", "content": ""})
NATIVE = {
    "mlflow.spanType": '"CHAT_MODEL"',
    "mlflow.spanInputs": json.dumps(REQUEST),
    "mlflow.spanOutputs": json.dumps(EMPTY | {"id": "chatcmpl-1"}),
    "mlflow.llm.model": '"m"',
    "mlflow.chat.tokenUsage": json.dumps({"input_tokens": 7, "output_tokens": 9}),
}


def pieces(bodies: list[dict[str, Any]], first: int = 0) -> list[tuple[str, dict[str, Any]]]:
    listed = list(enumerate(bodies))[first:]
    return [(f"mlflow.chunk.item.{number}", {"mlflow.chunk.value": json.dumps(body)}) for number, body in listed]


def test_a_span_of_mlflow_is_a_call_if_its_type_says_so() -> None:
    kinds = {kind: is_generation(Attributes.of_values({"mlflow.spanType": kind})) for kind in ('"CHAT_MODEL"', '"LLM"', "LLM", '"TOOL"')}
    assert kinds == {'"CHAT_MODEL"': True, '"LLM"': True, "LLM": True, '"TOOL"': False}
    for kind in ('"UNKNOWN"', '""', "null", '"Chat"'):  # the type of spans that do not state one
        assert is_generation(Attributes.of_values({"mlflow.spanType": kind, "gen_ai.operation.name": "chat"}))
    described = Attributes.of_values(NATIVE)
    assert (model_of(described), tokens_of(described), response_id_of(described)) == ("m", (7, 9), "chatcmpl-1")


def test_texts_of_mlflow_are_read_without_their_quotation_marks() -> None:
    texts = {"mlflow.spanType": '"LLM"', "mlflow.spanInputs": '"Hi?"', "mlflow.spanOutputs": json.dumps("One\ntwo")}
    found = read_conversation(record(texts))
    assert (found.messages[0]["content"], (found.answer or {})["content"]) == ("Hi?", "One\ntwo")
    for nothing in ("null", '""'):
        assert read_conversation(record(texts | {"mlflow.spanInputs": nothing})).messages == []


def test_pieces_without_an_end_do_not_replace_the_output() -> None:
    said = completion({"role": "assistant", "content": "Whole."})
    attributes = NATIVE | {"mlflow.spanOutputs": json.dumps(said)}
    delta = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Wh"}}]}
    empty = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    for bodies in ([delta], [empty]):
        assert (read_conversation(record(attributes, pieces(bodies))).answer or {})["content"] == "Whole."


def test_tools_beside_plain_messages_are_read() -> None:
    asked, answered = ([{"role": role, "parts": [{"type": "text", "content": "Hm."}]}] for role in ("user", "assistant"))
    texts = {"gen_ai.input.messages": json.dumps(asked), "gen_ai.output.messages": json.dumps(answered)}
    assert read_conversation(record(texts | {"mlflow.chat.tools": json.dumps([TOOL])})).tools


def test_the_pieces_of_a_stream_have_the_calls_that_the_output_of_mlflow_lacks() -> None:
    found = read_conversation(record(NATIVE, pieces(CHUNKS)))
    assert found.answer is not None
    assert [one["function"] for one in found.answer["tool_calls"]] == [one["function"] for one in CALLS]
    assert [message["role"] for message in found.messages] == [message["role"] for message in HISTORY]
    assert [tool["function"]["name"] for tool in found.tools] == ["get_weather"]


@pytest.mark.parametrize("form", [{}, {"gen_ai.operation.name": "chat"}], ids=["native", "genai"])
def test_a_call_that_mlflow_lost_quarantines_the_span(form: dict[str, str]) -> None:
    """The exporter drops the oldest events of a long stream, and its output has the text beside the calls only."""
    said = completion({"role": "assistant", "content": "Let me see."})
    attributes = NATIVE | {"mlflow.spanOutputs": json.dumps(said)}
    if form:
        asked, answered = ([{"role": role, "parts": [{"type": "text", "content": "Hm."}]}] for role in ("user", "assistant"))
        attributes = form | {"gen_ai.input.messages": json.dumps(asked), "gen_ai.output.messages": json.dumps(answered)}
    with pytest.raises(Rejected, match="ended with tool calls") as caught:
        read_conversation(record(attributes, pieces(CHUNKS, first=3)))
    assert caught.value.reason == "lost_calls"
    assert read_conversation(record(attributes)).answer is not None


def test_a_damaged_piece_is_not_read() -> None:
    events = pieces(CHUNKS)
    events[2] = (events[2][0], {"mlflow.chunk.value": '{"object": '})
    said = completion({"role": "assistant", "content": "Let me see."})
    with pytest.raises(Rejected) as caught:
        read_conversation(record(NATIVE | {"mlflow.spanOutputs": json.dumps(said)}, events))
    assert caught.value.reason == "lost_calls"


def decoded(**values: Any) -> Decoded:
    item = span(1, gen_ai__input__messages=None, gen_ai__output__messages=None)
    item["attributes"] += [attribute(key, value) for key, value in values.items()]
    return decode(batch(spans(item)), Limits(now=T0 // 1000 + 10**12, assume_consent=True))


def answered(messages: list[dict[str, Any]], reasons: Any = None) -> str:
    asked = [{"role": "user", "parts": [{"type": "text", "content": "Weather?"}]}]
    more = {"gen_ai.response.finish_reasons": json.dumps(reasons)} if reasons else {}
    found = decoded(**{"gen_ai.input.messages": json.dumps(asked), "gen_ai.output.messages": json.dumps(messages)}, **more)
    assert [bad.detail for bad in found.bad] == []
    return str(found.traces[0]["answer"])


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "parts": [{"type": "text", "content": text}], **more}


CALLED = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Oslo"}}]}


def test_messages_of_the_output_are_choices_or_the_items_of_one_answer() -> None:
    item = {"finish_reason": "completed"}
    for one in ([said("Let me see."), CALLED], [said("Let me see.", **item), CALLED | item]):
        found = answered(one)
        assert "Let me see." in found
        assert '"weather"' in found
    assert answered([said("One.", finish_reason="stop"), said("Two.", finish_reason="stop")]) == "One."
    assert answered([said("One."), said("Two.")], ["stop", "stop"]) == "One."
    for reasons in (["completed"], ["completed", "completed"], None):
        assert answered([said("One.", **item), said("Two.", **item)], reasons) == "One.\nTwo."
    for reasons in (["stop"], "stop,stop", None):  # nothing shows that these are items
        assert answered([said("One."), said("Two.")], reasons) == "One."
    thought = said(json.dumps({"id": "rs_1", "summary": [], "type": "reasoning"}))
    assert '"weather"' in answered([thought, said("Let me see."), CALLED], ["tool_calls"])


def test_calls_of_a_second_message_are_not_lost_silently() -> None:
    asked = [{"role": "user", "parts": [{"type": "text", "content": "Weather?"}]}]
    messages = [said("Let me see."), CALLED | {"finish_reason": "tool_calls"}]
    found = decoded(**{"gen_ai.input.messages": json.dumps(asked), "gen_ai.output.messages": json.dumps(messages)})
    assert [bad.reason for bad in found.bad] == ["not_one_answer"]


def test_an_item_of_reasoning_alone_is_no_message_of_the_answer() -> None:
    thought = said(json.dumps({"id": "rs_1", "summary": [], "type": "reasoning"}), finish_reason="completed")
    assert answered([thought, said("Sunny.", finish_reason="completed")], ["completed"]) == "Sunny."


def test_a_block_of_a_reply_as_text_is_its_text() -> None:
    block = json.dumps({"type": "output_text", "text": "Rain.", "annotations": []})
    assert answered([said(block)]) == "Rain."
    assert answered([said('{"type": "output_text", "text": "no block"}')]).startswith("{")


def test_llama_index_marks_spans_around_a_call_as_calls() -> None:
    printed = json.dumps({"messages": ["ChatMessage(role=<MessageRole.USER: 'user'>, blocks=[])"]})
    around = {"openinference.span.kind": "LLM", "input.value": printed, "output.value": "assistant: Sunny."}
    call = around | {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "Weather?"}
    assert not is_generation(Attributes.of_values(around))
    assert is_generation(Attributes.of_values(call))
    quoted = json.dumps({"messages": [{"role": "user", "content": f"What is {printed}?"}]})
    assert is_generation(Attributes.of_values(around | {"input.value": quoted}))


def test_the_printed_answer_of_llama_index_is_read_without_its_role() -> None:
    """The exporter leaves out the part with the reasoning, so that the first index is missing."""
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Weather?",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.contents.1.message_content.type": "text",
        "llm.output_messages.0.message.contents.1.message_content.text": "Sunny.",
        "output.value": "assistant: Sunny.",
    }
    assert (read_conversation(record(attributes)).answer or {})["content"] == "Sunny."
    other = attributes | {"output.value": "assistant: Something else. Sunny."}
    assert (read_conversation(record(other)).answer or {})["content"] != "Sunny."


def test_reasoning_that_smolagents_writes_as_text_is_left_out() -> None:
    def attributes(stated: str) -> dict[str, str]:
        texts = {
            f"llm.output_messages.0.message.contents.{at}.message_content.{key}": value
            for at, text in enumerate(("Sunny.", "It was sunny before."))
            for key, value in (("type", "text"), ("text", text))
        }
        asked = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "Weather?"}
        body = {"output.value": json.dumps({"role": "assistant", "content": stated, "raw": "…"}), "output.mime_type": "application/json"}
        return {"openinference.span.kind": "LLM", "llm.output_messages.0.message.role": "assistant", **asked, **texts, **body}

    assert (read_conversation(record(attributes("Sunny."))).answer or {})["content"] == "Sunny."
    assert "before" in str((read_conversation(record(attributes("Other."))).answer or {})["content"])
    part = "llm.output_messages.0.message.contents.1.message_content"
    called = {key: value for key, value in attributes("Sunny.").items() if not key.startswith(part)}
    called |= {f"{part}.type": "tool_use", f"{part}.id": "c1", f"{part}.name": "w", f"{part}.input": "{}"}
    assert (read_conversation(record(called)).answer or {})["tool_calls"]


def test_the_output_of_dspy_with_reasoning_is_its_text() -> None:
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Weather?",
        "output.value": json.dumps([{"text": "Sunny.", "reasoning_content": "Hm."}]),
    }
    assert (read_conversation(record(attributes)).answer or {})["content"] == "Sunny."


def test_the_format_of_an_answer_is_no_part_of_the_prompt() -> None:
    check_beside({"input": "Weather?", "text": {"format": {"type": "json_object"}, "verbosity": "low"}})
    for text in ("Oslo", {"format": {}, "content": "Oslo"}):
        with pytest.raises(Rejected):
            check_beside({"input": "Weather?", "text": text})


def test_people_in_attributes_of_mlflow_are_read_from_their_json_text() -> None:
    found = told(Attributes.of_values({"user.id": '"ada"', "session.id": '"s1"', "metadata.reference": '"quoted"'}))
    assert (found.value("user"), found.value("session"), found.value("reference")) == ("ada", "s1", '"quoted"')
    assert told(Attributes.of_values({"user.id": '"ada'})).value("user") == '"ada'
    twice = json.dumps(json.dumps({"consent": False}))
    assert told(Attributes.of_values({"metadata": twice})).refuses()
    part = {"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [attribute("user.id", '"ada"')]}]}]}]}
    kept = masked_part(part, Limits(0, True), lambda subject, name: f"{subject}:{name}", lambda text: text)
    assert "u:ada" in json.dumps(kept)
