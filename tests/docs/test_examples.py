"""Tests of the example loop files: each one loads, its methods yield jobs, and the example traces are accepted without loss."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratchet.flows.cli.main import cli
from ratchet.flows.config.load import load_loop

ROOT = Path(__file__).resolve().parents[2]
LADDER = sorted((ROOT / "loops").glob("*/loop.toml"))
CLUSTER = [loop for loop in LADDER if "\n[cluster]\n" in loop.read_text()]
TRACES = LADDER[0].parent / "traces.jsonl"
PAGE = ROOT / "loops" / "README.md"


def test_the_ladder_is_complete() -> None:
    names = [loop.parent.name for loop in LADDER]
    assert [int(name[:2]) for name in names] == list(range(1, 8))
    assert [int(loop.parent.name[:2]) for loop in CLUSTER] == [4, 5, 6, 7]
    assert sorted(path.name for path in (ROOT / "loops").iterdir()) == [*names, "README.md"], "every example is a numbered folder"
    rows = re.findall(r"^\| (?:\[`(.+?)`\]|\[(quickstart)\])", PAGE.read_text(), re.MULTILINE)
    listed = [folder or page for folder, page in rows]
    assert listed == [names[0], "quickstart", *names[1:]], "the table lists the examples by difficulty"
    assert "`ratchet example files`" in PAGE.read_text()


@pytest.mark.parametrize("loop", LADDER, ids=lambda loop: loop.parent.name)
def test_every_example_loads(loop: Path) -> None:
    settings = load_loop(loop)
    assert settings.line.name
    assert settings.sources
    assert settings.rewards


@pytest.mark.parametrize("loop", LADDER, ids=lambda loop: loop.parent.name)
def test_every_example_says_what_it_shows_and_needs_and_how_it_is_run(loop: Path) -> None:
    title, page = f"# Example {int(loop.parent.name[:2])}: ", (loop.parent / "README.md").read_text()
    assert loop.read_text().startswith(title)
    assert page.startswith(title)
    places = [page.find(f"**{part}") for part in ("Shows:**", "Needs:**", "Run it**", "Expected:**")]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("loop", CLUSTER, ids=lambda loop: loop.parent.name)
def test_each_method_of_a_cluster_example_has_a_manifest(loop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    result = CliRunner().invoke(cli, ["k8s", "render", str(loop), "--gang"])
    assert result.exit_code == 0, result.output
    for method in load_loop(loop).training.methods:
        assert f"(a sample for {method})" in result.output


def test_the_example_traces_are_accepted_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    result = CliRunner().invoke(cli, ["ingest", str(LADDER[0]), "--json"])
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout)
    records = len(TRACES.read_text().splitlines())
    assert (counts["read"], counts["kept"]) == (records, records)
    assert counts["feedback"]["kept"] == counts["feedback"]["read"] > 0


def test_the_page_shows_the_example_traces() -> None:
    page = (ROOT / "docs" / "howto" / "own-traces.md").read_text()
    for line in TRACES.read_text().splitlines():
        assert line in page
