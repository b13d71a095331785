"""Tests of the benchmark of run lengths: its tasks, its table, and one row by the product's own way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.length import SETTINGS, table
from benchmarks.recipe_untuned import KINDS
from benchmarks.recipe_worlds import TASKS, build_world

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_task_has_distinct_questions_with_one_answer_each(name: str) -> None:
    world = build_world(TASKS[name], 0.6, 5)
    sets = [world.learnt, world.asked, world.golden, world.tuning, world.test]
    prompts = [q.prompt for part in sets for q in part]
    assert len(prompts) == len(set(prompts)), "no question is in two sets"
    assert build_world(TASKS[name], 0.6, 5).asked == world.asked
    assert {q.slice for q in world.test} == set(TASKS[name].intents)


def test_the_table_shows_each_setting_beside_the_others() -> None:
    row = {"task": "sort", "seed": 5, "method": "sft", "base": 0.4, "trained": 60, "published": 30}
    rows = [{**row, "steps": name, "accuracy": 0.5} for name in SETTINGS]
    assert table(rows).splitlines()[2] == "| 400 | sort | sft | 0.400 " + "| 0.500 " * len(SETTINGS) + "| 60, 30 |"
    assert "–" in table(rows[:1])


@pytest.mark.slow
@pytest.mark.soak
def test_a_row_comes_from_a_real_run(tmp_path: Path) -> None:
    """It runs in a process of its own, as the trainer changes the process that it runs in."""
    given = ["--seeds", "1", "--tasks", "route", "--methods", "sft", "--settings", "auto", "--out", str(tmp_path / "rows.jsonl")]
    command = [sys.executable, "-m", "benchmarks.length", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert (row["task"], row["steps"], row["method"]) == ("route", "auto", "sft")
    assert 0 < row["published"] <= row["trained"] <= 1000
    assert row["accuracy"] > row["base"]
    assert "| route | sft |" in done.stdout
