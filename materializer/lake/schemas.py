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
    schema, count, group = arrow_schema(columns), 0, _Group(arrow_schema(columns))
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        left = _GROUP_ROWS, _GROUP_BYTES
        for frame in frames:
            rows = frame.sort(order, nulls_last=True).select([column.name for column in columns]).to_arrow()
            count += len(rows)
            sizes = _text_bytes(rows)
            while len(rows):
                size = min(int(np.searchsorted(np.cumsum(sizes), left[1])) + 1, left[0], len(rows))
                group.add(rows[:size])
                left = left[0] - size, left[1] - int(sizes[:size].sum())
                rows, sizes = rows[size:], sizes[size:]
                if left[0] <= 0 or left[1] <= 0:
                    writer.write_table(group.taken(), row_group_size=_GROUP_ROWS)
                    left = _GROUP_ROWS, _GROUP_BYTES
        if len(group) or not count:
            writer.write_table(group.taken(), row_group_size=_GROUP_ROWS)
    return count


class _Group:
    """Rows of a row group, as columns without chunks, which would change the bytes of a file. Texts grow in place: they are there once."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows = 0
        self._clear()

    def _clear(self) -> None:
        self._rows = 0
        self._texts = {field.name: bytearray() for field in self._schema if pa.types.is_string(field.type)}
        self._arrays: dict[str, list[pa.Array]] = {field.name: [] for field in self._schema}

    def __len__(self) -> int:
        return self._rows

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._rows += len(rows)
        for field in self._schema:
            chunks, kept = rows.column(field.name).chunks, self._arrays[field.name]
            if field.name not in self._texts:
                kept += [chunk.cast(field.type) for chunk in chunks]
                continue
            for chunk in chunks:
                texts = chunk.cast(pa.large_string())
                _, ends, data = texts.buffers()
                places = np.frombuffer(ends, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
                if data is not None:
                    self._texts[field.name] += memoryview(data)[places[0] : places[-1]]
                kept.append(pa.StructArray.from_arrays([pa.array(np.diff(places)), texts.is_valid()], ["length", "is_given"]))

    def taken(self) -> pa.Table:
        """Return the rows, and forget them."""
        columns = [self._column(field) for field in self._schema]
        self._clear()
        return pa.table(columns, schema=self._schema)

    def _column(self, field: pa.Field) -> pa.Array:
        parts = self._arrays[field.name]
        if field.name not in self._texts:
            return pa.concat_arrays(parts) if parts else pa.array([], field.type)
        if not parts:
            return pa.array([], field.type)
        lengths, is_given = pa.concat_arrays(parts).flatten()
        ends = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths.to_numpy(), out=ends[1:])  # also of the bytes below a null, if there are any
        valid = None if pa.compute.all(is_given).as_py() else is_given.buffers()[1]
        return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(self._texts[field.name]), valid)


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
