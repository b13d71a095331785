"""Tests of the goodput benchmark at a small scale: both arms survive the kills, and their kept steps add up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.soak
def test_both_arms_keep_their_saved_steps_after_kills(tmp_path: Path) -> None:
    out = tmp_path / "goodput.json"
    command = [sys.executable, "benchmarks/goodput.py", "--kills", "2", "--means", "3", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (rate,) = json.loads(out.read_text())["results"]
    assert [arm["save_every"] for arm in rate["arms"]] == ["auto", 100]
    for arm in rate["arms"]:
        assert 0 <= arm["steps_kept"] <= arm["steps_done"]
        assert 0 <= arm["goodput"] <= 1.5, "the median step may be slower than the mean"
    assert rate["arms"][0]["checkpoints"] > 0
