"""Where a log that is followed goes on."""

from __future__ import annotations

import pytest

from k8s.gangs.logs import MARK, _after


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        (b"a\nb\n", b"a\nb\nc\n", b"c\n"),
        (b"a\n" * 3, b"a\n" * 5, b"a\n" * 2),
        (b"", b"a\n", b"a\n"),
        (b"first\n" + b"x" * MARK + b"1\n", b"x" * 10 + b"1\n2\n", b"x" * 10 + b"1\n2\n"),
        (b"first\n" + b"x" * MARK + b"1\n", b"x" * MARK + b"1\n2\n", b"2\n"),
    ],
    ids=["it grew", "its lines are alike", "it was empty", "its end moved beyond what was told", "its end moved on"],
)
def test_what_was_not_told_begins_here(before: bytes, now: bytes, new: bytes) -> None:
    assert now[_after(now, len(before), before[-MARK:]) :] == new
