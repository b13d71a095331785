"""Tests of the recipe benchmark: its question sets are disjoint, its summary follows from its rows, and its cells run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recipe_cell import true_demonstrations
from benchmarks.recipe_grid import forced
from benchmarks.recipe_table import arms, markdown, summary
from benchmarks.recipe_worlds import TASKS, Question, build_world
from ratchet.contracts.data.records import DEMONSTRATIONS
from ratchet.materializer.lake.schemas import read_parquet
from ratchet.runtime.artifacts import FolderArtifacts

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["kubectl", "sql"])
@pytest.mark.parametrize("quality", [0.3, 0.9])
def test_question_sets_are_disjoint_and_large_enough(task: str, quality: float) -> None:
    world = build_world(TASKS[task], quality, seed=1)
    parts = [{q.prompt for q in part} for part in (world.learnt, world.asked, world.golden, world.tuning, world.test)]
    assert sum(len(part) for part in parts) == len(set().union(*parts))
    assert len(world.test) >= 3000
    assert min(sum(q.slice == name for q in world.test) for name in TASKS[task].intents) >= 500


def row(**changes: Any) -> dict[str, Any]:
    """Return a result row of the benchmark with `changes`."""
    plain = {"cell": "c", "task": "t", "quality": 0.6, "flips": 0.0, "seed": 0, "chosen": "sft", "trained": True, "gate": "pass"}
    figures = {"base": 0.6, "gain": 0.09, "lower": 0.05, "oracle_gain": 0.1, "worst_slice": 0.0}
    return {**plain, **figures, "slices": {"a": 0.0}, "named": [], "undecided": [], **changes}


def test_the_summary_follows_from_the_rows() -> None:
    rows = [
        row(seed=0),
        row(seed=1, gain=0.0, lower=-0.01, worst_slice=-0.05, slices={"a": -0.05}),
        row(cell="said", seed=4, oracle_gain=0.0, worst_slice=-0.05, slices={"a": -0.05}, named=["a"]),
        row(cell="open", seed=5, oracle_gain=0.0, slices={"a": -0.05}, undecided=["a"]),
        row(seed=2, chosen="none", lower=0.04),
        row(seed=3, oracle_gain=0.01, gain=-0.02, lower=-0.03, gate="fail", worst_slice=-0.1),
    ]
    found = summary(rows)
    assert found["improved"] == pytest.approx(3 / 5)
    assert found["worth"] == 3
    assert found["of_the_oracle"] == pytest.approx(0.09 / 0.3), "a cell without training counts as no gain"
    assert found["kept_with_a_loss"] == ["c", "said", "open"]
    assert found["kept_with_a_loss_named_as_lower"] == ["said"]
    assert found["kept_with_a_silent_loss"] == ["c"]
    assert found["undecided_slices"] == pytest.approx(1 / 4)
    low, high = found["of_the_oracle_interval"]
    assert low <= found["of_the_oracle"] <= high
    assert found["do_not_train"]["did not train, training helps"] == 1
    assert sum(found["do_not_train"].values()) == len(rows)
    assert "| t | 0.6 | 0% | 6 |" in markdown(rows, "today")


def test_the_arms_of_a_forced_method_get_the_same_traffic() -> None:
    cells = forced("dpo", seeds=2, draws=3)
    assert len({cell.name for cell in cells}) == len(cells) == 2 * 2 * 2 * 3 * 2
    met = {arm: [(cell.base, cell.flips, cell.chance) for cell in cells if cell.rehearsal == arm] for arm in (0.0, 1.0)}
    assert met[0.0] == met[1.0]
    assert len(set(met[0.0])) == len(met[0.0])
    assert all('methods = ["dpo"]' in cell.loop() for cell in cells)
    assert {cell.rehearsal for cell in forced("sft", 1, 1)} == {None}
    rows = [row(rehearsal=0.0, slices={"a": -0.05}, worst_slice=-0.05), row(rehearsal=0.0, gain=0.05), row(rehearsal=1.0)]
    told = arms(rows, "today")
    assert "| t | 0.6 | 0 | 2 | 0.600 | +0.070 | -0.025 | -0.050 | 1 of 2 | 2 of 2 |" in told
    assert "| t | 0.6 | 1 | 1 | 0.600 | +0.090 | +0.000 | +0.000 | 0 of 1 | 1 of 1 |" in told


@pytest.mark.soak
@pytest.mark.parametrize("cells", [1, 2])
def test_cells_run_from_traffic_to_the_gate(tmp_path: Path, cells: int) -> None:
    command = [sys.executable, "benchmarks/recipes.py", "--quick", str(cells), "--json", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, (tmp_path / "log.txt").read_text()[-3000:]
    found = json.loads(done.stdout)
    assert found["cells"] == found["trained"] == cells
    assert found["improved"] == 1.0


def test_the_true_answers_are_demonstrations_of_the_present_form(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path)
    found = read_parquet(artifacts.get(true_demonstrations(artifacts, {"b": Question("q", "a", "s"), "a": Question("r", "c", "s")})))
    assert [(row["prompt_id"], row["answer"]) for row in found.iter_rows(named=True)] == [("a", "c"), ("b", "a")]
    assert found.columns == [column.name for column in DEMONSTRATIONS]
