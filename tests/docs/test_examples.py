"""Tests of the example loop files: each one loads, its methods yield jobs, and the example traces are accepted without loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratchet.flows.cli.main import cli
from ratchet.flows.config.load import load_loop

ROOT = Path(__file__).resolve().parents[2]
LOOPS = sorted((ROOT / "loops").glob("*.toml"))
LADDER = [loop for loop in LOOPS if loop.name[:2].isdigit()]
CLUSTER = [loop for loop in LADDER if "\n[cluster]\n" in loop.read_text()]
TRACES = ROOT / "loops" / "01-own-traces.jsonl"


def test_the_ladder_is_complete() -> None:
    assert [loop.stem for loop in LADDER] == ["01-own-traces", "02-gpu-vllm", "03-cluster-dpo", "04-nemo-rl-grpo", "05-team"]
    assert [loop.stem[:2] for loop in CLUSTER] == ["03", "04", "05"]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.stem)
def test_every_example_loads(loop: Path) -> None:
    settings = load_loop(loop)
    assert settings.line.name
    assert settings.sources
    assert settings.rewards


@pytest.mark.parametrize("loop", LADDER, ids=lambda loop: loop.stem)
def test_every_example_begins_with_its_purpose(loop: Path) -> None:
    assert loop.read_text().startswith(f"# Example {int(loop.stem[:2])}: ")


@pytest.mark.parametrize("loop", CLUSTER, ids=lambda loop: loop.stem)
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
