"""Tests of `ratchet gc` on a real lake: it merges files, says what it did, and changes nothing in a dry run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ratchet.flows.cli.main import cli
from ratchet.flows.service.garbage import Collected
from ratchet.materializer.lake.tables import Lake
from tests.unit.flows.cli.test_quarantine_command import LOOP, RECORD

pytestmark = pytest.mark.slow  # loads the packages of a line


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception!r}"
    return result


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line that has ingested a day in six files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    (tmp_path / "in").mkdir()
    for n in range(6):
        (tmp_path / f"in/{n}.jsonl").write_text(json.dumps(RECORD | {"id": str(n)}) + "\n")
    (tmp_path / "loop.toml").write_text(LOOP)
    run("ingest", tmp_path / "loop.toml")
    return tmp_path / "loop.toml"


def traces(*arguments: str | Path) -> dict[str, Any]:
    done = json.loads(run("gc", *arguments, "--json").stdout)
    return next(table for table in done["lake"] if table["table"] == "traces")


def test_small_files_are_merged_and_the_rows_stay(loop: Path) -> None:
    assert traces(loop, "--dry-run") == traces(loop, "--dry-run")
    would = traces(loop, "--dry-run")
    assert (would["merged"], would["files"]) == (6, [6, 6])
    shown = run("gc", loop).stdout
    assert "Merged files of the lake of shop" in shown
    assert "6 → 1" in shown
    assert traces(loop) == traces(loop) | {"merged": 0, "files": [1, 1]}
    assert sorted(Lake(loop.parent / "home/lines/shop/lake").scan("traces")["id"]) == list("012345")


def test_what_could_not_be_deleted_is_said(loop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Collected(line="shop", left=("former versions of objects in s3://a/ (AccessDenied)",))
    monkeypatch.setattr("ratchet.flows.service.garbage.collect_line", lambda *_: refused)
    assert "not reached: former versions of objects in s3://a/ (AccessDenied)" in run("gc", loop).stderr
    assert json.loads(run("gc", loop, "--json").stdout)["left"] == list(refused.left)


def test_rows_that_wait_for_the_end_of_a_cycle_are_said(loop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "rows were left alone, because a cycle is open"
    assert said not in run("gc", loop).stderr
    monkeypatch.setattr("ratchet.flows.service.garbage.collect_line", lambda *_: Collected(line="shop", postponed=True))
    assert said in run("gc", loop).stderr
