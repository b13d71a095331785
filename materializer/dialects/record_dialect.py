"""Decodes one record with its dialect, so that a failing dialect costs only that record.

The dialects of this package write complete rows. The rows of other dialects are checked and completed here, because a wrong value would
stop the whole batch, or a cycle long afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ratchet.contracts.conversation import Conversation, Message
from ratchet.contracts.data.decoding import Decoded, Limits, Row
from ratchet.contracts.data.records import CONSENT, FEEDBACK, SENT_SIGNALS, TRACES, Column, ConsentSubject, FeedbackKind
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.canonical.exchange import Reply, answer_of, conversation
from ratchet.materializer.dialects.canonical.tools import tools_of
from ratchet.materializer.dialects.conversation import checked
from ratchet.materializer.dialects.conversations.bodies import request_of
from ratchet.materializer.dialects.jsonl import JsonlDialect
from ratchet.materializer.dialects.otlp import ORIGINS, OtlpDialect, content_columns
from ratchet.materializer.dialects.review import ReviewDialect
from ratchet.materializer.dialects.statement import STATED, Statement
from ratchet.materializer.dialects.values import clean, dialect_failed, fits, parse_json, rating, start_time

_SET_BY_INGEST = frozenset({"source", "ingested", "batch", "sender", "verified", "trusted", "operator"})
_DEFAULTS: Row = {"origin": "traffic", "status": "ok", "consent": False}
_SENT_KINDS = tuple(kind for kind in FeedbackKind if kind not in (FeedbackKind.TEACHER, FeedbackKind.LOGGED))
"""Kinds that dialects may send. Only the service itself delivers answers of a teacher."""
_STATUSES = frozenset({"ok", "error", "refused"})
_STRUCTURED = frozenset({"messages", "answer", "tools"})
"""Columns that a dialect may give as JSON values."""
_CALLS = '"tool_calls":['
_TYPES: dict[str, type | tuple[type, ...]] = {"string": str, "double": (int, float), "long": int, "boolean": bool}


def decoded_with(named: Dialect, others: Sequence[Dialect], record: Any, position: str, limits: Limits) -> Decoded:
    """Return the rows of `record` from the one dialect of `others` that recognises it, or from `named`, the dialect of the batch's format.

    Raises Rejected if it cannot be read. So it does for a record that several dialects recognise, because it is unknown which of them is
    right.
    """
    claims = [dialect for dialect in others if _recognises(dialect, record)]
    if len(claims) > 1:
        names = ", ".join(sorted(dialect.name for dialect in claims))
        raise Rejected("ambiguous_dialect", f"the dialects {names} recognise the record; uninstall all but one")
    return _decoded(claims[0] if claims else named, record, position, limits)


def is_claimed(record: Any, others: Sequence[Dialect]) -> bool:
    """Return whether one of the dialects recognises the record. Raises Rejected if one fails."""
    return any(_recognises(dialect, record) for dialect in others)


def lacks_tools(row: Row) -> bool:
    """Return whether the conversation of a row calls tools, but its record names none."""
    return lacks(row["messages"], row["answer"], row["tools"])


def lacks(messages: str | None, answer: str | None, tools: str | None) -> bool:
    """Return what `lacks_tools` returns for the columns of a row."""
    return tools is None and (_CALLS in (messages or "") or _CALLS in (answer or ""))


def _recognises(dialect: Dialect, record: Any) -> bool:
    try:
        return bool(dialect.recognises(record))
    except Exception as error:
        raise dialect_failed(dialect.name, error) from error


def _decoded(dialect: Dialect, record: Any, position: str, limits: Limits) -> Decoded:
    """Return the checked rows of one record.

    Raises Rejected if the dialect rejects the record or fails, or if a row of another package's dialect is invalid.
    """
    found = Decoded()
    try:
        dialect.decode(record, position, limits, found)
    except Rejected:
        raise
    except Exception as error:
        raise dialect_failed(dialect.name, error) from error
    if not isinstance(dialect, OtlpDialect | JsonlDialect):
        found.traces = [_trace(row, dialect, position, limits) for row in found.traces]
        found.feedback = [_feedback(row, dialect, position, limits) for row in found.feedback]
        found.consents = [_consent(row, dialect, position, limits) for row in found.consents]
        found.halves = []  # only the OTLP dialect knows them
    return found


def _trace(given: Row, dialect: Dialect, position: str, limits: Limits) -> Row:
    row = _complete(_DEFAULTS | given, TRACES, dialect, position, limits)
    if row["origin"] not in ORIGINS:
        raise _bad_row(dialect, f"origin must be one of {', '.join(sorted(ORIGINS))}")
    if row["status"] not in _STATUSES:
        raise _bad_row(dialect, f"status must be one of {', '.join(sorted(_STATUSES))}")
    row[STATED] = Statement(True, row["consent_time"] or row["time"]) if row["consent"] else None
    if not (row["consent"] or limits.assume_consent):
        return row | dict.fromkeys(("messages", "answer", "tools", "reference"))
    if row["messages"] is None:
        fits(row["answer"] if isinstance(row["answer"], str) else None)
        return row | {"answer": row["answer"] if isinstance(row["answer"], str) else None, "tools": None}
    request = request_of(parse_json(row["messages"]) if isinstance(row["messages"], str) else row["messages"])
    found = conversation(request, Reply(_answer(row["answer"])), tools_of(row["tools"]))
    return row | content_columns(checked(found or Conversation([], None), answered=row["status"] == "ok"))


def _answer(value: Any) -> Message | None:
    """Return the answer of a row, which is text or an assistant message."""
    if isinstance(value, str):
        return {"role": "assistant", "content": value} if value.strip() else None
    return None if value is None else answer_of([value])


def _feedback(given: Row, dialect: Dialect, position: str, limits: Limits) -> Row:
    row = _complete(given, FEEDBACK, dialect, position, limits)
    of_teacher = row["kind"] == FeedbackKind.TEACHER and isinstance(dialect, ReviewDialect)
    if row["kind"] not in _SENT_KINDS and not of_teacher:
        raise _bad_row(dialect, f"kind must be one of {', '.join(_SENT_KINDS)}")
    if row["trace_id"] is None and row["response_id"] is None:
        raise Rejected("missing_id", "feedback refers to neither a trace nor a response")
    if row["kind"] == FeedbackKind.SIGNAL:
        if row["signal"] not in SENT_SIGNALS:
            raise _bad_row(dialect, f"signal must be one of {', '.join(SENT_SIGNALS)}")
        return row | {"value": None, "text": None}
    row["signal"] = row["signal"] if of_teacher else None
    if row["kind"] == FeedbackKind.RATING:
        return row | {"value": rating(row["value"], limits.rating_scale), "text": None}
    if not (row["text"] or "").strip():
        raise Rejected("bad_value", f"a {row['kind']} has no text")
    fits(row["text"])
    return row | {"value": None}


def _consent(given: Row, dialect: Dialect, position: str, limits: Limits) -> Row:
    row = _complete(given, CONSENT, dialect, position, limits)
    if row["subject"] not in set(ConsentSubject):
        raise _bad_row(dialect, f"subject must be one of {', '.join(ConsentSubject)}")
    return row


def _complete(given: Row, columns: Sequence[Column], dialect: Dialect, position: str, limits: Limits) -> Row:
    """Return the row with all columns that ingest does not set. Missing optional columns are None."""
    wanted = [column for column in columns if column.name not in _SET_BY_INGEST]
    unknown = sorted(given.keys() - {column.name for column in wanted} - {"position"})
    if unknown:
        raise _bad_row(dialect, f"unknown columns: {', '.join(unknown)}")
    row = {column.name: _value(given.get(column.name), column, dialect, limits) for column in wanted}
    return row | {"position": str(given.get("position", position))}


def _value(value: Any, column: Column, dialect: Dialect, limits: Limits) -> Any:
    if value is None and column.required:
        raise _bad_row(dialect, f"{column.name} is missing")
    if value is None:
        return None
    if column.type == "timestamp":
        return start_time(value, limits.now)
    if column.name in _STRUCTURED and isinstance(value, list | dict):
        return value
    wrong = isinstance(value, bool) != (column.type == "boolean") or not isinstance(value, _TYPES[column.type])
    if wrong or (column.type == "double" and not math.isfinite(value)) or (column.type == "long" and abs(value) >= 1 << 63):
        raise _bad_row(dialect, f"{column.name} must be a {column.type}, not {type(value).__name__}")
    if isinstance(value, str):
        try:
            return clean(value).encode().decode()
        except UnicodeEncodeError:
            raise Rejected("invalid_encoding", f"{column.name} has an unpaired surrogate") from None
    return float(value) if column.type == "double" else value


def _bad_row(dialect: Dialect, detail: str) -> Rejected:
    return Rejected("bad_row", f"dialect {dialect.name!r}: {detail}")
