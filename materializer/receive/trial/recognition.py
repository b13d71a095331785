"""Recognises which kind of source reads a place, from the names of its files and from their first records."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any

from ratchet.contracts.data.datasets import Unread
from ratchet.materializer.dialects.exports.langfuse_export import camel, is_score
from ratchet.materializer.dialects.exports.litellm import is_payload
from ratchet.materializer.dialects.exports.plain_spans import is_plain_spans
from ratchet.materializer.dialects.jsonl import CONSENT_KEYS
from ratchet.materializer.dialects.langfuse import is_observation
from ratchet.materializer.receive.files.content import Content
from ratchet.materializer.receive.files.reading import content_of, rows_of
from ratchet.materializer.receive.files.storage import Storage, StoredFile
from ratchet.materializer.receive.langfuse.layout import TABLES
from ratchet.materializer.receive.trial.guess import Doubt, Guess, guess_mapping

FILES = 20
"""Files whose first records are looked at."""
ROWS = 200
"""Records by which the mapping is guessed."""


@dataclass(frozen=True)
class Recognised:
    """What a place is taken for."""

    kind: str | None
    """Kind of the source that reads it; None if no kind does."""
    why: str
    path: str
    """Path or URL for the loop file. It differs from the given place if that is a part of an export."""
    guesses: Sequence[Guess] = ()
    """For records without known keys: the guessed mapping."""
    doubts: Sequence[Doubt] = ()
    rows: Sequence[dict[str, Any]] = field(default_factory=list, repr=False)
    """First records."""
    unread: Sequence[Unread] = ()
    others: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Other kind -> files that look like it."""
    files: int = 0


def recognise_place(storage: Storage, kind: str | None = None) -> Recognised:
    """Return what the place is taken for. `kind` overrides the recognition, and only the mapping is guessed then.

    Raises ConfigError if the place does not exist, OSError if it cannot be read.
    """
    files = sorted(storage.files(), key=lambda file: file.name)
    if not files:
        return Recognised(kind, "there is no file", storage.place)
    if kind in (None, "langfuse"):
        export = _export(storage, files)
        if export is not None:
            return export
    votes: dict[tuple[str, str], list[str]] = {}
    rows_by: dict[str, list[dict[str, Any]]] = {}
    unread: list[Unread] = []
    for file in _of_each_folder(files)[:FILES]:
        content = content_of(file)
        if content.form == "unknown":
            unread.append(Unread(file.name, content.why))
            continue
        found = _first_rows(file, content)
        found_by = _vote(content, found)
        rows_by.setdefault(found_by[0], []).extend(found)
        votes.setdefault(found_by, []).append(file.name)
    if not votes:
        return Recognised(kind, "no file has a content that can be read", storage.place, unread=unread, files=len(files))
    best, why = max(votes, key=lambda vote: (vote[1] != _UNKNOWN, len(votes[vote])))
    chosen = kind or best
    others = {one: names for (one, _), names in votes.items() if one != chosen}
    rows = rows_by.get(best, [])[:ROWS]
    guesses, doubts = _mapping(chosen, rows)
    if kind is None and why == _UNKNOWN and not any(guess.column in ("messages", "response") for guess in guesses):
        return Recognised(None, _WITHOUT_CALLS, storage.place, rows=rows, unread=unread, files=len(files))
    return Recognised(
        chosen, why if kind is None else "as the option says", storage.place, guesses, doubts, rows, unread, others, len(files)
    )


def _of_each_folder(files: Sequence[StoredFile]) -> list[StoredFile]:
    """Return the files in an order in which those of all folders take turns, because each folder often has a kind of its own."""
    folders: dict[str, list[StoredFile]] = {}
    for file in files:
        folders.setdefault(file.name.rpartition("/")[0], []).append(file)
    return [file for turn in zip_longest(*folders.values()) for file in turn if file is not None]


def _export(storage: Storage, files: Sequence[StoredFile]) -> Recognised | None:
    """Recognise Langfuse's blob export by its folders, also if the place is one of its folders or files."""
    tables = {table for file in files for table in TABLES if f"/{table}/" in f"/{file.name}"}
    if {"observations", "observations_v2"} & tables:
        return Recognised(
            "langfuse", f"has the folders of Langfuse's blob export: {', '.join(sorted(tables))}", storage.place, files=len(files)
        )
    parts = storage.place.rstrip("/").split("/")
    inside = next((at for at, part in enumerate(parts) if part in TABLES and at >= len(parts) - 2 and at > 0), None)
    if inside is None or not _is_exported(files[0]):
        return None
    return Recognised(
        "langfuse", f"a part of Langfuse's blob export, whose folders are read together ({parts[inside]})", "/".join(parts[:inside])
    )


def _is_exported(file: StoredFile) -> bool:
    """Return whether the first row of a file is one of a table of the export."""
    row = next(iter(_first_rows(file, content_of(file), 1)), {})
    return _of_row(row)[0] == "langfuse" or {"id", "timestamp", "project_id"} <= row.keys()


def _first_rows(file: StoredFile, content: Content, most: int = ROWS) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if content.form in ("frames", "message", "unknown"):
        return found
    with contextlib.suppress(EOFError):  # of a damaged file, what can be read
        found += (row for row in islice(rows_of(file, content), most) if isinstance(row, dict))
    return found


def _vote(content: Content, rows: Sequence[dict[str, Any]]) -> tuple[str, str]:
    if content.form in ("frames", "message"):
        return "otlp", f"{content.why}; only the collector writes such files"
    if content.form in ("parquet", "csv"):
        return "parquet", content.why
    kinds = Counter(_of_row(row) for row in rows)
    return kinds.most_common(1)[0][0] if kinds else ("jsonl", "has the form of JSON, but no record could be read")


_WITHOUT_CALLS = "JSON objects without a key that looks like a prompt or an answer"
_SPANS = "its records are spans, as Phoenix, MLflow and the console exporter write them"
_UNKNOWN = "its records are JSON objects with keys of their own"


def _of_row(row: dict[str, Any]) -> tuple[str, str]:
    if "resourceSpans" in row or "resourceLogs" in row or "resource_spans" in row:
        return "otlp", "its records are OTLP requests (resourceSpans, resourceLogs)"
    if is_payload(row):
        return "litellm", "its records have the keys of LiteLLM's StandardLoggingPayload"
    if is_observation(row):
        return "jsonl", "its records are observations of Langfuse, which need no mapping"
    if is_plain_spans(row):
        return "jsonl", _SPANS
    if is_observation(camel(row)):
        return "langfuse", "its records are rows of Langfuse's blob export"
    if is_score(row) and ("trace_id" in row or "traceId" in row):
        return "langfuse", "its records are scores of Langfuse"
    if row.get("consent_for") in CONSENT_KEYS:
        return "jsonl", "its records state consent (consent_for)"
    if {"id", "timestamp", "messages"} <= row.keys():
        return "jsonl", "its records have Ratchet's own keys"
    return "jsonl", _UNKNOWN


def _mapping(kind: str, rows: Sequence[dict[str, Any]]) -> tuple[list[Guess], list[Doubt]]:
    """Guess the mapping of records that need one."""
    if kind not in ("jsonl", "parquet") or not rows or is_plain_spans(rows[0]) or (kind == "jsonl" and _of_row(rows[0])[1] != _UNKNOWN):
        return [], []
    return guess_mapping(rows)
