"""Tests of rows in partitions on disk: no row is lost, and rows that belong together are in one partition."""

from __future__ import annotations

import tempfile
from hashlib import sha256
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.errors import Retryable
from ratchet.materializer.partitioned import partitions
from ratchet.materializer.partitioned.partitions import Partitions, by_hash, partitions_for

_FOLDER = Path(tempfile.gettempdir())
_SCHEMA = pl.Schema({"key": pl.String, "text": pl.Binary, "value": pl.Float64})
ROWS = st.lists(
    st.fixed_dictionaries(
        {"key": st.sampled_from("abcdefg"), "text": st.none() | st.binary(max_size=20), "value": st.none() | st.just(1.5)}
    )
)


@pytest.mark.slow
@given(parts=st.lists(ROWS, min_size=1, max_size=4), count=st.integers(1, 5), waiting=st.integers(1, 9))
def test_every_row_comes_back_once_with_those_of_its_key(parts: list[list[dict[str, object]]], count: int, waiting: int) -> None:
    frames = [pl.DataFrame(rows, _SCHEMA) for rows in parts]
    found = Partitions(_FOLDER, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "_WAITING", waiting)
        for frame in frames:
            found.add(frame, by_hash("key"))
        assert len(found) == sum(map(len, frames))
        read = list(found)
    assert len(read) == count
    order = ["key", "text", "value"]
    assert pl.concat(read).sort(order).equals(pl.concat(frames).sort(order))
    keys = [set(frame["key"]) for frame in read]
    assert sum(map(len, keys)) == len(set().union(*keys)), "a key is in two partitions"
    for frame in read:
        assert frame.schema == _SCHEMA
        for key, own in frame.group_by("key"):
            given_rows = pl.concat(frames).filter(pl.col("key") == key[0])
            assert own["text"].to_list() == given_rows["text"].to_list(), "the order of rows has changed"


@pytest.mark.slow
@given(texts=st.lists(st.text(max_size=4)), count=st.integers(1, 7))
def test_ranges_of_digests_are_in_order(texts: list[str], count: int) -> None:
    digests = [sha256(text.encode()).hexdigest() for text in texts]
    found = Partitions(_FOLDER, count)
    found.add_digests(pl.DataFrame({"root": digests}, schema={"root": pl.String}), "root")
    assert [root for frame in found for root in sorted(frame["root"])] == sorted(digests)


def test_a_partition_without_rows_has_the_columns() -> None:
    none = pl.DataFrame(schema=_SCHEMA)
    found = Partitions(_FOLDER, 3, none)
    assert found.is_empty()
    assert [frame.schema for frame in found] == [_SCHEMA] * 3
    assert Partitions(_FOLDER, 1, none).every().equals(none)


def test_a_small_lake_is_one_partition() -> None:
    assert [partitions_for(rows) for rows in (0, partitions.ROWS - 1, partitions.ROWS, 10 * partitions.ROWS)] == [1, 1, 2, 11]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Retryable, match="free disk space, then try again"):
        Partitions(tmp_path / "file", 2)
