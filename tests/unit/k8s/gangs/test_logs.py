"""Tests of the position at which the output of a followed log continues."""

from __future__ import annotations

import pytest

from ratchet.k8s.gangs.logs import MARK, _after


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        (b"a\nb\n", b"a\nb\nc\n", b"c\n"),
        (b"a\n" * 3, b"a\n" * 5, b"a\n" * 2),
        (b"", b"a\n", b"a\n"),
        (b"first\n" + b"x" * MARK + b"1\n", b"x" * 10 + b"1\n2\n", b"x" * 10 + b"1\n2\n"),
        (b"first\n" + b"x" * MARK + b"1\n", b"x" * MARK + b"1\n2\n", b"2\n"),
    ],
    ids=["it grew", "its lines are equal", "it was empty", "the shown end is no longer available", "the shown end moved"],
)
def test_the_new_part_of_a_log_is_found(before: bytes, now: bytes, new: bytes) -> None:
    assert now[_after(now, len(before), before[-MARK:]) :] == new
