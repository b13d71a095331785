"""Computes signals from the calls of a session, or of a user where calls name no session. Pure.

A signal belongs to the call whose answer it is about. Where a later call repeats the conversation, its answer is looked up in the earlier
calls, so that calls of other conversations in between do no harm. Where it does not, the call before it in the session counts, if both
differ in the user's turn only: the calls of a program with several steps have different instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from statistics import quantiles
from typing import Any, NamedTuple

import orjson
import polars as pl

from ratchet.contracts.conversation import answer_message, text_of
from ratchet.contracts.data.decoding import Row
from ratchet.contracts.data.records import FEEDBACK, FeedbackKind, Signal
from ratchet.materializer.labels.signals.repeated import asks_again
from ratchet.materializer.labels.signals.thanks import is_thanks
from ratchet.materializer.labels.signals.tool_errors import reports_error
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.texts import PLACE, InMemory, Texts, filled_parts

PAUSE = timedelta(minutes=30)
"""A longer pause of a user ends the conversation, if calls name no session."""
REGENERATED_WITHIN = timedelta(minutes=10)
"""A user who wants another answer asks for it within this time."""
READING = timedelta(seconds=2)
"""Time from the end of an answer in which no person asks for another one. Programs repeat calls at once."""
ENDED_AFTER = timedelta(days=1)
"""A session without a call for this time has ended."""
LEAST_SESSIONS = 50
"""Ended sessions with which the usual length of a session is known."""
LEAST_USUAL = 3
"""Calls of the shorter sessions (lower quartile) of a line whose sessions can be abandoned."""

SESSION = ["source", "session", "user"]
"""Columns that are equal in all calls of a session."""
_COLUMNS = ("source", "id", "time", "user", "session", "messages", "tools", "answer", "status", "latency_ms", "sender")


class Found(NamedTuple):
    """A signal about the answer of a call."""

    signal: Signal
    about: Row
    time: datetime
    """Time of the call that showed it."""


_IN_MEMORY = InMemory()


def session_signals(traces: pl.DataFrame, as_of: datetime, thanks: Sequence[str] = (), texts: Texts = _IN_MEMORY) -> pl.DataFrame:
    """Return the signals of all sessions as rows of records.FEEDBACK, whose raters are the users of the traces.

    `traces` are all traces of the line's traffic (records.TRACES). The column `messages` is null where the content must not be used; such a
    call only counts as one. Traces with neither session nor user give nothing. `as_of` is the present time, `thanks` are phrases by which
    users thank. `texts` has the texts of `traces`. The result does not depend on the order of the rows.
    """
    return signals_of_parts(lambda: [calls_of(traces)], as_of, thanks, texts)


def calls_of(traces: pl.DataFrame) -> pl.DataFrame:
    """Return the traces from which signals may come, with the columns that `signals_of_parts` reads."""
    named = traces.filter(pl.col("session").is_not_null() | pl.col("user").is_not_null())
    return named.select(*_COLUMNS, *(name for name in named.columns if name == PLACE))


def signals_of_parts(
    parts: Callable[[], Iterable[pl.DataFrame]], as_of: datetime, thanks: Sequence[str], texts: Texts = _IN_MEMORY
) -> pl.DataFrame:
    """Return the result of `session_signals`.

    Each call of `parts` returns all calls (`calls_of`), and those of a session (SESSION) are in one part.
    """
    found, lengths = list[Found](), list[int]()
    for ordered in map(_ordered, parts()):
        several = ordered.filter(pl.len().over(SESSION) > 1)
        for (_, session, _), rows in groupby(_rows(several, texts), key=lambda row: tuple(row[key] for key in SESSION)):
            calls = list(rows)
            for part in [calls] if session is not None else _without_pauses(calls):
                found += in_conversation(part, session is not None, thanks)
        lengths += _ended(ordered, as_of)["calls"].to_list()
    usual = quantiles(lengths, n=4)[0] if len(lengths) >= LEAST_SESSIONS else 0.0
    if usual >= LEAST_USUAL:
        for ordered in map(_ordered, parts()):
            found += _abandoned(_ended(ordered, as_of).filter(pl.col("calls") < usual), thanks, texts)
    return frame_of([_row(one) for one in found], FEEDBACK)


def _ordered(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.sort(*SESSION, "time", "id", nulls_last=True)


def _rows(calls: pl.DataFrame, texts: Texts) -> Iterator[Row]:
    for part in filled_parts(calls, texts):
        yield from part.iter_rows(named=True)


def _row(found: Found) -> Row:
    about = found.about
    return {
        **{"source": about["source"], "trace_id": about["id"], "response_id": None, "rater": about["user"], "sender": about["sender"]},
        **{"kind": FeedbackKind.SIGNAL.value, "signal": found.signal.value, "value": None, "text": None, "trusted": False, "batch": ""},
        **dict.fromkeys(("time", "ingested"), int(found.time.timestamp() * 1_000_000)),
    }


def _without_pauses(calls: Sequence[Row]) -> Iterator[list[Row]]:
    part: list[Row] = []
    for call in calls:
        if part and call["time"] - part[-1]["time"] > PAUSE:
            yield part
            part = []
        part.append(call)
    yield part


def in_conversation(calls: Sequence[Row], is_session: bool, thanks: Sequence[str] = ()) -> list[Found]:
    """Return the signals between the `calls` of one session, or of one user without a longer pause, in the order of time."""
    by_text: dict[str, Row] = {}
    by_calls: dict[tuple[tuple[str, str], ...], Row] = {}
    by_request: dict[tuple[str, str | None], Row] = {}
    found: dict[tuple[Signal, str], Found] = {}
    before: Row | None = None
    for call in calls:
        if call["messages"] is None:
            before = None
            continue
        messages: list[dict[str, Any]] = orjson.loads(call["messages"])
        request = (call["messages"], call["tools"])
        signal, about = None, None
        if request in by_request:
            about = by_request[request]
            signal = Signal.SESSION_REGENERATED if _is_regenerated(about, call) else None
        elif messages and messages[-1].get("role") == "user":
            about = _answered(messages, by_text, before if is_session and before and _is_next(before, call, messages) else None)
            signal = _said(about, messages, thanks) if about else None
        elif messages and messages[-1].get("role") == "tool":
            about = by_calls.get(_calls_of(_last(messages, "assistant")))
            signal = Signal.SESSION_TOOL_ERROR if any(map(reports_error, _results(messages))) else None
        if signal and about:
            found.setdefault((signal, about["id"]), Found(signal, about, call["time"]))
        before = call if _has_answer(call) else None
        if before:
            answer = answer_message(call["answer"])
            by_request[request] = call
            by_text |= {text: call} if (text := text_of(answer).strip()) else {}
            by_calls |= {tools: call} if (tools := _calls_of(answer)) else {}
    return list(found.values())


def _has_answer(call: Row) -> bool:
    return call["status"] == "ok" and bool(call["answer"])


def _is_regenerated(first: Row, again: Row) -> bool:
    """Return whether a person asked for another answer: after the end of the first one, and soon."""
    return READING <= _since(first, again) <= REGENERATED_WITHIN


def _is_next(before: Row, call: Row, messages: Sequence[dict[str, Any]]) -> bool:
    """Return whether `call`, with these messages, is the next turn of the same use of the model, after the answer could be read."""
    alike = before["tools"] == call["tools"] and orjson.loads(before["messages"])[:-1] == messages[:-1]
    return alike and _since(before, call) >= READING


def _since(before: Row, call: Row) -> timedelta:
    """Return the time from the end of a call to the begin of a later one."""
    waited: timedelta = call["time"] - before["time"] - timedelta(milliseconds=before["latency_ms"] or 0)
    return waited


def _answered(messages: Sequence[dict[str, Any]], by_text: dict[str, Row], before: Row | None) -> Row | None:
    """Return the call to whose answer the last message of the user replies; None if it is not known.

    `before` is the call before in the session. It counts only if the conversation does not repeat any answer.
    """
    answer = _last(messages, "assistant")
    return before if answer is None else by_text.get(text_of(answer).strip())


def _said(about: Row, messages: Sequence[dict[str, Any]], thanks: Sequence[str]) -> Signal | None:
    """Return what the last message of the user says about the answer of the call `about`."""
    text = text_of(messages[-1])
    if is_thanks(text, thanks):
        return Signal.SESSION_THANKED
    asked = _last(orjson.loads(about["messages"]), "user")
    return Signal.SESSION_ASKED_AGAIN if asked is not None and asks_again(text_of(asked), text) else None


def _last(messages: Sequence[dict[str, Any]], role: str) -> dict[str, Any] | None:
    return next((message for message in reversed(messages) if message.get("role") == role), None)


def _calls_of(message: dict[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """Return the ids and the names of the tool calls of a message; empty without any."""
    return tuple((call["id"], call["function"]["name"]) for call in (message or {}).get("tool_calls") or ())


def _results(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the texts of the tool results at the end of a conversation."""
    for message in reversed(messages):
        if message.get("role") != "tool":
            return
        yield text_of(message)


def _ended(calls: pl.DataFrame, as_of: datetime) -> pl.DataFrame:
    """Return the last call of each ended session, with the number of its calls."""
    named = calls.filter(pl.col("session").is_not_null())
    last = named.with_columns(pl.len().over(SESSION).alias("calls")).group_by(SESSION, maintain_order=True).last()
    return last.filter(pl.col("time") + ENDED_AFTER <= as_of)


def _abandoned(ended: pl.DataFrame, thanks: Sequence[str], texts: Texts) -> Iterable[Found]:
    """Yield the last answer of each session that is shorter than the line's shorter sessions, and did not end with thanks."""
    for call in _rows(ended, texts):
        if call["messages"] is not None and _has_answer(call):
            said = _last(orjson.loads(call["messages"]), "user")
            if said is not None and not is_thanks(text_of(said), thanks):
                yield Found(Signal.SESSION_ABANDONED, call, call["time"])
