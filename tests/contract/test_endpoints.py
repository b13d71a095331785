"""Tests of the endpoints besides chat completions, through the real router process, with model servers that answer as vLLM does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.local.router import LocalRouter
from ratchet.materializer.dialects.decode import as_json
from ratchet.materializer.dialects.otlp import decode_request
from tests import serving_site
from tests.serving_site import Site, route
from tests.waiting import until

pytestmark = pytest.mark.slow  # a real router process

_sessions = itertools.count()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalRouter, Site]]:
    with serving_site.traced_site(tmp_path_factory.mktemp("endpoints")) as both:
        yield both


class Asked:
    """A router in front of one model server, which gives one answer."""

    def __init__(self, both: tuple[LocalRouter, Site]) -> None:
        self.router, self.site = both
        self.site.asked.clear()
        self.session = f"s-{next(_sessions)}"  # traces of the tests before may still arrive
        self.headers = {"x-ratchet-consent": "true", "x-session-id": self.session, "x-user-id": "ada"}

    def post(self, path: str, body: dict[str, Any], reply: Any, status: int = 200, **headers: str) -> httpx.Response:
        content = reply if isinstance(reply, list) else json.dumps(reply).encode()
        self.site.reply = lambda _name, _body: (status, content)
        self.router.set(route(self.site.backend("v1", 100)))
        asked = {"model": "helper", **body}
        return httpx.post(f"{self.router.url()}{path}", json=asked, headers={**self.headers, **headers}, timeout=20, trust_env=False)

    def spans(self, count: int = 1) -> list[Any]:
        """Return the spans of the test, when there are so many."""

        def found() -> list[Any]:
            both = zip(self.site.spans, self.site.attributes(), strict=False)
            return [span for span, attributes in both if attributes["gen_ai.conversation.id"] == self.session]

        until(lambda: len(found()) >= count)
        return found()

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the last span."""
        return {kv.key: getattr(kv.value, str(kv.value.WhichOneof("value"))) for kv in self.spans()[-1].attributes}

    def decoded(self, count: int = 1) -> Decoded:
        """Return what ingest reads in so many spans."""
        spans = self.spans(count)
        request = ExportTraceServiceRequest(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=spans)])])
        found = Decoded()
        decode_request(as_json(ExportTraceServiceRequest, request.SerializeToString()), "request", Limits(now=10**17), found)
        return found


@pytest.fixture
def asked(both: tuple[LocalRouter, Site]) -> Asked:
    return Asked(both)


def events(*contents: dict[str, Any]) -> list[bytes]:
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in contents]


def read(reply: httpx.Response) -> list[dict[str, Any]]:
    """Return the events of a streamed reply. Their names are their types."""
    found = []
    for part in reply.text.strip().split("\n\n"):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


MESSAGES = {"max_tokens": 9, "system": "Be brief.", "messages": [{"role": "user", "content": [{"type": "text", "text": "1 + 1?"}]}]}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "inner",
    "content": [{"type": "text", "text": "2"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 7, "output_tokens": 2},
}
RESPONSES = {"instructions": "Be brief.", "input": "1 + 1?"}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "model": "inner",
    "status": "completed",
    "output": [
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "2"}]}
    ],
    "usage": {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9},
}
STREAMED_MESSAGE = events(
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None, "usage": {"input_tokens": 7, "output_tokens": 0}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It is "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "2"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
)
STREAMED_RESPONSE = events(
    {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": [], "usage": None}},
    {"type": "response.output_text.delta", "delta": "It is ", "item_id": "m", "output_index": 0, "content_index": 0},
    {"type": "response.output_text.delta", "delta": "2", "item_id": "m", "output_index": 0, "content_index": 0},
    {"type": "response.completed", "response": RESPONSE},
)
BOTH = [
    pytest.param("/v1/messages", MESSAGES, MESSAGE, STREAMED_MESSAGE, id="messages"),
    pytest.param("/v1/responses", RESPONSES, RESPONSE, STREAMED_RESPONSE, id="responses"),
]


@pytest.mark.parametrize(("path", "body", "reply", "_streamed"), BOTH)
def test_a_conversation_is_answered_and_its_trace_is_read(asked: Asked, path: str, body: Any, reply: Any, _streamed: Any) -> None:
    found = asked.post(path, body, reply)
    assert found.status_code == 200
    assert found.json() == {**reply, "model": "helper"}
    assert asked.site.asked[0]["model"] == "model-v1"
    (row,) = asked.decoded().traces
    assert json.loads(row["messages"]) == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    assert (row["answer"], row["finish_reason"], row["input_tokens"], row["output_tokens"]) == ("2", "stop", 7, 2)
    assert (row["user"], row["session"], row["model_version"], row["response_id"]) == ("ada", asked.session, "v1", reply["id"])
    assert row["consent"]


@pytest.mark.parametrize(("path", "body", "_reply", "streamed"), BOTH)
def test_a_streamed_conversation_is_passed_on_and_its_trace_is_read(asked: Asked, path: str, body: Any, _reply: Any, streamed: Any) -> None:
    found = asked.post(path, {**body, "stream": True}, streamed)
    assert found.headers["content-type"].startswith("text/event-stream")
    given = read(found)
    assert [one["type"] for one in given] == [json.loads(one.split(b"data: ")[1])["type"] for one in streamed]
    assert "inner" not in found.text
    (row,) = asked.decoded().traces
    assert row["answer"] in ("2", "It is 2")
    assert (row["finish_reason"], row["input_tokens"]) == ("stop", 7)
    assert asked.attributes()["gen_ai.response.time_to_first_chunk"] >= 0


@pytest.mark.parametrize(("path", "body", "_reply", "streamed"), BOTH)
def test_a_stream_that_is_cut_ends_with_an_error_and_its_answer_is_partial(
    asked: Asked, path: str, body: Any, _reply: Any, streamed: Any
) -> None:
    def cut() -> Iterator[bytes]:
        yield from streamed[:-2]
        raise ConnectionError

    asked.site.reply = lambda _name, _body: (200, cut())
    asked.router.set(route(asked.site.backend("v1", 100)))
    content = {"model": "helper", **body, "stream": True}
    found = httpx.post(f"{asked.router.url()}{path}", json=content, headers=asked.headers, timeout=20, trust_env=False)
    assert read(found)[-1]["type"] == "error"
    assert asked.attributes()["ratchet.partial"]
    assert asked.spans()[0].status.code == 2
    assert asked.decoded().traces[0]["answer"] is None


@pytest.mark.parametrize(("path", "body", "reply", "_streamed"), BOTH)
def test_without_consent_the_trace_has_no_content(asked: Asked, path: str, body: Any, reply: Any, _streamed: Any) -> None:
    asked.post(path, body, reply, **{"x-ratchet-consent": "false"})
    assert not {"input.value", "output.value"} & asked.attributes().keys()
    assert asked.decoded().traces[0]["messages"] is None


def test_calls_of_tools_are_read_in_both_forms(asked: Asked) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "find", "input": {"city": "Rome"}}
    tool = {"name": "find", "description": "", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    streamed = events(
        {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {**use, "input": {}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"city": '}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '"Rome"}'}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    )
    asked.post("/v1/messages", {**MESSAGES, "tools": [tool], "stream": True}, streamed)
    (row,) = asked.decoded().traces
    (call,) = json.loads(row["answer"])["tool_calls"]
    assert (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) == ("t1", "find", {"city": "Rome"})
    assert json.loads(row["tools"])[0]["function"]["name"] == "find"
    called = {"type": "function_call", "id": "f", "call_id": "t1", "name": "find", "arguments": '{"city": "Rome"}', "status": "completed"}
    named = {"type": "function", "name": "find", "parameters": tool["input_schema"]}
    asked.post("/v1/responses", {**RESPONSES, "tools": [named]}, {**RESPONSE, "output": [called]})
    assert json.loads(asked.decoded(2).traces[1]["answer"])["tool_calls"][0]["function"]["name"] == "find"


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background", "prompt"])
def test_what_a_server_would_have_to_keep_is_refused(asked: Asked, field: str) -> None:
    found = asked.post("/v1/responses", {**RESPONSES, field: "resp_0"}, RESPONSE)
    assert found.status_code == 400
    assert field in found.json()["error"]["message"]
    assert not asked.site.asked


def test_no_server_keeps_a_response(asked: Asked) -> None:
    asked.post("/v1/responses", {**RESPONSES, "store": True}, RESPONSE)
    assert asked.site.asked[0]["store"] is False


def test_a_text_completion_has_a_trace_without_content(asked: Asked) -> None:
    choice = {"index": 0, "text": " world", "finish_reason": "stop"}
    reply = {"id": "cmpl-1", "model": "inner", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    assert asked.post("/v1/completions", {"prompt": "hello"}, reply).json() == {**reply, "model": "helper"}
    (row,) = asked.decoded().traces
    assert (row["messages"], row["answer"], row["model_version"], row["output_tokens"], row["status"]) == (None, None, "v1", 2, "ok")
    pieces = [f"data: {json.dumps({**reply, 'choices': [{**choice, 'text': text}]})}\n\n".encode() for text in (" wor", "ld")]
    streamed = asked.post("/v1/completions", {"prompt": ["hello"], "stream": True}, [*pieces, b"data: [DONE]\n\n"])
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert [row["finish_reason"] for row in asked.decoded(2).traces] == ["stop", "stop"]


def test_embeddings_and_counts_are_in_flight_and_no_calls_of_the_model(asked: Asked) -> None:
    reply = {"object": "list", "model": "inner", "data": [{"index": 0, "embedding": [0.1]}], "usage": {"prompt_tokens": 2}}
    assert asked.post("/v1/embeddings", {"input": ["a", "b"]}, reply).json() == {**reply, "model": "helper"}
    assert asked.post("/v1/messages/count_tokens", {"messages": MESSAGES["messages"]}, {"input_tokens": 9}).json() == {"input_tokens": 9}
    found = asked.decoded(2)
    assert found.traces == []
    assert found.skipped["traces"] == {"not_a_generation": 2}


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("/v1/messages", {"messages": MESSAGES["messages"]}, "max_tokens"),
        ("/v1/messages", {"max_tokens": 9, "messages": []}, "messages"),
        ("/v1/responses", {"input": []}, "input"),
        ("/v1/completions", {"prompt": 3}, "prompt"),
        ("/v1/embeddings", {"input": "a", "stream": True}, "stream"),
        ("/v1/embeddings", {"input": ["a"] * 3000}, "2048"),
    ],
)
def test_a_request_that_no_version_can_serve_says_why(asked: Asked, path: str, body: Any, part: str) -> None:
    found = asked.post(path, body, {})
    assert found.status_code == 400
    assert part in json.dumps(found.json()["error"])
    assert (found.json().get("type") == "error") == path.startswith("/v1/messages")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/completions", "/v1/embeddings"])
def test_a_server_without_the_endpoint_is_not_at_fault(asked: Asked, path: str) -> None:
    body = {**MESSAGES, **RESPONSES, "prompt": "a"} if path != "/v1/responses" else RESPONSES
    assert asked.post(path, body, {"detail": "Not Found"}, status=404).status_code == 404
    assert asked.attributes()["ratchet.refused"]
    assert asked.spans()[0].status.code == 0


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load_lora_adapter/", "/v1//load_lora_adapter"])
@pytest.mark.parametrize("method", ["POST", "GET", "PUT"])
def test_the_endpoints_that_load_adapters_are_not_passed_on(asked: Asked, path: str, method: str) -> None:
    """They read files of the machine of the model server, so only the service may call them."""
    asked.post("/v1/completions", {"prompt": "x"}, {"choices": []})
    before = list(asked.site.asked)
    reply = httpx.request(method, f"{asked.router.url()}{path}", json={"lora_name": "x", "lora_path": "/etc"}, timeout=20, trust_env=False)
    assert reply.status_code == 404
    assert asked.site.asked == before, "the model server gets no request"
