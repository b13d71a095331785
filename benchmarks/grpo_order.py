"""Compares the orders of GRPO's prompts (the recipe's `prompt_order`) on the same traffic.

`python -m benchmarks.grpo_order [--tasks NAME...] [--seeds N...] [--rate NAME] [--steps N] [--out FILE]` appends one row per task, seed and
order, and prints a table. Rows that exist are not computed again. Both orders train for the same number of steps, with the same number of
sampled answers. A row has the share of groups with signal, and the accuracy of greedy answers and of answers at temperature 1 on half of
the unseen questions, before and after. `--folder` keeps the base models for a later call.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.grpo_rates import RATES, SMALL
from benchmarks.recipe_cell import TRAINERS, Answers, Traffic, measured_code, one_cycle
from benchmarks.recipe_grid import Cell
from ratchet.contracts.jobs.training import Method
from ratchet.trainers.prompt_order import ORDERS

RESULTS = Path(__file__).resolve().parent / "results" / "grpo_order.jsonl"


def accuracy(cycle: Traffic, model: Path) -> tuple[float, float]:
    """Return the share of right answers of a model on half of the unseen questions: (greedy, at temperature 1)."""
    asked, answers = cycle.bench.world.test[::2], Answers(model)
    heats = (answers.texts(asked, heat, cycle.bench.cell.chance) for heat in (0.0, 1.0))
    greedy, sampled = (fmean(text.strip() == q.answer for q, text in zip(asked, texts, strict=True)) for texts in heats)
    return greedy, sampled


def trained(cycle: Traffic, order: str, rate: str, steps: int, start: tuple[float, float]) -> dict[str, Any]:
    """Train with one order, and return a row. `start` is the accuracy of the base model."""
    bench, cell = cycle.bench, cycle.bench.cell
    recipe = TRAINERS[Method.GRPO].recipe({**SMALL, **RATES[rate], "prompt_order": order, "steps": steps}, cycle.data.facts)
    model = bench.train(bench.plan(cycle.data, cycle.start, Method.GRPO, recipe, cell.chance), cycle.model, f"grpo-{order}")
    lines = (bench.folder / f"grpo-{order}" / "i1" / "events.jsonl").read_text().splitlines()
    signal = [1 - event["data"]["groups_without_signal"] for event in map(json.loads, lines) if event["kind"] == "progress"]
    facts, end = cycle.data.facts, accuracy(cycle, model) if model else start
    return {
        "task": cell.task,
        "seed": cell.seed,
        "order": order,
        "rate": rate,
        "steps": steps,
        "finished": model is not None,
        "prompts": facts.usable_prompts,
        "mixed": facts.group_coverage,
        "never_right": facts.never_right,
        "signal": fmean(signal),
        "signal_of_last_half": fmean(signal[len(signal) // 2 :]),
        "greedy": [start[0], end[0]],
        "sampled": [start[1], end[1]],
        "date": datetime.now(UTC).date().isoformat(),
        "code": measured_code()[:12],
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with the means over the seeds of each task and order."""
    groups: dict[tuple[str, str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["task"], row["rate"], row["steps"], row["order"]].append(row)
    lines = ["| task | rate | steps | order | runs | groups with signal | in the last half | at temperature 1 | greedy |", "|---" * 9 + "|"]
    for (task, rate, steps, order), found in sorted(groups.items()):
        shown = [f"{fmean(row[name] for row in found):.0%}" for name in ("signal", "signal_of_last_half")]
        shown += [" → ".join(f"{fmean(row[name][at] for row in found):.3f}" for at in (0, 1)) for name in ("sampled", "greedy")]
        lines.append(f"| {task} | {rate} | {steps} | {order} | {len(found)} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=["kubectl", "sql"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[5, 6, 7])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", default="auto", choices=list(RATES))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quality", type=float, default=0.6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    known = {(row["task"], row["seed"], row["order"], row["rate"], row["steps"]) for row in rows}
    with tempfile.TemporaryDirectory() as temporary:
        for seed, task in itertools.product(given.seeds, given.tasks):
            wanted = [order for order in ORDERS if (task, seed, order, given.rate, given.steps) not in known]
            if not wanted:
                continue
            cycle = one_cycle(Cell(task, given.quality, 0.15, seed), given.folder or Path(temporary), f"{task}-{seed}")
            start = accuracy(cycle, cycle.model)
            for order in wanted:
                rows.append(trained(cycle, order, given.rate, given.steps, start))
                print(json.dumps(rows[-1]), flush=True)
                with given.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
