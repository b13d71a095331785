"""Compares learning rates of GRPO on the same traffic: the rate that a recipe without one gets (4.2e-5 here), and fixed ones.

`python -m benchmarks.grpo_rates [--tasks NAME...] [--seeds N...] [--rates NAME...] [--out FILE]` appends one row per task, seed and rate,
and prints a table. Rows that exist are not computed again. GRPO trains on the product's own training set of one cycle, for as long as its
development prompts show a gain (`steps = "auto"`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.recipe_cell import one_cycle
from benchmarks.recipe_grid import Cell
from ratchet.contracts.jobs.training import Method

SMALL = {"gradient_checkpointing": False, "micro_batch": 64, "max_completion": 48, "save_every": 1000}
RATES: dict[str, dict[str, Any]] = {
    "1e-6": {"learning_rate": 1e-6},
    "2.3e-5": {"learning_rate": 2.3e-5},
    "auto": {},
    "7e-5": {"learning_rate": 7e-5},
    "2.1e-4": {"learning_rate": 2.1e-4},
    "6.3e-4": {"learning_rate": 6.3e-4},
}
RESULTS = Path(__file__).resolve().parent / "results" / "grpo_rates.jsonl"


def rows_of(cell: Cell, rates: list[str], folder: Path) -> list[dict[str, Any]]:
    """Return a row for each of the `rates`, on the same base model, traffic and training set."""
    cycle = one_cycle(cell, folder, cell.name)
    rows = []
    for number, name in enumerate(rates):
        row = cycle.trained(Method.GRPO, {**SMALL, **RATES[name]}, f"grpo-{number}")
        del row["metrics"]
        rows.append({**row, "rate": name, "date": datetime.now(UTC).date().isoformat()})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table: accuracy on unseen questions by task and rate."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["task"]][row["rate"]].append(row)
    lines = ["| task | runs | base | " + " | ".join(RATES) + " |", "|---" * (len(RATES) + 3) + "|"]
    for task, found in sorted(groups.items()):
        start = fmean(row["base"] for name in found for row in found[name])
        cells = [f"{fmean(row['accuracy'] for row in found[name]):.3f}" if found[name] else "–" for name in RATES]
        lines.append(f"| {task} | {max(map(len, found.values()))} | {start:.3f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=["kubectl", "sql"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[5])
    parser.add_argument("--rates", nargs="*", default=list(RATES), choices=list(RATES))
    parser.add_argument("--quality", type=float, default=0.6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    with tempfile.TemporaryDirectory() as temporary:
        for seed, task in itertools.product(given.seeds, given.tasks):
            known = {row["rate"] for row in rows if (row["task"], row["seed"]) == (task, seed)}
            wanted = [name for name in given.rates if name not in known]
            new = rows_of(Cell(task, given.quality, 0.15, seed), wanted, Path(temporary)) if wanted else []
            rows += new
            with given.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
    print(table(rows))


if __name__ == "__main__":
    main()
