"""Replaces the user ids that earlier releases stored in clear by pseudonyms, once per table.

Each day is one commit, and rows that already have pseudonyms stay as they are. A crash therefore loses nothing, and the next call
continues. Snapshots from before, and their files, keep the ids in clear until they are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl
import pyarrow as pa
from pyiceberg.table import Table

from ratchet.materializer.lake.compaction import all_days
from ratchet.runtime.secrets.pseudonyms import Subject, is_pseudonym

CONCEALED = "ratchet.pseudonyms"
"""Table property: the table contains no user ids in clear. New tables have it from the beginning."""
SUBJECTS: Mapping[str, Subject] = {"user": "u", "rater": "u", "session": "s"}
"""Column with an id -> its kind."""


def conceal(table: Table, hide: Callable[[Subject, str], str]) -> bool:
    """Replace the ids in clear in all rows. Return whether the table changed. The caller then marks it with CONCEALED."""
    changed = False
    for day in all_days(table):
        rows = table.scan(row_filter=day).to_arrow()
        hidden = _hidden(rows, hide)
        if not hidden.equals(rows):
            table.overwrite(hidden, overwrite_filter=day)
            changed = True
    return changed


def concealed(rows: pl.DataFrame, hide: Callable[[Subject, str], str]) -> pl.DataFrame:
    """Return `rows` of a snapshot from before the replacement with pseudonyms, so that they can be compared with newer rows."""
    for name, subject in SUBJECTS.items():
        if name in rows.columns:
            clear = [text for text in rows[name].unique().drop_nulls().to_list() if not is_pseudonym(text)]
            rows = rows.with_columns(pl.col(name).replace({text: hide(subject, text) for text in clear})) if clear else rows
    return rows


def _hidden(rows: pa.Table, hide: Callable[[Subject, str], str]) -> pa.Table:
    for name, subject in SUBJECTS.items():
        if name in rows.column_names:
            field = rows.schema.field(name)
            values = [text if text is None or is_pseudonym(text) else hide(subject, text) for text in rows[name].to_pylist()]
            rows = rows.set_column(rows.column_names.index(name), field, pa.chunked_array([pa.array(values, field.type)]))
    return rows
