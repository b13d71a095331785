"""Tests of `ratchet judge`: a sample for people, and their grades."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.main import cli
from ratchet.flows.config.home import Home
from ratchet.rewards.judge.records import JudgeRecords

pytestmark = pytest.mark.slow  # the commands load the libraries of the lake

LOOP = """
[line]
name = "sums"
served_model = "sums"
[[sources]]
name = "app"
kind = "jsonl"
path = "traces.jsonl"
[[rewards]]
name = "exact_match"
"""


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A loop file with 60 ingested traces, of which some are held out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    records = [
        {
            "id": str(n),
            "timestamp": "2026-01-01T00:00:00Z",
            "user_id": f"u{n}",
            "messages": [{"role": "user", "content": f"What is {n} + 1?"}],
            "response": f"A: {n + 1}",
            "consent": n != 7,
            "reference": f"A: {n + 1}",
        }
        for n in range(60)
    ]
    Path("traces.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    Path("loop.toml").write_text(LOOP)
    _run("ingest", "loop.toml")
    return Path("loop.toml")


def _run(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception!r}"
    return json.loads(result.stdout)


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_people_grade_a_sample(loop: Path, tmp_path: Path) -> None:
    out = tmp_path / "sample.jsonl"
    assert _run("judge", "export", str(loop), str(out), "--size", "12") == {"file": str(out), "answers": 12}
    rows = _lines(out)
    assert all(row["grade"] is None for row in rows)
    assert not any("What is 7 +" in row["prompt"][0]["content"] for row in rows)
    for row, grade in zip(rows, ["right", "wrong", 0.5, 1, None], strict=False):
        row["grade"] = grade
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert _run("judge", "grade", str(loop), str(out), "--by", "ada") == {"line": "sums", "grades": 4}
    records = JudgeRecords(Home(tmp_path / "home").judgements, "sums")
    assert sorted(records.grades().values()) == [0.0, 0.5, 1.0, 1.0]
    _run("judge", "export", str(loop), str(tmp_path / "next.jsonl"), "--size", "100")
    graded = {row["id"] for row in rows[:4]}
    assert graded.isdisjoint(row["id"] for row in _lines(tmp_path / "next.jsonl"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "another answer"}, "line 1: the prompt or the answer was changed"),
        ({"grade": "perhaps"}, "line 1: the grade must be a number from 0 to 1"),
        ({"grade": 1.5}, "the grade must be a number"),
        ({"grade": True}, "the grade must be a number"),
        ({"prompt": 5}, "not a line of `ratchet judge export`"),
    ],
)
def test_a_changed_file_is_refused(loop: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    out = tmp_path / "sample.jsonl"
    _run("judge", "export", str(loop), str(out), "--size", "1")
    (row,) = _lines(out)
    out.write_text(json.dumps(row | change) + "\n")
    result = CliRunner().invoke(cli, ["judge", "grade", str(loop), str(out)])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert CliRunner().invoke(cli, ["judge", "export", str(loop), str(out)]).exception is not None
