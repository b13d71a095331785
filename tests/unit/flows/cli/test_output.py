"""Tests of the output of the commands."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from ratchet.flows.cli import output
from ratchet.flows.cli.output import print_json, span, table
from ratchet.flows.cli.terminal import say, show


def test_square_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table("loop[1].toml", ["check [x]"], [["install ratchet[train]"], [None]])
    shown = capsys.readouterr().out
    assert "loop[1].toml" in shown
    assert "check [x]" in shown
    assert "install ratchet[train]" in shown


ATTACKS = [
    "mal[/x]",
    "[link=http://attacker.example]click[/link]",
    "[bold red]x",
    "\x1b[2J\x1b[H",
    "\x1b]8;;http://attacker.example\x1b\\click\x1b]8;;\x1b\\",
    "\x1b]52;c;bWFs\x07",
    "\x9b31m",
    "\x90q\x9c",
    "approved\rrejected",
    "\u202egnp.exe",
    "a\x08\x08b\x7f",
]
"""Texts with markup, terminal control sequences and characters that change the order of a text."""

_HARMLESS = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]*")


def _texts() -> list[str]:
    draw = random.Random(20261123)
    alphabet = [chr(code) for code in (*range(0x20), *range(0x7E, 0xA1), 0x202E, 0x2066, 0x41)] + ["[", "]", "/", "\\", ";", "\x1b]"]
    return ATTACKS + ["".join(draw.choices(alphabet, k=draw.randint(1, 30))) for _ in range(200)]


def test_no_text_controls_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for text in _texts():
        show(text)
        say(text)
        print_json({text: text})
        table(text, [text], [[text]])
        printed = capsys.readouterr()
        assert _HARMLESS.fullmatch(printed.out + printed.err), repr(text)


def test_a_text_stays_readable(capsys: pytest.CaptureFixture[str]) -> None:
    show("mal[/x] \x1b[2J naïve 日本\tend")
    assert capsys.readouterr().out == "mal[/x] \\x1b[2J naïve 日本\tend\n"
    show("approved\rrejected")
    assert capsys.readouterr().out == "approved\nrejected\n"


def test_json_keeps_the_exact_text(capsys: pytest.CaptureFixture[str]) -> None:
    for text in _texts():
        print_json({"text": text})
        assert json.loads(capsys.readouterr().out) == {"text": text}


def test_progress_bars_show_texts_as_they_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with output.watched(False, "begins …") as progress:
        for text in ATTACKS:
            progress(text, 0, 0)
            progress(text, 1, 2)
    assert "gnp.exe" in capsys.readouterr().err


def test_every_command_prints_through_these_modules() -> None:
    for module in Path(output.__file__).parent.rglob("*.py"):
        if module.name not in ("output.py", "terminal.py"):
            assert not re.search(r"click\.s?echo\(|(?<![_\w.])print\(", module.read_text()), module.name


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.6, "1 min"), (250, "4 min 10 s"), (3600, "1 h"), (3661, "1 h 1 min"), (7 * 86_400, "7 d")]
)
def test_a_duration_has_at_most_two_units_and_no_zero(seconds: float, text: str) -> None:
    assert span(seconds) == text
