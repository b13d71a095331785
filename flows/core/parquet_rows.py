"""Reads the rows of a training set's Parquet file. Pure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any


def rows_of(parquet: bytes, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file with these columns."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = pq.read_table(io.BytesIO(parquet), columns=list(columns)).to_pylist()
    return found
