"""Tests of what `ratchet ingest` tells besides its table, and of right answers that come after their traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import ratchet
from tests.unit.materializer.records import evaluation, log, logs, span, spans
from tests.unit.materializer.small_datasets import HELD, TRAIN

LOOP = """
[line]
name = "sums"
served_model = "m"
[[sources]]
name = "app"
kind = "{kind}"
path = "traces"
[[rewards]]
name = "{reward}"
[governance]
consent = "assumed"
[holdout]
development = 0
"""


@pytest.mark.slow
def test_right_answers_in_a_second_file_are_told_and_exported(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "traces"
    folder.mkdir()
    (tmp_path / "loop.toml").write_text(LOOP.format(kind="jsonl", reward="exact_match"))
    calls = [
        {"id": f"c{n}", "timestamp": "2026-01-01T00:00:00Z", "messages": text, "response": "no", "model": "m"}
        for n, text in enumerate([HELD, *TRAIN])
    ]

    def write(name: str, records: list[dict[str, Any]]) -> None:
        (folder / name).write_text("".join(json.dumps(one) + "\n" for one in records))

    def run(*arguments: str) -> str:
        done = ratchet(*arguments, home=home, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def ingested() -> dict[str, Any]:
        done = ratchet("ingest", "loop.toml", "--json", home=home, cwd=tmp_path)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    write("1.jsonl", calls)
    assert "right answers" not in run("ingest", "loop.toml")
    write("2.jsonl", [one | {"reference": f"answer {n}"} for n, one in enumerate(calls[:5])])
    assert "5 more come with later records of calls" in run("sources", "try", "traces", "--loop", "loop.toml")
    assert "5 right answers came with records of known traces; they are kept, and count for these traces" in run("ingest", "loop.toml")
    write("3.jsonl", [one | {"reference": f"answer {n}"} for n, one in enumerate(calls[:6])])
    report = ingested()
    assert (report["duplicate"], report["feedback"]["kept"], report["late_references"]) == (21, 1, 1)
    write("4.jsonl", [{"id": "c7", "timestamp": "2026-01-01T00:00:00Z", "reference": "7"}])
    assert ingested()["reasons"] == {"incomplete_record": 1}
    run("dataset", "export", "loop.toml", "--now", "--format", "parquet", "--out", "ds", "--by", "ada")
    card = (tmp_path / "ds" / "card.md").read_text()
    assert "| logged right answers that are used | 5 |" in card
    assert "| logged right answers in the holdout | 1 |" in card
    assert "| logged right answers that came with a later record of their trace | 6 |" in card


@pytest.mark.slow
def test_feedback_about_calls_that_did_not_arrive_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    (tmp_path / "loop.toml").write_text(LOOP.format(kind="otlp", reward="user_feedback"))
    (folder / "calls.json").write_text(json.dumps(spans(span(1))) + "\n")
    rated = logs(log(1, evaluation("user_feedback", 1)), log(2, evaluation("user_feedback", 1)), log(3, evaluation("user_feedback", 0)))
    (folder / "ratings.json").write_text(json.dumps(rated) + "\n")
    done = ratchet("ingest", "loop.toml", home=tmp_path / "home", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 feedback records are about calls that are not in the lake" in done.stdout + done.stderr
