"""Tests of the signals that are computed from the calls of a session."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.contracts.conversation import stored_answer
from ratchet.contracts.data.records import TRACES, Signal
from ratchet.materializer.labels.signals.sessions import LEAST_SESSIONS, PAUSE, READING, REGENERATED_WITHIN, session_signals
from ratchet.materializer.lake.schemas import frame_of

START = datetime(2026, 10, 1, tzinfo=UTC)
LATER = START + timedelta(days=30)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _lamp(identity: str = "c1") -> dict[str, Any]:
    call = {"id": identity, "type": "function", "function": {"name": "lamp", "arguments": '{"on":true}'}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _result(text: str, identity: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def _call(
    identity: str, seconds: float, messages: list[dict[str, Any]] | None, answer: Any = "A", *, session: str | None = "s", **more: Any
) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(column.name for column in TRACES)
    time = int((START + timedelta(seconds=seconds)).timestamp() * 1_000_000)
    row |= {"source": "app", "id": identity, "time": time, "ingested": time, "batch": "b", "origin": "traffic", "consent": True}
    row |= {"user": "u", "session": session, "status": "ok", "latency_ms": 1000.0}
    row["messages"] = None if messages is None else json.dumps(messages)
    row["answer"] = stored_answer(answer if isinstance(answer, dict) else _said(answer))
    return row | more


def _signals(*calls: dict[str, Any], as_of: datetime = LATER) -> list[tuple[str, str]]:
    found = session_signals(frame_of(calls, TRACES), as_of)
    return sorted(found.select("trace_id", "signal").iter_rows())


QUESTION = "What is the capital of Australia?"


def test_a_user_who_thanks_in_the_next_turn() -> None:
    talk = [_user(QUESTION), _said("Canberra"), _user("Thanks a lot!")]
    assert _signals(_call("a", 0, talk[:1], "Canberra"), _call("b", 60, talk, "You are welcome")) == [("a", Signal.SESSION_THANKED)]


@pytest.mark.parametrize("text", ["Thanks, but that is wrong", "Danke, aber das stimmt nicht", "谢谢，但是错了", "And of Austria, thanks?"])
def test_a_user_who_thanks_and_disagrees_does_not_thank(text: str) -> None:
    talk = [_user(QUESTION), _said("Sydney"), _user(text)]
    assert _signals(_call("a", 0, talk[:1], "Sydney"), _call("b", 60, talk)) == []


def test_a_user_who_asks_again() -> None:
    talk = [_user(QUESTION), _said("Sydney"), _user("No. What is the capital of Australia?")]
    assert _signals(_call("a", 0, talk[:1], "Sydney"), _call("b", 60, talk)) == [("a", Signal.SESSION_ASKED_AGAIN)]


def test_the_answer_that_a_conversation_repeats_counts_and_not_the_call_before() -> None:
    talk = [_user(QUESTION), _said("Canberra"), _user("thanks")]
    title = _call("title", 30, [_user("Give this conversation a title")], "Capitals")
    assert _signals(_call("a", 0, talk[:1], "Canberra"), title, _call("b", 60, talk)) == [("a", Signal.SESSION_THANKED)]
    unknown = [_user(QUESTION), _said("an answer of another application"), _user("thanks")]
    assert _signals(_call("a", 0, talk[:1], "Canberra"), _call("b", 60, unknown)) == []


def test_a_session_without_history_names_the_call_before() -> None:
    calls = _call("a", 0, [_user(QUESTION)], "Canberra"), _call("b", 60, [_user("thank you")], "Welcome")
    assert _signals(*calls) == [("a", Signal.SESSION_THANKED)]
    assert _signals(*(call | {"session": None} for call in calls)) == []  # without a session, nothing says that they belong together


def test_the_steps_of_a_program_are_no_turns_of_a_user() -> None:
    def with_instructions(text: str) -> list[dict[str, Any]]:
        return [{"role": "system", "content": text}, _user(QUESTION)]

    steps = [_call("a", 0, with_instructions("Name the topic."), "geography"), _call("b", 5, with_instructions("Answer."), "Canberra")]
    assert _signals(*steps) == []


def test_a_refused_call_in_between_hides_what_it_said() -> None:
    calls = _call("a", 0, [_user(QUESTION)], "Canberra"), _call("x", 30, None), _call("b", 60, [_user("thank you")])
    assert _signals(*calls) == []


def test_the_same_request_soon_after_is_regenerated() -> None:
    def again(seconds: float, **more: Any) -> list[tuple[str, str]]:
        return _signals(_call("a", 0, [_user(QUESTION)]), _call("b", seconds, [_user(QUESTION)], "B", **more))

    assert again(30) == [("a", Signal.SESSION_REGENERATED)]
    assert again(0.5) == []  # it began before the first answer ended: two samples of a program
    assert again(1 + READING.total_seconds() / 2) == []  # nobody reads so fast
    assert again(2 + REGENERATED_WITHIN.total_seconds()) == []
    assert again(30, tools='[{"type": "function"}]') == []
    assert again(30, user="v") == []
    assert again(30, session="other") == []


def test_a_call_that_failed_was_not_regenerated() -> None:
    assert _signals(_call("a", 0, [_user(QUESTION)], status="error"), _call("b", 30, [_user(QUESTION)])) == []


def test_a_tool_that_reports_an_error() -> None:
    talk = [_user("Turn on the lamp"), _lamp(), _result('{"error": "no lamp"}')]
    assert _signals(_call("a", 0, talk[:1], _lamp()), _call("b", 2, talk, "It failed")) == [("a", Signal.SESSION_TOOL_ERROR)]
    fine = [*talk[:2], _result('{"error": null}')]
    assert _signals(_call("a", 0, talk[:1], _lamp()), _call("b", 2, fine, "Done")) == []
    assert _signals(_call("a", 0, talk[:1], _lamp("c2")), _call("b", 2, talk, "It failed")) == []  # the call of another answer


def test_an_old_error_in_the_history_is_not_counted_again() -> None:
    talk = [_user("Turn on the lamp"), _lamp("c1"), _result("Error: no lamp", "c1"), _lamp("c2"), _result("on", "c2")]
    calls = _call("a", 0, talk[:1], _lamp("c1")), _call("b", 2, talk[:3], _lamp("c2")), _call("c", 4, talk, "Done")
    assert _signals(*calls) == [("a", Signal.SESSION_TOOL_ERROR)]


def test_calls_without_session_belong_together_until_a_pause() -> None:
    talk = [_user(QUESTION), _said("Canberra"), _user("thanks")]

    def after(pause: float) -> list[tuple[str, str]]:
        return _signals(_call("a", 0, talk[:1], "Canberra", session=None), _call("b", pause, talk, session=None))

    assert after(60) == [("a", Signal.SESSION_THANKED)]
    assert after(PAUSE.total_seconds() + 1) == []


def test_without_ids_nothing_is_computed() -> None:
    talk = [_user(QUESTION), _said("Canberra"), _user("thanks")]
    calls = _call("a", 0, talk[:1], "Canberra", session=None), _call("b", 60, talk, session=None)
    assert _signals(*(call | {"user": None} for call in calls)) == []


def _sessions(lengths: list[int], last: str = "tell me more") -> list[dict[str, Any]]:
    return [
        _call(f"{session:03}-{turn}", 60 * turn, [_user(last if turn == length - 1 else f"{turn} {session}")], session=f"s{session}")
        for session, length in enumerate(lengths)
        for turn in range(length)
    ]


def test_a_short_session_of_a_line_with_long_ones_is_abandoned() -> None:
    long = [5] * (LEAST_SESSIONS - 1)
    assert _signals(*_sessions([*long, 1])) == [("049-0", Signal.SESSION_ABANDONED)]
    assert _signals(*_sessions([*long, 1], last="thanks"))[-1:] != [("049-0", Signal.SESSION_ABANDONED)]
    assert _signals(*_sessions([*long, 1]), as_of=START + timedelta(hours=1)) == []  # it may go on
    assert _signals(*_sessions([*long[1:], 1])) == []  # too few sessions to know their length
    assert _signals(*_sessions([2] * LEAST_SESSIONS + [1])) == []  # sessions of this line are short


TURNS = st.lists(st.sampled_from(["thanks", QUESTION, "No, what is the capital of Australia?", "ok", "x"]), min_size=1, max_size=8)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(TURNS, TURNS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(one: list[str], other: list[str], order: random.Random) -> None:
    calls = []
    for session, turns in (("s", one), ("t", other)):
        history: list[dict[str, Any]] = []
        for turn, text in enumerate(turns):
            history = [*history, _user(text)]
            calls.append(_call(f"{session}{turn}", 20 * turn, history, f"answer {turn % 2}", session=session))
            history = [*history, _said(f"answer {turn % 2}")]
    expected = session_signals(frame_of(calls, TRACES), LATER).drop("ingested")
    order.shuffle(calls)
    assert expected.equals(session_signals(frame_of(calls, TRACES), LATER).drop("ingested"))
    assert set(expected["trace_id"]) <= {call["id"] for call in calls}
    assert isinstance(expected, pl.DataFrame)
