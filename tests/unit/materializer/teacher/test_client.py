"""Tests of the client of a teacher against a real HTTP server."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from typing import Any

import pytest

from ratchet.contracts.data.teaching import TeacherOutcome, TeacherReply
from ratchet.contracts.loop import TeacherSettings
from ratchet.materializer.teacher.client import HttpTeacher
from tests.builders import teacher_section
from tests.judge_stub import Reply, Stub, serving

ASKED = [{"role": "user", "content": "What is 2 + 3?"}]


def asked(reply: Reply, waits: list[float] | None = None, key: str | None = None, **changes: Any) -> tuple[TeacherReply, Stub]:
    """Ask a server that always replies the same."""
    with serving(Stub(lambda _: reply, key=key)) as stub:
        settings = TeacherSettings(**teacher_section(url=stub.url, **changes))
        teacher = HttpTeacher(settings, lambda text: text.startswith("I cannot"), (waits if waits is not None else []).append)
        return teacher.ask(ASKED, 100), stub


def completion(**choice: Any) -> bytes:
    """A chat completion."""
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 3}}).encode()


def test_an_answer_has_its_tokens_and_the_key_stays_in_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "k-secret")
    found, stub = asked("5", key="k-secret", key_env="TEACHER_KEY")
    assert (found.outcome, found.text, found.requests) == (TeacherOutcome.ANSWERED, "5", 1)
    assert found.input_tokens is not None
    (body,) = stub.bodies
    assert (body["model"], body["messages"], body["max_tokens"], body["temperature"]) == ("big", ASKED, 100, 0.0)
    assert "k-secret" not in json.dumps(body)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (completion(message={"content": "5"}, finish_reason="length"), TeacherOutcome.CUT),
        (completion(message={"content": None, "refusal": "no"}, finish_reason="stop"), TeacherOutcome.DECLINED),
        (completion(message={"content": "I cannot help"}, finish_reason="stop"), TeacherOutcome.DECLINED),
        (completion(message={"content": ""}, finish_reason="content_filter"), TeacherOutcome.DECLINED),
        (completion(message={"content": " "}, finish_reason="stop"), TeacherOutcome.MALFORMED),
        (completion(message={"content": "x", "tool_calls": [{}]}, finish_reason="tool_calls"), TeacherOutcome.MALFORMED),
        (completion(message={"content": "a\ud800b"}, finish_reason="stop"), TeacherOutcome.MALFORMED),
        (completion(message={"content": "x" * 131_073}, finish_reason="stop"), TeacherOutcome.MALFORMED),
        (b"not json", TeacherOutcome.MALFORMED),
        (b'{"choices": []}', TeacherOutcome.MALFORMED),
        (b"[1e999]", TeacherOutcome.MALFORMED),
        ((401, {}), TeacherOutcome.REFUSED),
        ((404, {}), TeacherOutcome.REFUSED),
        ((302, {"location": "http://elsewhere.example/"}), TeacherOutcome.REFUSED),
        ((422, {}), TeacherOutcome.REJECTED),
        ((500, {}), TeacherOutcome.LOST),
    ],
)
def test_each_failure_is_an_outcome(reply: Reply, outcome: TeacherOutcome) -> None:
    found, stub = asked(reply)
    assert (found.outcome, found.text, found.requests, stub.requests) == (outcome, None, 1, 1)
    if isinstance(reply, bytes) and b"usage" in reply:
        assert (found.input_tokens, found.output_tokens) == (11, 3), "an answer that is not used was paid for"


def test_a_busy_teacher_is_asked_again_for_its_patience() -> None:
    waits: list[float] = []
    found, stub = asked((429, {"retry-after": "7"}), waits, patience=20.0)
    assert (found.outcome, found.requests, stub.requests) == (TeacherOutcome.BUSY, 3, 3)
    assert waits == [7.0, 7.0]


def test_a_busy_teacher_gets_no_more_requests_than_are_left() -> None:
    with serving(Stub(lambda _: (429, {"retry-after": "1"}))) as stub:
        teacher = HttpTeacher(TeacherSettings(**teacher_section(url=stub.url, patience=60.0)), sleep=lambda _: None)
        assert (teacher.ask(ASKED, 2).requests, stub.requests) == (2, 2)


def test_no_key_and_no_server_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEACHER_KEY", raising=False)
    found, stub = asked("5", key_env="TEACHER_KEY")
    assert (found.outcome, found.requests, stub.requests) == (TeacherOutcome.UNREACHABLE, 0, 0)
    assert "TEACHER_KEY" in found.detail
    found = HttpTeacher(TeacherSettings(**teacher_section())).ask(ASKED, 100)
    assert (found.outcome, found.requests) == (TeacherOutcome.UNREACHABLE, 0)


def test_a_reply_that_does_not_arrive_may_have_been_paid_for() -> None:
    with serving(Stub(lambda _: "5", seconds=2.0)) as stub:
        settings = TeacherSettings(**teacher_section(url=stub.url, timeout=0.2))
        assert HttpTeacher(settings).ask(ASKED, 100).outcome is TeacherOutcome.LOST


def test_a_reply_that_drips_is_given_up() -> None:
    """A timeout of one read would never end it."""

    def drip(client: socket.socket) -> None:
        client.recv(65_536)
        with contextlib.suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            for _ in range(100):
                client.sendall(b" ")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: drip(server.accept()[0]), daemon=True).start()
        settings = TeacherSettings(**teacher_section(url=f"http://127.0.0.1:{server.getsockname()[1]}/v1", timeout=0.5))
        begun = time.monotonic()
        assert HttpTeacher(settings).ask(ASKED, 100).outcome is TeacherOutcome.LOST
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("key", ["“quoted”", "two\nlines"])
def test_a_key_that_cannot_be_sent_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("TEACHER_KEY", key)
    found, stub = asked("5", key_env="TEACHER_KEY")
    assert (found.outcome, found.requests, stub.requests) == (TeacherOutcome.UNREACHABLE, 0, 0)
    assert key not in found.detail


def test_white_space_around_a_key_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "k-secret\n")
    assert asked("5", key="k-secret", key_env="TEACHER_KEY")[0].outcome is TeacherOutcome.ANSWERED


@pytest.mark.parametrize("host", ["a:b", "[::1", "x" * 64 + ".example"])
def test_an_address_that_is_none_sends_nothing(host: str) -> None:
    settings = TeacherSettings(**teacher_section(url=f"https://{host}/v1"))
    assert HttpTeacher(settings).ask(ASKED, 100).outcome is TeacherOutcome.UNREACHABLE
