"""Tests of what `ratchet ingest` prints besides its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import ratchet
from tests.unit.materializer.records import evaluation, log, logs, span, spans

LOOP = """
[line]
name = "sums"
served_model = "m"
[[sources]]
name = "app"
kind = "otlp"
path = "traces"
[[rewards]]
name = "user_feedback"
"""


@pytest.mark.slow
def test_feedback_about_calls_that_did_not_arrive_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    (tmp_path / "loop.toml").write_text(LOOP)
    (folder / "calls.json").write_text(json.dumps(spans(span(1))) + "\n")
    rated = logs(log(1, evaluation("user_feedback", 1)), log(2, evaluation("user_feedback", 1)), log(3, evaluation("user_feedback", 0)))
    (folder / "ratings.json").write_text(json.dumps(rated) + "\n")
    done = ratchet("ingest", "loop.toml", home=tmp_path / "home", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 feedback records are about calls that are not in the lake" in done.stdout + done.stderr
