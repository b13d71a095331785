"""Compares what the dialects read of a call with the log of the model server."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import polars as pl

from ratchet.contracts.conversation import answer_message
from ratchet.contracts.data.decoding import Decoded, Limits, Row
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.dialects.otlp import identifier
from ratchet.materializer.dialects.statement import STATED
from ratchet.materializer.lake.tables import joined
from tests.harness.script import TOOLS
from tests.unit.materializer.records import batch

NOW = 4_000_000_000_000_000
"""Time of decoding in microseconds, after every record."""
FACTS = ("model", "input_tokens", "output_tokens", "response_id", "user", "session")
"""Columns that describe a call."""


class Outcome(StrEnum):
    """What became of one call."""

    RIGHT = "right"
    NO_TOOLS = "right without tools"
    REMARK = "right with a remark"
    """A description that the record has is not read, or a failed call is counted twice."""
    QUARANTINED = "quarantined"
    LOST = "lost by the exporter"
    WRONG = "silently wrong"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a call, and why."""

    outcome: Outcome
    why: str = ""
    lost: tuple[str, ...] = field(default=())
    """Facts that the exporter does not write, or writes with another value."""


@dataclass(frozen=True)
class Rules:
    """What is known about a library beside its exports."""

    places: tuple[str, ...]
    """Places whose consent counts."""
    alike: Mapping[str, str] = field(default_factory=dict)
    """Roles of the record that the library writes as other ones into its request."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Scene -> what the exporter writes wrongly so that no reader can notice it."""


def judge(truth: dict[str, Any], records: list[tuple[str, Any]], rules: Rules) -> Verdict:
    """Compare one call. `records` are the exports as (form, record)."""
    found = _judged(truth, records, rules.places, rules.alike)
    fault = rules.faults.get(truth["scene"])
    if found.outcome is not Outcome.WRONG or fault is None:
        return found
    missing = "; not in the export" in found.why
    return Verdict(
        Outcome.LOST if missing else Outcome.REMARK,
        f"not noticed: the exporter loses {fault}" if missing else f"the exporter writes {fault}",
    )


def _judged(truth: dict[str, Any], records: list[tuple[str, Any]], places: tuple[str, ...], alike: Mapping[str, str]) -> Verdict:
    written = Written(record for _, record in records)
    assumed, required = (_decoded(records, Limits(NOW, assume, consent_places=places)) for assume in (True, False))
    rows = _rows(assumed)
    if not truth["consent"]:
        return _refused(rows, required, written)
    if (
        len(rows) > 1
        and truth["status"] == "error"
        and not any(row["answer"] for row in rows)
        and all(row["status"] == "error" for row in rows)
    ):
        return Verdict(Outcome.REMARK, f"{len(rows)} spans of a failed call")
    if len(rows) > 1:
        return Verdict(Outcome.WRONG, f"{len(rows)} traces of one call")
    lost = written.lacks(_texts(truth))
    if not rows:
        reasons = sorted({bad.reason for bad in assumed.bad})
        details = "; ".join(sorted({bad.detail for bad in assumed.bad}))
        if lost or not records:
            return Verdict(Outcome.LOST, f"{', '.join(reasons) or 'no record'}: {lost[0][:40] if lost else ''}")
        if reasons:
            return Verdict(Outcome.QUARANTINED, f"{', '.join(reasons)} ({details})")
        return Verdict(Outcome.WRONG, f"skipped: {dict(assumed.skipped['traces'])}")
    [row] = rows
    if wrong := _wrong(truth, row, written, alike):
        return Verdict(Outcome.WRONG, wrong + (f"; not in the export: {lost[0][:40]!r}" if lost else ""))
    agreed = any(one["consent"] for one in _rows(required))
    missing = [name for name in FACTS if row[name] is None and truth[name] is not None and not _is_failure(truth, name)]
    missing += [] if agreed else ["consent"]
    other = [name for name in FACTS if _miscounted(name, row, truth, written)]
    unread = [name for name in missing if written.has(name, truth[name])]
    gone = (*(name for name in missing if name not in unread), *other)
    if truth["tools"] and row["tools"] is None and truth["status"] == "ok":
        absent = bool(Written(_spans_of(row, records)).lacks(TOOLS[name][0] for name in truth["tools"]))
        return Verdict(Outcome.NO_TOOLS, "not in the export" if absent else "not read", gone)
    return Verdict(Outcome.REMARK, ", ".join(unread), gone) if unread else Verdict(Outcome.RIGHT, "", gone)


def _spans_of(row: Row, records: list[tuple[str, Any]]) -> list[Any]:
    """Return the records of a call itself, without the spans of its tools and agents, which may repeat parts of it."""
    found: list[Any] = []
    for form, record in records:
        holders = [*record.get("resourceSpans", []), *record.get("resourceLogs", [])] if form == "otlp-json" else [record]
        scopes = [scope for holder in holders for scope in [*holder.get("scopeSpans", []), *holder.get("scopeLogs", [])]]
        items = [item for scope in scopes for item in [*scope.get("spans", []), *scope.get("logRecords", [])]]
        found += [item for item in items if row["id"].endswith(identifier(item.get("spanId"), 8))] if form == "otlp-json" else holders
    return found


def _miscounted(name: str, row: Row, truth: dict[str, Any], written: Written) -> bool:
    """Whether the exporter has counted other tokens than the server: the record has the value of the row, and not that of the server."""
    counts = name in ("input_tokens", "output_tokens") and row[name] is not None and row[name] != truth[name]
    return counts and written.has(name, row[name]) and not written.has(name, truth[name])


def _is_failure(truth: dict[str, Any], fact: str) -> bool:
    """Whether a failed call has no such fact."""
    return truth["status"] == "error" and fact in ("input_tokens", "output_tokens", "response_id", "model")


def _encodes(given: Any, wanted: Any) -> bool:
    """Whether an id is one that LiteLLM gives to the application: base64 of a text that ends with the id of the server."""
    try:
        return base64.b64decode(str(given).partition("_")[2] + "==").endswith(str(wanted).encode())
    except ValueError:
        return False


def _refused(rows: list[Row], required: Decoded, written: Written) -> Verdict:
    kept = [row for row in [*rows, *_rows(required)] if row["messages"] or row["answer"]]
    if not kept:
        return Verdict(Outcome.RIGHT)
    return Verdict(Outcome.WRONG, "kept against a refusal" if written.has("consent", False) else "kept: the exporter lost the refusal")


def _decoded(records: list[tuple[str, Any]], limits: Limits) -> Decoded:
    found = Decoded()
    for form in sorted({form for form, _ in records}):
        part = decode(batch(*[record for kind, record in records if kind == form], kind=form), limits)
        found.merge(part, form)
    return found


def _rows(found: Decoded) -> list[Row]:
    """Return the traces, each with the metadata of its other half, as the lake joins them."""
    halves = {row["id"]: row for row in found.halves}
    columns = sorted({*FACTS, "messages", "answer", "tools", "status", "consent", "id"})
    rows, seen = [], set[str]()
    for row in found.traces:
        if row["id"] in seen:
            continue
        seen.add(row["id"])
        both = [row, halves[row["id"]]] if row["id"] in halves else [row]
        if any(one[STATED] is not None and not one[STATED].given for one in both):  # ingest applies a refusal to both halves
            row = row | {"messages": None, "answer": None, "tools": None}
            both[0] = row
        given = [{name: one[name] for name in columns} | {"source": "s", "sender": None} for one in both]
        rows.append(joined(pl.DataFrame(given, infer_schema_length=None)).to_dicts()[0] | {"consent": any(one["consent"] for one in both)})
    return rows


def _wrong(truth: dict[str, Any], row: Row, written: Written, alike: Mapping[str, str]) -> str:
    """Return the first value of a row that is not the truth. A missing description is not wrong; missing content is."""
    if row["status"] != truth["status"] and (truth["status"], row["status"]) != ("error", "refused"):  # the router's word for status 400
        return f"the status is {row['status']}"
    for name in FACTS:
        if row[name] is None or row[name] == truth[name] or _is_failure(truth, name) or _encodes(row[name], truth[name]):
            continue
        if not _miscounted(name, row, truth, written):
            return f"{name} is {row[name]!r}, not {truth[name]!r}"
    if truth["status"] == "error":
        return "a failed call has an answer" if row["answer"] else ""
    asked = [_plain(one) for one in json.loads(row["messages"] or "[]")]
    truth = truth | {"messages": _alike(truth["messages"], alike)}
    asked = _alike(asked, alike)
    answered = _plain(answer_message(row["answer"] or ""))
    for place, (one, other) in enumerate(zip(_numbered(asked), _numbered(truth["messages"]), strict=False)):
        if one != other:
            return f"message {place} is {_short(one)}, not {_short(other)}"
    if len(asked) != len(truth["messages"]):
        return f"{len(asked)} messages, not {len(truth['messages'])}"
    [said, told] = _numbered([*asked, answered])[-1], _numbered([*truth["messages"], truth["answer"]])[-1]
    if said != told:
        return f"the answer is {_short(said)}, not {_short(told)}"
    names = [one["function"]["name"] for one in json.loads(row["tools"])] if row["tools"] else None
    return "" if names is None or sorted(names) == sorted(truth["tools"]) else f"the tools are {names}"


def _alike(messages: list[dict[str, Any]], alike: Mapping[str, str]) -> list[dict[str, Any]]:
    return [one | {"role": alike.get(one["role"], one["role"])} for one in messages]


def _short(message: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in message.items() if value}, ensure_ascii=False)[:300]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a canonical message in the form of the truth."""
    content, images = message["content"], []
    if isinstance(content, list):
        images = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        content = "".join(part["text"] for part in content if part["type"] == "text")
    calls = [[call["function"]["name"], json.loads(call["function"]["arguments"]), call["id"]] for call in message.get("tool_calls") or ()]
    return {"role": message["role"], "text": content, "images": images, "calls": calls, "answers": message.get("tool_call_id")}


def _numbered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the ids of calls replaced by their places: libraries give calls other ids, but must pair them."""
    places: dict[Any, int] = {}
    found = []
    for one in messages:
        calls = [[name, arguments, places.setdefault(identity, len(places))] for name, arguments, identity in one["calls"]]
        answers = None if one["answers"] is None else places.get(one["answers"], "unknown")
        role = one["role"]
        found.append(one | {"role": role, "calls": calls, "answers": answers, "text": _text(one)})
    return found


def _text(message: dict[str, Any]) -> str:
    """Return the text; that of a tool's JSON result as JSON, because libraries write the value instead of its text."""
    if message["role"] != "tool":
        return str(message["text"])
    try:
        return json.dumps(json.loads(message["text"]), sort_keys=True)
    except ValueError:
        return str(message["text"])


def _texts(truth: dict[str, Any]) -> list[str]:
    """Return all texts of a conversation that a whole export has."""
    found: list[str] = []
    for one in [*truth["messages"], *([truth["answer"]] if truth["answer"] else [])]:
        found += [*_leaves(one["text"]), *one["images"]]
        for name, arguments, _ in one["calls"]:
            found += [name, *_leaves(arguments)]
    return found


class Written:
    """The texts of an export, also those inside of JSON texts."""

    def __init__(self, records: Iterable[Any]) -> None:
        self._leaves = [leaf for record in records for leaf in _leaves(record)]
        self._counts = Counter(self._leaves)
        self._all = "\n".join(self._leaves)

    def lacks(self, texts: Iterable[str]) -> list[str]:
        """Return those texts that the export does not have."""
        return [text for text in texts if text not in self._all and json.dumps(text, ensure_ascii=False)[1:-1] not in self._all]

    def has(self, name: str, value: Any) -> bool:
        """Whether the export has a fact."""
        if name == "consent":
            return "consent" in self._all
        return str(value) in self._counts or (isinstance(value, str) and value in self._all)


def _leaves(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _leaves(item, depth)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, depth)
    elif isinstance(value, str):
        text = value.strip()
        if text[:1] in ("{", "[", '"') and depth < 8:
            try:
                yield from _leaves(json.loads(text), depth + 1)
                return
            except ValueError:
                pass
        yield value
    elif value is not None:
        yield str(value)
