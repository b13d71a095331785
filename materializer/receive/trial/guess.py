"""Guesses which key of unknown records has which of Ratchet's columns, from names and values, and says how sure that is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.conversations.reply_shapes import is_reply
from ratchet.materializer.dialects.langfuse import json_object
from ratchet.materializer.dialects.screening.outcome import has_failed
from ratchet.materializer.dialects.values import held_rating, moment, number, rating

Sure = Literal["sure", "likely", "guess"]
_DEPTH = 4
_OF_MODELS = frozenset({"assistant", "ai", "model", "gpt", "bot"})
_ENOUGH = 0.9
"""Share of the values that must fit."""


@dataclass(frozen=True)
class Guess:
    """The key that a column is probably read from."""

    column: str
    """Ratchet's column."""
    key: str
    """Key in the records, with dots for nested objects."""
    sure: Sure
    why: str


@dataclass(frozen=True)
class Doubt:
    """A key that looks like a column and cannot be read as one."""

    column: str
    key: str
    why: str


def _is_messages(value: Any) -> bool:
    if isinstance(value, list):
        inner = value[0] if len(value) == 1 and isinstance(value[0], list) else value  # LangChain has a list for each prompt
        return bool(inner) and all(isinstance(item, dict) and ({"role", "content", "from", "parts", "lc"} & item.keys()) for item in inner)
    return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_prompt(value: Any) -> bool:
    return _is_messages(value) or _is_text(value)


def _is_answer(value: Any) -> bool:
    return _is_text(value) or _is_messages(value) or (isinstance(value, dict) and bool(value))


def _is_name(value: Any) -> bool:
    return (isinstance(value, str) and 0 < len(value.strip()) <= 200 and "\n" not in value) or (
        isinstance(value, int) and not isinstance(value, bool)
    )


def _is_time(value: Any) -> bool:
    try:
        return moment(value) > 0
    except Rejected:
        return False


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and "-" in value and ":" in value and _is_time(value)


def _is_yes_or_no(value: Any) -> bool:
    return isinstance(value, bool) or value in (0, 1) or (isinstance(value, str) and value.strip().lower() in ("true", "false", "0", "1"))


def _is_rating(value: Any) -> bool:
    try:
        return rating(held_rating(value)) >= 0
    except Rejected:
        return False


def _is_status(value: Any) -> bool:
    try:
        return _is_name(value) and has_failed(value) is not None
    except Rejected:
        return False


def _is_whole(value: Any) -> bool:
    """Return whether a value is a conversation that ends with an answer of the model."""
    if not _is_messages(value) or not isinstance(value[-1], dict):
        return False
    return str(value[-1].get("role", value[-1].get("from"))).lower() in _OF_MODELS


def _is_tools(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and ({"function", "name", "parameters"} & item.keys()) for item in value)


def _is_count(value: Any) -> bool:
    found = number(value)
    return found is not None and found >= 0


@dataclass(frozen=True)
class _Column:
    names: str
    """Pattern of the last part of keys that mean the column."""
    fits: Callable[[Any], bool]
    form: str
    """What its values must be, in words."""
    always: bool = False
    """Whether nearly every record must have it."""


_COLUMNS: Mapping[str, _Column] = {
    "id": _Column(r"(id|_id|uuid|guid|(request|record|call|log|run|event|message|completion|row|sample|trace)_?id)", _is_name, "ids", True),
    "timestamp": _Column(
        r"(timestamp|time|ts|date|datetime|created(_?at)?|start(ed)?(_?(at|time))?|(request|event|call|log)_?(time|date|timestamp))",
        _is_time,
        "times",
        True,
    ),
    "messages": _Column(
        r"(messages|prompt(_?(text|messages))?|input(_?(text|messages))?|question|query|instruction|conversation|"
        r"(user|customer|client)_?(message|input|prompt|question|query|request|text))",
        _is_prompt,
        "messages or text",
        True,
    ),
    "response": _Column(
        r"(response(_?(text|message))?|completion(_?text)?|output(_?(text|message))?|answer|reply|generation|generated_?text|assistant(_?\w+)?|"
        r"(model|agent|bot|support)_?(output|answer|response|reply|message|text)|prediction)",
        _is_answer,
        "text or a message",
        True,
    ),
    "user_id": _Column(r"(request_)?(user|customer|member|account|end_?user|client|rater|uid|person)(_?(id|key|name))?", _is_name, "ids"),
    "session_id": _Column(r"(session|conversation|thread|chat|dialog(ue)?)(_?(id|key))?", _is_name, "ids"),
    "consent": _Column(
        r"(consent(_?\w+)?|opt_?in|(may|can|allow)_?(train|use|training)|training_?(allowed|consent))", _is_yes_or_no, "yes or no"
    ),
    "feedback": _Column(
        r"(feedback(_?(rating|score|value))?|rating|thumbs?(_?up)?|vote|liked?|score|csat|stars?|satisfaction|"
        r"user_?(score|rating|feedback))",
        _is_rating,
        "ratings",
    ),
    "correction": _Column(r"(correct(ion|ed)(_?\w+)?|edited(_?\w+)?|fixed(_?\w+)?|human_?answer|revised(_?\w+)?)", _is_text, "text"),
    "tools": _Column(r"(tools|functions|tool_?definitions)", _is_tools, "a list of tools"),
    "model": _Column(r"(model(_?(name|id))?|engine|deployment)", _is_name, "names"),
    "latency_ms": _Column(r"(latency|duration|elapsed)_?(ms|millis(econds)?)", _is_count, "numbers"),
    "input_tokens": _Column(r"(input|prompt)_?tokens?(_?count)?", _is_count, "numbers"),
    "output_tokens": _Column(r"(output|completion|generated)_?tokens?(_?count)?", _is_count, "numbers"),
    "region": _Column(r"(region|data_?region)", _is_name, "names"),
    "status": _Column(r"(status|state|outcome)", _is_status, "words for success or failure"),
    "finish_reason": _Column(r"(finish|stop)_?reason", _is_name, "names"),
    "slice": _Column(r"(slice|intent|category|topic|task)", _is_name, "names"),
}
_OTHER_ID = re.compile(
    r"(chat_?)?(ticket|case|question|prompt|item|example|doc(ument)?|issue|task|turn|response|answer|query|interaction|message|conversation|inference|"
    r"generation|result|entry)_?(id|uuid|guid|hash)",
    re.IGNORECASE,
)
"""Ids of other things than people. An id is stored as it is, so that one of a person must not be guessed."""
REFERENCES = re.compile(
    r"(reference(_?\w+)?|ground_?truth|gold(en)?(_?\w+)?|target|expected(_?\w+)?|ideal(_?\w+)?|label_?text)", re.IGNORECASE
)
"""Keys that may hold right answers. Only the user knows whether they are right, so they are never read by a guess."""
REWARDS = re.compile(r"(final_?reward|reward(_?\w+)?)", re.IGNORECASE)
"""Keys that may hold rewards of an earlier labelling."""


def guess_mapping(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Guess], list[Doubt]]:
    """Return the guessed keys in the order of Ratchet's columns, and keys that look like a column without fitting values."""
    values = _by_key(rows)
    guesses, doubts, taken = [], [], set[str]()
    for column, wanted in _COLUMNS.items():
        named = [key for key in values if key not in taken and _is_named(key, wanted.names)]
        fitting = []
        for key in named:
            share = sum(map(wanted.fits, values[key])) / len(values[key])
            if column == "feedback" and any((number(value) or 0) > 1 for value in values[key]):
                share = 0.0  # a scale with other ends, most of whose values may be 1
            if share >= _ENOUGH and (not wanted.always or len(values[key]) >= _ENOUGH * len(rows)):
                fitting.append((key, share))
            elif key.rpartition(".")[2].lower() == column or column in ("feedback", "timestamp", "id"):
                doubts.append(Doubt(column, key, _why_not(column, wanted, values[key], share, len(rows))))
        best = _best(column, fitting, values, len(rows))
        if best is not None:
            guesses.append(best)
            taken.add(best.key)
            doubts = [doubt for doubt in doubts if doubt.column != column]
    if not any(guess.column == "messages" for guess in guesses):
        unnamed = [key for key, found in values.items() if key not in taken and sum(map(_is_messages, found)) >= _ENOUGH * len(rows)]
        guesses += [Guess("messages", key, "guess", "its values are lists of messages") for key in unnamed[:1]]
    if not any(guess.column == "response" for guess in guesses):
        asked = next((guess.key for guess in guesses if guess.column == "messages"), "")
        others = {key: found for key, found in values.items() if key not in taken and not f"{asked}.".startswith(f"{key}.")}
        replies = [key for key, found in others.items() if sum(map(is_reply, found)) >= _ENOUGH * len(rows)]
        if asked and ends_with_answers(rows, asked):
            replies = []  # the answer is in the conversation, and another one is not the reply to it
        guesses += [Guess("response", key, "likely", "its values have the complete shape of an API's reply") for key in replies[:1]]
    if not any(guess.column == "id" for guess in guesses):
        ids = [key for key, found in values.items() if key not in taken and _is_other_id(key, found, len(rows))]
        guesses += [Guess("id", key, "guess", "100% of the values differ") for key in ids[:1]]
    if not any(guess.column == "timestamp" for guess in guesses):
        dated = [key for key, found in values.items() if key not in taken and sum(map(_is_date, found)) >= _ENOUGH * len(rows)]
        guesses += [Guess("timestamp", key, "guess", "its values are dates with times") for key in dated[:1]]
    order = list(_COLUMNS)
    return sorted(guesses, key=lambda guess: order.index(guess.column)), doubts


def _is_named(key: str, names: str) -> bool:
    """Return whether the last part of a key means a column, alone or with the part before it: `customer.id` is like `customer_id`."""
    parts = key.split(".")
    return any(re.fullmatch(names, text, re.IGNORECASE) for text in (parts[-1], "_".join(parts[-2:])))


def ends_with_answers(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    """Return whether the values of a key are conversations that end with an answer of the model, in nearly all records."""
    return sum(map(_is_whole, _by_key(rows).get(key, ()))) >= _ENOUGH * len(rows) > 0


def _is_other_id(key: str, values: Sequence[Any], rows: int) -> bool:
    """Return whether a key is named like the id of something that is no person, and has another value in each record."""
    own = _OTHER_ID.fullmatch(key.rpartition(".")[2]) is not None
    return own and len(values) == rows > 1 and all(map(_is_name, values)) and _differing(values) == 1


def _by_key(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        for key, value in _leaves(row, "", 1):
            found.setdefault(key, []).append(value)
    return found


def _leaves(value: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the keys of an object with dots, and their values. Objects are yielded themselves too, because an answer may be one."""
    for key, item in value.items():
        if "." in key or item is None:
            continue
        where = f"{path}.{key}" if path else key
        yield where, item
        inner = item if isinstance(item, dict) else json_object(item)
        if inner and depth < _DEPTH:
            yield from _leaves(inner, where, depth + 1)


def _best(column: str, fitting: Sequence[tuple[str, float]], values: Mapping[str, Sequence[Any]], rows: int) -> Guess | None:
    """Return the guess for a column: its own name first, then the shallowest key; for an id, the one whose values differ."""
    if not fitting:
        return None

    def rank(one: tuple[str, float]) -> tuple[Any, ...]:
        key = one[0]
        last = key.rpartition(".")[2].lower()
        return (-_differing(values[key]) if column == "id" else 0, last != column, key.count("."), -len(values[key]), key)

    ordered = sorted(fitting, key=rank)
    key, share = ordered[0]
    differing = _differing(values[key])
    if column == "id" and differing < 0.99:
        return None
    count = f"{share:.0%} of {len(values[key])} values are {_COLUMNS[column].form}"
    if column == "id":
        count = f"{differing:.0%} of {len(values[key])} values differ"
    exact = key.rpartition(".")[2].lower() == column
    others = [other for other, _ in ordered[1:] if other.count(".") <= key.count(".")]
    if exact and len(values[key]) >= _ENOUGH * rows:
        return Guess(column, key, "sure", f"the name of the column; {count}")
    if others:
        return Guess(column, key, "guess", f"{count}; so could be {', '.join(others[:3])}")
    return Guess(column, key, "likely", f"named like it; {count}")


def _differing(values: Sequence[Any]) -> float:
    return len({str(value) for value in values}) / len(values)


def _why_not(column: str, wanted: _Column, values: Sequence[Any], share: float, rows: int) -> str:
    if share >= _ENOUGH:
        return f"only {len(values)} of {rows} records have it"
    if column == "feedback":
        numbers = sorted({found for value in values if (found := number(value)) is not None})
        if numbers:
            limits = f"its values are {numbers[0]:g} to {numbers[-1]:g}"
            return f"{limits}; state the worst and the best rating in `rating_scale` = [{numbers[0]:g}, {numbers[-1]:g}]"
    return f"only {share:.0%} of its values are {wanted.form}"
