"""Tests of the output of the commands."""

from __future__ import annotations

import pytest

from flows.cli.output import table


def test_square_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table("loop[1].toml", ["check [x]"], [["install ratchet[train]"], [None]])
    shown = capsys.readouterr().out
    assert "loop[1].toml" in shown
    assert "check [x]" in shown
    assert "install ratchet[train]" in shown
