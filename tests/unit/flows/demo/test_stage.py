"""Tests that the demo deletes only its own folders."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.flows.config.home import Home
from ratchet.flows.demo.play import MARKER, Demo
from ratchet.flows.demo.stage import LOOP, clear_home, stop


def _ending(monkeypatch: pytest.MonkeyPatch, code: int) -> list[Any]:
    asked: list[Any] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command)
        return subprocess.CompletedProcess(command, code, b"", b"the receiver does not end")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_folder_with_a_foreign_loop_file_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / LOOP).write_text("mine")
    asked = _ending(monkeypatch, 0)
    with pytest.raises(ConfigError, match="--home"):
        clear_home(Home(tmp_path))
    assert (tmp_path / LOOP).read_text() == "mine"
    assert asked == []


def test_demo_processes_are_stopped_and_its_folder_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "demo")
    Demo(home, print, lambda *_: None).prepare()
    assert (home.root / MARKER).exists()
    assert home.root.stat().st_mode & 0o077 == 0
    asked = _ending(monkeypatch, 0)
    clear_home(home)
    assert [command[-2:] for command in asked] == [[str(home.root / LOOP), "--stop"]]
    assert not home.root.exists()


def test_stop_keeps_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "demo")
    Demo(home, print, lambda *_: None).prepare()
    asked = _ending(monkeypatch, 0)
    assert stop(home)
    assert len(asked) == 1
    assert (home.root / LOOP).exists()


def test_folder_is_not_deleted_while_a_process_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "demo")
    Demo(home, print, lambda *_: None).prepare()
    _ending(monkeypatch, 1)
    with pytest.raises(Permanent, match="does not end"):
        clear_home(home)
    assert (home.root / LOOP).exists()


@pytest.mark.parametrize("made", [True, False])
def test_missing_or_empty_folder_is_accepted(tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "demo").mkdir()
    clear_home(Home(tmp_path / "demo"))
