"""Reads and writes rows as Parquet. Pure."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any


def rows_of(parquet: bytes, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file with these columns."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(parquet), columns=list(columns)).to_pylist()
    return found


def parquet_of(rows: Sequence[Mapping[str, str | None]]) -> bytes:
    """Return texts as a Parquet file. Equal rows give equal bytes. All rows have the same columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in rows[0]]) if rows else pa.schema([])
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), buffer, compression="zstd")
    return buffer.getvalue()
