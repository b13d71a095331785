"""Removes rows from artifacts: the Parquet files of snapshots, probes, editions and training sets, and the answers of evaluations."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

import polars as pl

from ratchet.contracts.conversation import without_call_ids
from ratchet.contracts.ids import Digest, canonical, digest
from ratchet.materializer.erasure.marks import Marks, evidence_mark, text_mark
from ratchet.materializer.lake.arrow import pq

_PARQUET = b"PAR1"
_ANSWERS = b'{"candidate":{'
"""Beginning of the answers of an evaluation, whose lines are canonical JSON (gates/evaluation/outcomes.py)."""
_TEXTS = ("prompt", "answer", "reference", "chosen", "rejected")
"""Columns of artifacts with texts of people."""
_ANSWER_COLUMNS = ("answer", "chosen", "rejected")


class Filtered(NamedTuple):
    """An artifact without the marked rows."""

    data: bytes
    removed: int
    left: int


def has_rows(head: bytes) -> bool:
    """Return whether a content that begins with `head` is an artifact with rows, and not for example a model."""
    return head.startswith((_PARQUET, _ANSWERS))


def filtered(data: bytes, marks: Marks) -> Filtered | None:
    """Return an artifact without the marked rows; None if it has none. The same content and marks give the same bytes."""
    if data.startswith(_ANSWERS):
        lines = data.splitlines()
        kept = [line for line in lines if not _is_marked_answer(line, marks)]
        return Filtered(b"\n".join(kept), len(lines) - len(kept), len(kept)) if len(kept) < len(lines) else None
    hit = _marked(data, marks)
    if hit is None or not hit.any():
        return None
    buffer = io.BytesIO()
    table = pq.read_table(io.BytesIO(data)).filter((~hit).to_arrow())
    pq.write_table(table.replace_schema_metadata(None), buffer, compression="zstd")
    return Filtered(buffer.getvalue(), int(hit.sum()), table.num_rows)


def evidence(data: bytes, marks: Marks) -> set[Digest]:
    """Return the marks of the answers in an artifact of samples whose reward rests on removed rows."""
    hit = _marked(data, marks) if data.startswith(_PARQUET) else None
    if hit is None or not hit.any():
        return set()
    rows = pl.read_parquet(io.BytesIO(data))
    if not {"prompt_id", "answer", "trace"} <= set(rows.columns):
        return set()
    pairs = rows.filter(hit & pl.Series(rows["trace"].is_not_null())).select("prompt_id", "answer").unique().iter_rows()
    return {evidence_mark(prompt, form) for prompt, answer in pairs for form in (answer, without_call_ids(answer))}


def _marked(data: bytes, marks: Marks) -> pl.Series | None:
    """Return for each row whether it is marked; None if the artifact has no texts of people."""
    names = pq.read_schema(io.BytesIO(data)).names
    if "prompt" not in names:
        return None
    rows = pl.read_parquet(io.BytesIO(data))
    texts, traces, people, shown = (set(part) for part in (marks.texts, marks.traces, marks.people, marks.evidence))
    hit = pl.repeat(False, len(rows), eager=True)
    for name in _TEXTS:
        if name in names:
            hit = hit | _in(rows[name], lambda text: text_mark(text) in texts)
    if "trace" in names:
        hit = hit | _in(rows["trace"], lambda text: text_mark(text) in traces)
        hit = hit | _in(rows["user"], lambda text: text_mark(text) in people)
    elif "prompt_id" in names and shown:
        for name in _ANSWER_COLUMNS:
            if name in names:
                found = [evidence_mark(prompt, answer) in shown for prompt, answer in rows.select("prompt_id", name).iter_rows()]
                hit = hit | pl.Series(found, dtype=pl.Boolean)
    return hit


def _in(column: pl.Series, test: Callable[[str], bool]) -> pl.Series:
    gone = [text for text in column.unique().drop_nulls().to_list() if test(text)]
    return column.is_in(gone).fill_null(False)


def _is_marked_answer(line: bytes, marks: Marks) -> bool:
    row = json.loads(line)
    texts: Iterable[str | None] = (row["reference"], row["champion"]["answer"], row["candidate"]["answer"])
    found = {digest(canonical(row["prompt"])), *(text_mark(text) for text in texts if text)}
    return not found.isdisjoint(marks.texts)
