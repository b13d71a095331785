"""Mutated records of every dialect: each is read whole or rejected with a reason, and nothing else happens."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from ratchet.contracts.conversation import Conversation, answer_message, are_tool_calls, stored_answer
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record
from ratchet.materializer.dialects.conversation import checked, read_conversation
from ratchet.materializer.dialects.conversations.otel_genai import DETAILS
from ratchet.materializer.dialects.otlp_attributes import Attributes
from tests.unit.materializer.dialects.conversations import forms as f
from tests.unit.materializer.dialects.conversations.test_dialects import ANSWERED, CALLING, GEMINI

RECORDS = {
    **ANSWERED,
    **{f"{name}, calling": record for name, record in CALLING.items()},
    **{f"{name}, {place}": record for name, records in GEMINI.items() for place, record in enumerate(records)},
    "plain": f.record(asked=f.QUESTION, answered=f.ANSWER),
    "reply as text": f.record(asked=f.HISTORY, answered=json.dumps(f.completion(f.FINAL))),
    "response as text": f.record(asked=f.response_items(f.HISTORY), answered=json.dumps(f.response(f.FINAL))),
    "own JSON": f.record(asked=f.HISTORY, answered=json.dumps({"content": f.ANSWER, "title": "t"})),
    "ollama": f.record(asked=f.HISTORY, answered={"model": "m", "message": f.FINAL, "done": True}),
    "strands": f.record(events=[(DETAILS, {key: value}) for key, value in f.otel_attributes(f.HISTORY, f.FINAL).items()]),
}
CONTENT = (f.QUESTION, f.ANSWER, "sunny", "rain", "Paris", "Rome")
"""Texts that are nowhere else in a record. One that a mutation leaves in the record is in its conversation, or the record is rejected."""
DEEP: Any = "end"
for _ in range(300):
    DEEP = [DEEP]
ODD: list[Any] = [
    None,
    True,
    -1,
    1e300,
    10**30,
    "",
    "\x00",
    "text \x00",
    [],
    {},
    [None],
    {"role": "user"},
    "[{",
    "null",
    "None",
    "9999-12-31",
    "\U0001f600" * 50,
    DEEP,
]


def plain(record: Record) -> dict[str, Any]:
    """A record as JSON values, with JSON in attributes parsed, so that mutations reach it."""
    events = [[name, _parsed(attributes.plain())] for name, attributes in record.events]
    return copy.deepcopy(
        {
            "attributes": _parsed(record.attributes.plain()),
            "events": events,
            "asked": _loaded(record.input),
            "answered": _loaded(record.output),
        }
    )


def _parsed(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _loaded(value) for key, value in values.items()}


def _loaded(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return {"\x00json": json.loads(value)}
        except (ValueError, RecursionError):
            return value
    return value


def _dumped(value: Any) -> Any:
    if isinstance(value, dict) and "\x00json" in value:
        try:
            return json.dumps(value["\x00json"])
        except (ValueError, RecursionError):
            return "[" * 300
    return value


def record_of(values: dict[str, Any]) -> Record:
    def attributes(given: Any) -> Attributes:
        return Attributes.of_values({key: _dumped(value) for key, value in given.items()} if isinstance(given, dict) else {})

    listed = values.get("events")
    events = [(one[0], attributes(one[1])) for one in listed or [] if isinstance(one, list) and len(one) == 2 and isinstance(one[0], str)]
    return Record(attributes(values.get("attributes")), events, _dumped(values.get("asked")), _dumped(values.get("answered")))


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list) and depth < 40:
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key], depth + 1)


def _is_event_name(holder: Any, key: Any) -> bool:
    """An event with another name does not belong to a model call. Its content does not count as lost."""
    return isinstance(holder, list) and key == 0 and len(holder) == 2 and isinstance(holder[1], dict)


def mutate(values: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        places = [(holder, key) for holder, key in _places(values) if holder is not values and not _is_event_name(holder, key)]
        if not places:
            return values
        holder, key = draw.choice(places)
        action = draw.randrange(7)
        if action == 0:
            del holder[key]
        elif action == 1:
            holder[key] = copy.deepcopy(draw.choice(ODD) if draw.random() < 0.9 else DEEP)  # a shared value would grow
        elif action == 2 and isinstance(holder, dict):
            holder[f"{key}x"] = holder.pop(key)
        elif action == 3:
            holder[key] = [holder[key]]
        elif action == 4:
            holder[key] = {"value": holder[key]}
        elif action == 5 and not isinstance(holder[key], str):
            try:
                holder[key] = json.dumps(holder[key])
            except (ValueError, RecursionError):
                holder[key] = "["
        elif isinstance(holder, list):
            holder.insert(draw.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    return values


def check_canonical(found: Conversation) -> None:
    known: set[str] = set()
    for message in [*found.messages, *([found.answer] if found.answer else [])]:
        assert message.keys() <= {"role", "content", "tool_calls", "tool_call_id", "name"}
        assert message["role"] in ("system", "developer", "user", "assistant", "tool")
        content = message["content"]
        assert isinstance(content, str) or all(
            part.keys() in ({"type", "text"}, {"type", "image_url"}) and part["type"] in part for part in content
        )
        if "tool_calls" in message:
            assert message["role"] == "assistant"
            assert are_tool_calls(message["tool_calls"])
            assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in message["tool_calls"])
            known |= {call["id"] for call in message["tool_calls"]}
        if message["role"] == "tool":
            assert message["tool_call_id"] in known
    if found.answer:
        assert found.answer["role"] == "assistant"
        if isinstance(found.answer["content"], str):
            assert answer_message(stored_answer(found.answer)) == {key: found.answer[key] for key in found.answer if key != "name"}
    assert "\x00" not in "".join(str(message["content"]) for message in found.messages)


def outcome(record: Record) -> Conversation | Rejected:
    try:
        return checked(read_conversation(record), answered=True)
    except Rejected as rejection:
        return rejection


def attack(name: str, count: int, seed: int = 0) -> tuple[int, int]:
    """Read `count` mutations of a record. Returns (number kept, number rejected)."""
    draw = random.Random(f"{name}/{seed}")
    base = plain(RECORDS[name])
    kept = 0
    for _ in range(count):
        values = mutate(copy.deepcopy(base), draw)
        record = record_of(values)
        found = outcome(record)
        if isinstance(found, Rejected):
            assert found.reason
            assert found.reason != "dialect_failed"
            assert not any(text in found.detail for text in CONTENT), (found.detail, values)
            continue
        kept += 1
        check_canonical(found)
        present, shown = repr(plain(record)), repr(found)
        lost = [text for text in CONTENT if text in present and text not in shown]
        assert not lost, (lost, values, found)
    return kept, count - kept


@pytest.mark.parametrize("name", RECORDS)
def test_a_mutated_record_is_read_whole_or_rejected(name: str) -> None:
    kept, rejected = attack(name, 25)
    assert kept + rejected == 25


@pytest.mark.soak
@pytest.mark.parametrize("name", RECORDS)
def test_ten_thousand_mutated_records(name: str) -> None:
    kept, rejected = attack(name, 10_000, seed=1)
    print(f"{name}: {kept} kept, {rejected} rejected")
    assert kept + rejected == 10_000
