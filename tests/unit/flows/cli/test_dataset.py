"""Tests of `ratchet dataset`: a team exports its data without a model, and nothing leaves that may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratchet.contracts.errors import ConfigError, Rejected
from ratchet.flows.cli.main import cli
from tests.unit.materializer.small_datasets import HELD, TRAIN

LOOP = """
[line]
name = "team"
served_model = "team"
[[sources]]
name = "app"
kind = "jsonl"
path = "traces.jsonl"
[[rewards]]
name = "exact_match"
[governance]
consent = "required"
regions = ["eu"]
[holdout]
golden = "golden.jsonl"
development = 0
"""


def trace(number: int, prompt: str, **more: Any) -> dict[str, Any]:
    """A trace with the right answer, from a user who has agreed, in a region that is allowed. `more` replaces fields."""
    user = [{"role": "user", "content": prompt}]
    row = {
        "id": f"t{number}",
        "timestamp": 1_790_000_000 + number,
        "messages": user,
        "response": f"right {number}",
        "user_id": f"u{number}",
    }
    return row | {"reference": f"right {number}", "consent": True, "region": "eu"} | more


TRACES = [
    trace(0, TRAIN[0]),
    trace(1, TRAIN[1], consent=False),
    trace(2, TRAIN[2], region="us"),
    trace(3, TRAIN[3]),
    trace(4, HELD),
    trace(5, TRAIN[5]),
]


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a line that has traces and no model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    Path("loop.toml").write_text(LOOP, encoding="utf-8")
    Path("golden.jsonl").write_text(json.dumps({"prompt": TRAIN[3], "reference": "right 3"}) + "\n", encoding="utf-8")
    add(*TRACES)
    return tmp_path


def add(*traces: dict[str, Any]) -> None:
    """Append traces to the source's file, and ingest them."""
    with Path("traces.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in traces)
    run("ingest", "loop.toml")


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception!r}"
    return json.loads(result.stdout)


def export(out: str, *arguments: str) -> tuple[dict[str, Any], set[str]]:
    """Export, and return the output with the questions in the files."""
    told = run("dataset", "export", "loop.toml", "--now", "--format", "trl", "--out", out, "--by", "ada", *arguments)
    lines = [json.loads(line) for file in Path(out).glob("*.jsonl") for line in file.read_text().splitlines()]
    return told, {row["prompt"][0]["content"] for row in lines}


@pytest.mark.slow
def test_only_what_a_cycle_would_train_on_leaves(team: Path) -> None:
    told, asked = export("set")
    assert asked == {TRAIN[0], TRAIN[5]}, "no refusal, no other region, no golden prompt, no holdout"
    assert told["source"] == "now"
    assert told["rows"] == {"preference.jsonl": 0, "sft.jsonl": 2, "prompts.jsonl": 2}
    card = Path("set/card.md").read_text()
    assert "Consent is required; regions: eu" in card
    assert "| traces without consent | 1 |" in card
    assert (Path("set").stat().st_mode & 0o777) == 0o700


@pytest.mark.slow
def test_a_withdrawal_counts_at_the_next_export(team: Path) -> None:
    export("first")
    add({"consent_for": "user", "user_id": "u5", "consent": False, "timestamp": 1_790_000_100})
    assert export("second")[1] == {TRAIN[0]}


@pytest.mark.slow
def test_each_export_is_recorded(team: Path) -> None:
    told, _ = export("set")
    (noted,) = run("dataset", "list", "loop.toml")
    assert (noted["actor"], noted["format"], noted["rows"]) == ("ada", "trl", told["rows"])
    assert noted["folder"] == str(team / "set")
    assert run("dataset", "list", "team") == [noted]
    manifest = json.loads(Path("set/manifest.json").read_text())
    assert manifest["files"] == noted["files"]
    assert run("verify")["whole"] is True


@pytest.mark.slow
def test_an_existing_folder_is_not_touched_and_a_cycle_needs_data(team: Path) -> None:
    Path("set").mkdir()
    result = CliRunner().invoke(cli, ["dataset", "export", "loop.toml", "--now", "--format", "trl", "--out", "set"])
    assert isinstance(result.exception, ConfigError)
    assert "set exists; name a new folder" in str(result.exception)
    result = CliRunner().invoke(cli, ["dataset", "export", "loop.toml", "--format", "trl", "--out", "other"])
    assert isinstance(result.exception, ConfigError | Rejected)
    assert not Path("other").exists()
