"""Builds Arrow, polars and Iceberg schemas from the columns in contracts/data/records.py, and writes deterministic Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BooleanType, DoubleType, IcebergType, LongType, NestedField, StringType, TimestamptzType

from ratchet.contracts.data.records import Column
from ratchet.materializer.lake.arrow import pa, pq

_ARROW: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "double": pa.float64(),
    "long": pa.int64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_ICEBERG: Mapping[str, IcebergType] = {
    "string": StringType(),
    "double": DoubleType(),
    "long": LongType(),
    "boolean": BooleanType(),
    "timestamp": TimestamptzType(),
}


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of a table."""
    return pa.schema([pa.field(column.name, _ARROW[column.type], nullable=not column.required) for column in columns])


def iceberg_schema(columns: Sequence[Column]) -> Schema:
    """Return the Iceberg schema of a table. Field ids are column positions, counted from 1."""
    fields = [
        NestedField(field_id=index, name=column.name, field_type=_ICEBERG[column.type], required=column.required, doc=column.doc or None)
        for index, column in enumerate(columns, 1)
    ]
    return Schema(*fields)


def missing_columns(schema: Schema, columns: Sequence[Column]) -> list[str]:
    """Return the names of the `columns` that the schema of an Iceberg table does not have, because it was created without them."""
    names = set(schema.column_names)
    return [column.name for column in columns if column.name not in names]


def present(table: Table, snapshot: int | None, columns: Sequence[Column], wanted: Sequence[str]) -> tuple[str, ...]:
    """Return those of the `wanted` columns ("*": all `columns`) that a snapshot of the table has. None is the current snapshot."""
    at = table.snapshot_by_id(snapshot) if snapshot is not None else None
    schema = table.schema() if at is None or at.schema_id is None else table.schemas()[at.schema_id]
    names = [column.name for column in columns] if tuple(wanted) == ("*",) else list(wanted)
    missing = set(missing_columns(schema, columns))
    return tuple(name for name in names if name not in missing)


def arrow_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pa.Table:
    """Convert rows to an Arrow table. Times are microseconds since the epoch."""
    if not rows:
        return arrow_schema(columns).empty_table()
    arrays = []
    for column, values in zip(columns, zip(*map(itemgetter(*(column.name for column in columns)), rows), strict=True), strict=True):
        arrays.append(_array(values, column.type))
    return pa.table(arrays, schema=arrow_schema(columns))


def arrow_columns(columns: Mapping[str, Sequence[Any]], constant: Mapping[str, Any], count: int, schema: Sequence[Column]) -> pa.Table:
    """Convert columns of `count` values, and constants, to an Arrow table. Times are microseconds since the epoch."""
    if not count:
        return arrow_schema(schema).empty_table()
    arrays = [
        _array(columns[column.name], column.type)
        if column.name in columns
        else pa.repeat(_array_of([constant[column.name]], column.type)[0], count)
        for column in schema
    ]
    return pa.table(arrays, schema=arrow_schema(schema))


def _array(values: Sequence[Any], kind: str) -> pa.Array:
    if values.count(values[0]) == len(values):  # of many columns, all rows have one value
        return pa.repeat(_array_of([values[0]], kind)[0], len(values))
    return _array_of(values, kind)


def _array_of(values: Sequence[Any], kind: str) -> pa.Array:
    return pa.array(values, pa.int64()).cast(_ARROW[kind]) if kind == "timestamp" else pa.array(values, _ARROW[kind])


_GROUP_ROWS, _GROUP_BYTES = 1 << 18, 1 << 29
"""Rows and bytes of texts of a row group. A group is in memory when it is written. The bytes of a file depend on these numbers."""


def parquet(frame: pl.DataFrame, columns: Sequence[Column], order: Sequence[str]) -> bytes:
    """Return the `columns` of `frame` as Parquet, as `write_parquet` writes them."""
    buffer = io.BytesIO()
    write_parquet(buffer, [frame], columns, order)
    return buffer.getvalue()


def write_parquet(file: BinaryIO, frames: Iterable[pl.DataFrame], columns: Sequence[Column], order: Sequence[str]) -> int:
    """Write the `columns` of the frames as Parquet, with rows sorted by `order`, which must be a unique key, and return their number.

    No frame has a row that would be before a row of an earlier frame. Equal rows give equal bytes, however they are divided into frames:
    the file contains no metadata that differs between runs.
    """
    schema, count, kept = arrow_schema(columns), 0, list[pa.Table]()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        left = _GROUP_ROWS, _GROUP_BYTES
        for frame in frames:
            rows = frame.sort(order, nulls_last=True).select([column.name for column in columns]).to_arrow()
            count += len(rows)
            sizes = _text_bytes(rows)
            while len(rows):
                size = min(int(np.searchsorted(np.cumsum(sizes), left[1])) + 1, left[0], len(rows))
                kept.append(rows[:size])
                left = left[0] - size, left[1] - int(sizes[:size].sum())
                rows, sizes = rows[size:], sizes[size:]
                if left[0] <= 0 or left[1] <= 0:
                    writer.write_table(_together(kept, schema), row_group_size=_GROUP_ROWS)
                    left = _GROUP_ROWS, _GROUP_BYTES
        if kept or not count:
            writer.write_table(_together(kept, schema), row_group_size=_GROUP_ROWS)
    return count


def _together(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows of the tables as one without chunks, which would change the bytes of a file. Empties the list.

    The columns are copied one after another, so that no more than one of them is in memory twice.
    """
    columns = [[chunk for table in tables for chunk in table.column(name).chunks] for name in schema.names]
    tables.clear()
    arrays = []
    for field in schema:
        chunks = [chunk.cast(field.type) for chunk in columns.pop(0)]
        arrays.append(pa.concat_arrays(chunks) if chunks else pa.array([], field.type))
    return pa.table(arrays, schema=schema)


def _text_bytes(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the bytes of the texts of each row."""
    sizes = np.zeros(len(rows), dtype=np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            sizes += pa.compute.binary_length(column).fill_null(0).to_numpy()
    return sizes


def read_parquet(data: bytes) -> pl.DataFrame:
    """Return the frame stored in a Parquet artifact."""
    return pl.read_parquet(io.BytesIO(data))


def empty_frame(columns: Sequence[Column]) -> pl.DataFrame:
    """Return a frame without rows and with the types of `columns`."""
    return frame_of([], columns)


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pl.DataFrame:
    """Convert rows to a polars frame with the types of `columns`."""
    found = pl.from_arrow(arrow_table(rows, columns))
    assert isinstance(found, pl.DataFrame)
    return found
