"""Tests of Parquet files that are written in parts."""

from __future__ import annotations

import io
from itertools import pairwise

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.records import PROMPTS
from ratchet.materializer.labels.scores import whole_groups
from ratchet.materializer.lake import schemas
from ratchet.materializer.lake.schemas import empty_frame, frame_of, parquet, read_parquet, write_parquet

_ROWS = [
    {"prompt_id": f"{number:04}", "prompt": f"prompt {number} " * (number % 7), "reference": str(number) if number % 3 else None}
    | {"reference_kind": None, "slice": "a" if number % 2 else None, "tools": None}
    for number in range(60)
]


@pytest.mark.slow
@given(cuts=st.lists(st.integers(0, 60), max_size=6), group=st.sampled_from([7, 20, 1 << 18]), size=st.sampled_from([300, 1 << 29]))
def test_the_bytes_of_a_file_do_not_depend_on_its_parts(cuts: list[int], group: int, size: int) -> None:
    frame = frame_of(_ROWS, PROMPTS)
    edges = [0, *sorted(cuts), 60]
    parts = [frame[begin:end].sample(fraction=1, shuffle=True) for begin, end in pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas, "_GROUP_ROWS", group)
        patch.setattr(schemas, "_GROUP_BYTES", size)
        file = io.BytesIO()
        assert write_parquet(file, parts, PROMPTS, ["prompt_id"]) == 60
        assert file.getvalue() == parquet(frame, PROMPTS, ["prompt_id"])
    assert read_parquet(file.getvalue()).equals(frame)


def test_a_table_of_one_row_group_has_the_bytes_that_pyarrow_writes_at_once() -> None:
    """Digests of editions and snapshots are digests of such bytes."""
    frame = frame_of(_ROWS, PROMPTS)
    table, whole = frame.to_arrow().cast(schemas.arrow_schema(PROMPTS)), io.BytesIO()
    pq.write_table(table.replace_schema_metadata(None), whole, compression="zstd")
    assert parquet(frame, PROMPTS, ["prompt_id"]) == whole.getvalue()
    empty = io.BytesIO()
    pq.write_table(schemas.arrow_schema(PROMPTS).empty_table(), empty, compression="zstd")
    assert parquet(empty_frame(PROMPTS), PROMPTS, ["prompt_id"]) == empty.getvalue()


@pytest.mark.slow
@given(taken=st.sets(st.integers(0, 59)), cut=st.integers(0, 60))
def test_a_text_below_a_null_is_not_written(taken: set[int], cut: int) -> None:
    """The library may leave the bytes of a text where a value was set to null."""
    frame = frame_of(_ROWS, PROMPTS).with_row_index("number")
    hidden = frame.with_columns(prompt=pl.when(~pl.col("number").is_in(taken)).then("prompt")).drop("number")
    clean = frame_of([{**row, "prompt": None if number in taken else row["prompt"]} for number, row in enumerate(_ROWS)], PROMPTS)
    optional = [column._replace(required=False) for column in PROMPTS]
    file = io.BytesIO()
    write_parquet(file, [hidden[:cut], hidden[cut:]], optional, ["prompt_id"])
    assert read_parquet(file.getvalue()).equals(clean)
    assert file.getvalue() == parquet(clean, optional, ["prompt_id"])


@pytest.mark.slow
@given(sizes=st.lists(st.integers(1, 9), max_size=12), least=st.integers(1, 15))
def test_parts_have_all_rows_of_a_group(sizes: list[int], least: int) -> None:
    rows = pl.DataFrame({"key": [f"{number:02}" for number, size in enumerate(sizes) for _ in range(size)]}, {"key": pl.String})
    parts = list(whole_groups(rows, "key", least))
    assert pl.concat([rows.clear(), *parts]).equals(rows)
    assert all(len(part) >= least for part in parts[:-1])
    keys = [set(part["key"]) for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys))
