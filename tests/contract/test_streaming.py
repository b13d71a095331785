"""Tests of streamed answers through the real router process, with model servers that stream as vLLM does."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.local.router import LocalRouter
from tests import serving_site
from tests.serving_site import Site, route, started
from tests.waiting import until

pytestmark = pytest.mark.slow  # real router processes

Pieces = Iterable[bytes]
_sessions = itertools.count()
CONSENT = {"x-ratchet-consent": "true", "x-session-id": "s1", "x-user-id": "ada"}


@pytest.fixture(scope="module")
def traced_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalRouter, Site]]:
    with serving_site.traced_site(tmp_path_factory.mktemp("streamed")) as both:
        yield both


@pytest.fixture
def traced(traced_site: tuple[LocalRouter, Site]) -> tuple[LocalRouter, Site]:
    """The shared router and site, with a session of its own for each test, because traces of the tests before may still arrive."""
    traced_site[1].asked.clear()
    CONSENT["x-session-id"] = f"s-{next(_sessions)}"
    return traced_site


def chunk(delta: dict[str, Any] | None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    """Return an event as vLLM writes it: JSON without escapes."""
    choices = [] if delta is None else [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]
    content = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1, "model": "inner", "choices": choices, **more}
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()


USAGE = chunk(None, usage={"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8})
DONE = b"data: [DONE]\n\n"


def answer(*texts: str) -> list[bytes]:
    return [chunk({"role": "assistant", "content": ""}), *[chunk({"content": text}) for text in texts], chunk({}, "stop"), USAGE, DONE]


def serve(traced: tuple[LocalRouter, Site], pieces: Callable[[], Pieces]) -> str:
    """Let the router forward to a model server with these pieces, and return its address."""
    router, site = traced
    site.reply = lambda _name, _body: (200, pieces())
    router.set(route(site.backend("v1", 100)))
    return router.url()


def events(url: str, **body: Any) -> list[Any]:
    """Return the data of all events of an answer."""
    asked = {"model": "helper", "messages": [{"role": "user", "content": "hi"}], "stream": True, **body}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=asked, headers=CONSENT, timeout=30, trust_env=False) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        found = [part.removeprefix("data: ") for part in reply.read().decode().split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in found]


def trace(site: Site) -> dict[str, Any]:
    """Return the attributes of the trace of this test's session, and its status as `status`."""

    def found() -> list[dict[str, Any]]:
        pairs = zip(site.attributes(), list(site.spans), strict=False)
        ids = {"status": lambda span: span.status.code, "ids": lambda span: f"{span.trace_id.hex()}:{span.span_id.hex()}"}
        every = [values | {name: of(span) for name, of in ids.items()} for values, span in pairs]
        return [values for values in every if values.get("gen_ai.conversation.id") == CONSENT["x-session-id"]]

    (values,) = until(found)
    return values


def said(values: dict[str, Any]) -> str:
    return str(json.loads(values["gen_ai.output.messages"])[0]["parts"][0]["content"])


def test_a_chat_client_gets_the_chunks_and_the_trace_is_complete(traced: tuple[LocalRouter, Site]) -> None:
    url = serve(traced, lambda: answer("Über", " 🦜", "\u2028x"))
    import openai  # takes seconds to load

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused")
    messages: Any = [{"role": "user", "content": "hi"}]
    with client.chat.completions.with_streaming_response.create(
        model="helper", messages=messages, stream=True, extra_headers=CONSENT
    ) as raw:
        stream = raw.parse()
        chunks = list(stream)
        named = raw.headers["x-ratchet-trace"]
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == "Über 🦜\u2028x"
    assert [one.choices[0].finish_reason for one in chunks][-1] == "stop"
    assert {one.model for one in chunks} == {"helper"}
    assert not [one for one in chunks if one.usage is not None], "the caller did not ask for usage"
    site = traced[1]
    assert site.asked[0]["stream_options"] == {"include_usage": True}
    values = trace(site)
    assert named == values["ids"]
    assert said(values) == "Über 🦜\u2028x"
    assert (values["gen_ai.usage.input_tokens"], values["gen_ai.usage.output_tokens"]) == (5, 3)
    assert (values["gen_ai.response.id"], values["gen_ai.request.stream"]) == ("chatcmpl-7", True)
    assert values["gen_ai.response.time_to_first_chunk"] > 0
    assert values["ratchet.output_tokens_per_second"] > 0
    assert not {"ratchet.partial", "ratchet.refused"} & values.keys()
    assert "stop" in str(values["gen_ai.response.finish_reasons"])


def test_usage_reaches_the_caller_who_asks_for_it(traced: tuple[LocalRouter, Site]) -> None:
    url = serve(traced, lambda: answer("yes"))
    assert events(url, stream_options={"include_usage": True})[-2]["usage"]["total_tokens"] == 8
    assert [event for event in events(url) if event != "[DONE]" and "usage" in event] == []


def test_the_first_chunk_does_not_wait_for_the_second(traced: tuple[LocalRouter, Site]) -> None:
    seen = threading.Event()

    def pieces() -> Pieces:
        yield chunk({"content": "first"})
        assert seen.wait(30)
        yield from [chunk({}, "stop"), DONE]

    url = serve(traced, pieces)
    body = {"model": "helper", "messages": [], "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30, trust_env=False) as reply:
        parts = reply.iter_bytes()
        assert b"first" in next(parts)
        seen.set()
        assert b"".join(parts).endswith(DONE)


def test_events_are_split_wherever_the_network_splits_them(traced: tuple[LocalRouter, Site]) -> None:
    whole = b": comment\r\n\r\n" + b"".join(answer("a🦜b", "c")).replace(b"\n\n", b"\r\n\r\n")
    url = serve(traced, lambda: [whole[at : at + 3] for at in range(0, len(whole), 3)])
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events(url)[:-1]) == "a🦜bc"
    assert said(trace(traced[1])) == "a🦜bc"


def test_only_the_first_choice_is_traced(traced: tuple[LocalRouter, Site]) -> None:
    url = serve(traced, lambda: [chunk({"content": "one"}), chunk({"content": "two"}, index=1), chunk({}, "length"), DONE])
    assert len(events(url, n=2)) == 4
    assert said(trace(traced[1])) == "one"


def test_tool_calls_are_passed_on_unchanged_and_the_trace_has_them_whole(traced: tuple[LocalRouter, Site]) -> None:
    call = {"tool_calls": [{"index": 0, "id": "call-1", "function": {"name": "look", "arguments": '{"a": "ü'}}]}
    rest = {"tool_calls": [{"index": 0, "function": {"arguments": '"}'}}]}
    url = serve(traced, lambda: [chunk({"content": "I look."}), chunk(call), chunk(rest), chunk({}, "tool_calls"), DONE])
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    found = events(url, tools=[tool])
    assert found[1] == json.loads(chunk(call)[6:]) | {"model": "helper"}
    values = trace(traced[1])
    (answer,) = json.loads(values["gen_ai.output.messages"])
    assert answer["parts"] == [
        {"type": "text", "content": "I look."},
        {"type": "tool_call", "id": "call-1", "name": "look", "arguments": '{"a": "ü"}'},
    ]
    assert json.loads(values["gen_ai.tool.definitions"]) == [tool]


def test_a_trace_has_no_half_of_a_tool_call(traced: tuple[LocalRouter, Site]) -> None:
    call = {"tool_calls": [{"index": 0, "id": "call-1", "function": {"name": "look", "arguments": '{"a": "cut'}}]}
    url = serve(traced, lambda: [chunk({"content": "I look."}), chunk(call), chunk({}, "length"), DONE])
    events(url)
    values = trace(traced[1])
    assert values["ratchet.content_omitted"] == "unreadable"
    assert not {"gen_ai.output.messages", "gen_ai.input.messages"} & values.keys()


def broken() -> Pieces:
    yield chunk({"content": "half"})
    raise ConnectionError


def reported() -> Pieces:
    yield chunk({"content": "half"})
    yield b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'
    yield DONE


@pytest.mark.parametrize("pieces", [broken, reported, lambda: [chunk({"content": "half"}), b"data: nonsense\n\n", DONE]])
def test_an_answer_that_breaks_is_an_error_for_the_caller_and_partial_in_the_trace(
    traced: tuple[LocalRouter, Site], pieces: Callable[[], Pieces]
) -> None:
    found = events(serve(traced, pieces))
    assert found[0]["choices"][0]["delta"]["content"] == "half"
    assert "error" in found[1]
    values = trace(traced[1])
    assert (said(values), values["ratchet.partial"]) == ("half", True)
    assert values["status"] == 2


def test_a_caller_that_leaves_stops_the_model_server_and_leaves_a_partial_trace(traced: tuple[LocalRouter, Site]) -> None:
    stopped = threading.Event()

    def pieces() -> Pieces:
        try:
            while True:
                yield chunk({"content": "more "})
        finally:
            stopped.set()

    url = serve(traced, pieces)
    body = {"model": "helper", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=CONSENT, timeout=30, trust_env=False) as reply:
        next(reply.iter_bytes())
    assert stopped.wait(30), "the model server must learn that nobody waits for the answer"
    values = trace(traced[1])
    assert said(values).startswith("more ")
    assert (values["ratchet.partial"], values["ratchet.refused"]) == (True, True)
    assert values["status"] != 2, "no version is blamed"


@pytest.mark.parametrize(("status", "content", "seen"), [(400, b'{"error": "no"}', 400), (500, b"no", 500), (200, b"{}", 502)])
def test_a_model_server_that_does_not_stream_gives_an_error(
    traced: tuple[LocalRouter, Site], status: int, content: bytes, seen: int
) -> None:
    router, site = traced
    site.reply = lambda _name, _body: (status, content)
    router.set(route(site.backend("v1", 100)))
    body = {"model": "helper", "messages": [], "stream": True}
    reply = httpx.post(f"{router.url()}/v1/chat/completions", json=body, headers=CONSENT, timeout=30, trust_env=False)
    assert reply.status_code == seen
    assert "error" in reply.json()
    assert "ratchet.partial" not in trace(site)


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_is_late_ends_at_the_deadline(site: Site, tmp_path: Path, streamed: bool) -> None:
    (tmp_path / "receiver.json").write_text(json.dumps({"port": site.open(site.receive)}))
    hold = threading.Event()

    def pieces() -> Pieces:
        yield chunk({"content": "half"})
        hold.wait(30)

    site.reply = lambda _name, _body: (200, pieces())
    with started(tmp_path, deadline=3) as router:
        router.set(route(site.backend("v1", 100)))
        body = {"model": "helper", "messages": [], "stream": streamed}
        reply = httpx.post(f"{router.url()}/v1/chat/completions", json=body, timeout=30, trust_env=False)
        until(lambda: site.spans)
        hold.set()
    assert (reply.status_code, "3 s" in reply.text) == (200 if streamed else 504, True)
    assert site.attributes()[0].get("ratchet.partial", False) is streamed


def test_a_caller_with_too_many_requests_is_refused_and_others_are_not(site: Site, tmp_path: Path) -> None:
    hold, asked = threading.Event(), threading.Semaphore(0)

    def slow(name: str, body: dict[str, Any]) -> tuple[int, bytes]:
        asked.release()
        hold.wait(30)
        return site.answer(name, body)

    site.reply = slow
    with started(tmp_path, per_caller=2) as router:
        router.set(route(site.backend("v1", 100)))

        def ask(user: str) -> httpx.Response:
            body = {"model": "helper", "messages": [], "user": user}
            return httpx.post(f"{router.url()}/v1/chat/completions", json=body, timeout=30, trust_env=False)

        threads = [threading.Thread(target=ask, args=(user,)) for user in ("ada", "ada", "bob")]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert asked.acquire(timeout=30)
        refused = ask("ada")
        hold.set()
        for thread in threads:
            thread.join()
        assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
        assert ask("ada").status_code == 200
