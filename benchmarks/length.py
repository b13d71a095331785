"""Compares runs that find their own number of steps with constants, on the same traffic: true accuracy and compute time.

`python -m benchmarks.length [--seeds N] [--tasks NAME...] [--settings NAME...] [--requests N...] [--out FILE]` appends one row per task,
seed, number of distinct requests and setting, and prints a table. Rows that exist are not computed again. The settings are the project's
former constant (60 steps), larger constants, `auto`, and `no folds`: `auto` without a cross-validation where development prompts are few.
Both are also available with a third of the learning rate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.recipe_cell import one_cycle
from benchmarks.recipe_grid import ASKED, Cell
from ratchet.contracts.jobs.training import Method

SETTINGS: dict[str, dict[str, Any]] = {
    "60": {"steps": 60},
    "240": {"steps": 240},
    "480": {"steps": 480},
    "960": {"steps": 960},
    "no folds": {"steps": "auto", "folds": 0},
    "auto": {"steps": "auto"},
    "no folds, a third of the rate": {"steps": "auto", "folds": 0, "rate_scale": 1 / 3},
    "auto, a third of the rate": {"steps": "auto", "rate_scale": 1 / 3},
}
RESULTS = Path(__file__).resolve().parent / "results" / "length.jsonl"


def rows_of(cell: Cell, method: Method, settings: list[str], folder: Path, known: set[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return a row for each of the `settings` that is not in `known`, on the same base model, traffic and training set."""
    wanted = {name: SETTINGS[name] for name in settings if (cell.task, cell.seed, method.value, name, cell.asked) not in known}
    if not wanted:
        return []
    cycle = one_cycle(cell, folder, f"{cell.name}-{method.value}")
    rows = []
    for name, changes in wanted.items():
        row = cycle.trained(method, {**cell.recipe(method), **changes}, f"steps-{name}")
        metrics = row.pop("metrics")
        folded = cycle.data.cross_validated_prompts if "cross_validated_steps" in metrics else 0
        gain = metrics.get("cross_validated_gain")
        rows.append({**row, "method": method.value, "steps": name, "requests": cell.asked, "folded": folded, "gain": gain})
    shutil.rmtree(cycle.bench.folder)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table: mean accuracy on unseen questions, and steps, by task, method and setting."""
    groups: dict[tuple[int, str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row.get("requests", ASKED), row["task"], row["method"]][row["steps"]].append(row)
    lines = [
        "| requests | task | method | base | " + " | ".join(SETTINGS) + " | steps of auto: trained, published |",
        "|---" * (len(SETTINGS) + 5) + "|",
    ]
    for (asked, task, method), found in sorted(groups.items()):
        accuracies = [f"{fmean(row['accuracy'] for row in found[name]):.3f}" if found[name] else "–" for name in SETTINGS]
        auto = found["auto"]
        steps = ", ".join(f"{fmean(row[key] for row in auto):.0f}" for key in ("trained", "published")) if auto else "–"
        start = fmean(row["base"] for name in found for row in found[name])
        lines.append(f"| {asked} | {task} | {method} | {start:.3f} | " + " | ".join(accuracies) + f" | {steps} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tasks", nargs="*", default=["kubectl", "sql"])
    parser.add_argument("--methods", nargs="*", default=["sft", "dpo"])
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--quality", type=float, default=0.6)
    parser.add_argument("--requests", nargs="*", type=int, default=[ASKED])
    parser.add_argument("--first", type=int, default=5, help="first seed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    with tempfile.TemporaryDirectory() as temporary:
        cells = itertools.product(range(given.first, given.first + given.seeds), given.tasks, given.requests, given.methods)
        for seed, task, asked, method in cells:
            known = {(row["task"], row["seed"], row["method"], row["steps"], row.get("requests", ASKED)) for row in rows}
            cell = Cell(task, given.quality, 0.15, seed, asked=asked)
            new = rows_of(cell, Method(method), given.settings, Path(temporary), known)
            rows += new
            with given.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
            for row in new:
                print(json.dumps(row), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
