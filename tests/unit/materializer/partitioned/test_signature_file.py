"""Tests of signatures on disk: they are searched as those in memory are."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.materializer.partitioned import signature_file
from ratchet.materializer.partitioned.signature_file import SignatureFile
from ratchet.materializer.training_sets.near_duplicates import BANDS, PERMUTATIONS, InMemorySignatures, may_be_near


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(0, 60), max_size=4),
    changed=st.integers(0, PERMUTATIONS),
    touched=st.integers(1, 99),
)
def test_signatures_on_disk_give_the_result_of_those_in_memory(seed: int, sizes: list[int], changed: int, touched: int) -> None:
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, 1 << 32, (sum(sizes), PERMUTATIONS), dtype=np.uint32)
    for at in range(len(rows) // 2):  # half of the rows are changed copies of others
        rows[-1 - at] = rows[draw.integers(0, len(rows))]
        rows[-1 - at, draw.permutation(PERMUTATIONS)[:changed]] = 7
    found, begin = SignatureFile(Path(tempfile.gettempdir())), 0
    for size in sizes:
        found.append(rows[begin : begin + size])
        begin += size
    memory = InMemorySignatures(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signature_file, "_TOUCHED", touched)
        assert (may_be_near(found) == may_be_near(memory)).all()
    assert len(found) == len(rows)
    for band in range(BANDS):
        assert (found.band(band) == memory.band(band)).all()
    assert (found.rows(begin // 2, begin) == rows[begin // 2 :]).all()
