"""Tests of the spool of spans: what was appended is read again, and damage, a full spool and a full disk are counted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ratchet.router.traces.span_spool import SpanSpool


def waiting(spool: SpanSpool) -> list[bytes]:
    """Return all spans that wait, and delete their segments."""
    found: list[bytes] = []
    while (segment := spool.oldest()) is not None:
        found += spool.read(segment)
        spool.remove(segment)
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_spans_are_read_in_order_by_this_and_by_the_next_process(tmp_path: Path) -> None:
    first, spans = SpanSpool(tmp_path), [b"%d" % n * 300_000 for n in range(8)]
    for span in spans[:5]:
        first.append(span)
    second = SpanSpool(tmp_path)
    assert second.size == first.size > 1_500_000
    for span in spans[5:]:
        second.append(span)
    assert waiting(second) == spans
    assert (second.size, segments(tmp_path), second.dropped.total()) == (0, [], 0)


def test_a_torn_tail_is_skipped_and_counted(tmp_path: Path) -> None:
    spool = SpanSpool(tmp_path)
    for span in (b"one", b"two"):
        spool.append(span)
    (segment,) = segments(tmp_path)
    whole = segment.read_bytes()
    for cut in range(len(whole) // 2 + 1, len(whole)):
        segment.write_bytes(whole[:cut])
        again = SpanSpool(tmp_path)
        assert again.read(segment) == [b"one"]
        assert again.dropped == {"damaged": 1}


@pytest.mark.parametrize("damage", [b"\0" * 64, b"\xff" * 64])
def test_a_damaged_record_costs_no_other_segment(tmp_path: Path, damage: bytes) -> None:
    spool = SpanSpool(tmp_path)
    spool.append(b"one")
    assert spool.oldest() is not None
    spool.append(b"two")
    segments(tmp_path)[0].write_bytes(damage)
    again = SpanSpool(tmp_path)
    assert waiting(again) == [b"two"]
    assert again.dropped == {"damaged": 1}


def test_a_record_with_a_wrong_checksum_costs_no_other_record(tmp_path: Path) -> None:
    spool = SpanSpool(tmp_path)
    for span in (b"one", b"two", b"three"):
        spool.append(span)
    (segment,) = segments(tmp_path)
    segment.write_bytes(segment.read_bytes().replace(b"two", b"owt"))
    again = SpanSpool(tmp_path)
    assert waiting(again) == [b"one", b"three"]
    assert again.dropped == {"damaged": 1}


def test_a_full_spool_drops_and_counts_new_spans_until_it_is_read(tmp_path: Path) -> None:
    spool = SpanSpool(tmp_path, most=1000)
    for _ in range(5):
        spool.append(b"x" * 300)
    assert spool.dropped == {"full": 2}
    assert len(waiting(spool)) == 3
    spool.append(b"y")
    assert waiting(spool) == [b"y"]


@pytest.mark.parametrize("written", [None, 5])
def test_a_full_disk_costs_the_span_that_does_not_fit_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int | None) -> None:
    spool, write = SpanSpool(tmp_path), os.write
    spool.append(b"one")

    def full(handle: int, content: bytes) -> int:
        if written is None:
            raise OSError(errno.ENOSPC, "no space")
        return write(handle, content[:written])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        spool.append(b"two")
    spool.append(b"three")
    assert spool.dropped == {"disk": 1}
    assert waiting(SpanSpool(tmp_path)) == [b"one", b"three"]


def test_only_the_owner_can_read_the_spool(tmp_path: Path) -> None:
    SpanSpool(tmp_path / "spool").append(b"secret")
    assert (tmp_path / "spool").stat().st_mode & 0o77 == 0
    assert segments(tmp_path / "spool")[0].stat().st_mode & 0o77 == 0
