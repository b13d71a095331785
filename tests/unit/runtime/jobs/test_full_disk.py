"""Tests of a full disk: it is recognised by its errors and its room, and a result finds room on it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.jobs.full_disk import has_no_room, is_full_disk, release, reserve, write_result
from tests.small_volume import fill, small_volume


def caused(cause: BaseException) -> Retryable:
    error = Retryable("cannot write")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (caused(OSError(errno.ENOSPC, "No space left on device")), True),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), True),
        (RuntimeError("[enforce fail] PytorchStreamWriter failed writing file data/0: file write failed"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("CUDA out of memory"), False),
    ],
)
def test_full_disk_is_recognised_by_the_error_or_its_cause(error: BaseException, is_full: bool) -> None:
    assert is_full_disk(error) == is_full


def test_causes_that_form_a_ring_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert not is_full_disk(one)


def test_result_finds_room_on_a_full_disk(tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume") as volume:
        assert not has_no_room(volume)
        reserve(volume)
        fill(volume)
        assert has_no_room(volume)
        with pytest.raises(Retryable) as caught:
            write_atomic(volume / "result.json", b"x" * 5000)
        assert is_full_disk(caught.value)
        write_result(volume / "result.json", b"x" * 5000)
        assert len((volume / "result.json").read_bytes()) == 5000
        assert sorted(path.name for path in volume.iterdir()) == ["filler", "result.json"]
        fill(volume)
        with pytest.raises(Retryable, match="No space left"):
            write_result(volume / "more.json", b"x" * 5000)


def test_release_deletes_only_the_reserved_file(tmp_path: Path) -> None:
    release(tmp_path)
    (tmp_path / "reserve").mkdir()
    release(tmp_path)
    assert (tmp_path / "reserve").exists()
