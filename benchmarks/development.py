"""What can 10, 30, 100 or 300 development prompts tell about the length of a run?

One SFT run per task is measured on thousands of unseen questions at every point that the product measures. Draws of n of these questions
then take the place of the line's development prompts: the product's own rules (`ratchet.trainers.length`) decide on each draw when the run
ends and which step is published. The accuracy on all questions is the truth. A draw that would train for longer than the run did ends with
it.

`python -m benchmarks.development [--tasks NAME...] [--seeds N...] [--draws N] [--out FILE]` prints a table and writes its rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.recipe_cell import TRAINERS, measured_code, one_cycle
from benchmarks.recipe_grid import Cell
from ratchet.contracts.data.records import DEVELOPMENT
from ratchet.contracts.jobs.training import Method
from ratchet.materializer.lake.schemas import frame_of, parquet
from ratchet.trainers.job.trl.figures import STATE
from ratchet.trainers.job.trl.length_control import AGREEMENT, SCORES
from ratchet.trainers.length import LEAST, Measurement, best, decide, mean

PROMPTS = (10, 30, 100, 300)
SMALL = {"gradient_checkpointing": False, "micro_batch": 16, "save_every": 1000, "steps": "auto"}
RESULTS = Path(__file__).resolve().parent / "results" / "development.jsonl"


def measurements(cell: Cell, folder: Path) -> tuple[list[Measurement], list[str | None], int]:
    """Train one run with the test questions as its development prompts. Return its measurements, their slices, and the limit of steps."""
    cycle = one_cycle(cell, folder, cell.name)
    bench = cycle.bench
    rows = [
        {
            "prompt_id": f"{i:064d}",
            "prompt": json.dumps([{"role": "user", "content": question.prompt}]),
            "reference": question.answer,
            "reference_kind": "reference",
            "slice": question.slice,
            "answer": question.answer,
        }
        for i, question in enumerate(bench.world.test)
    ]
    measured = bench.artifacts.put(parquet(frame_of(rows, DEVELOPMENT), DEVELOPMENT, ["prompt_id"]))
    data = cycle.data.model_copy(update={"development": measured, "development_prompts": len(rows)})
    recipe = TRAINERS[Method.SFT].recipe(SMALL, data.facts)
    bench.train(bench.plan(data, cycle.start, Method.SFT, recipe, cell.chance), cycle.model, "run")
    newest = max((bench.folder / "run" / "i1").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    logged = [entry for entry in json.loads((newest / STATE).read_bytes())["log_history"] if SCORES in entry]
    found = [Measurement(entry["step"], tuple(entry[SCORES]), entry["cooled"], tuple(entry[AGREEMENT])) for entry in logged]
    return found, [row["slice"] for row in rows], int(recipe["most_steps"])


def published(measured: Sequence[Measurement], slices: Sequence[str | None], most: int) -> Measurement:
    """Return the measurement of the step that the product publishes, from the measurements up to the decision to end."""
    for known in range(1, len(measured) + 1):
        if decide(measured[:known], slices, most).action != "train":
            break
    return best(measured[0], measured[1:known], slices)[0]


def drawn(
    measured: Sequence[Measurement], slices: Sequence[str | None], most: int, prompts: int, draws: int, seed: int
) -> Iterator[tuple[int, float, float]]:
    """Yield (published step, its true accuracy, that of the best measured step) for draws of `prompts` questions."""
    draw, constant = random.Random(seed), [one for one in measured if not one.cooled]
    true = {one.step: mean(one) for one in constant}
    for _ in range(draws):
        some = draw.sample(range(len(slices)), prompts)
        seen = [Measurement(one.step, tuple(one.scores[i] for i in some), False, tuple(one.agreement[i] for i in some)) for one in constant]
        kept = published(seen, [slices[i] for i in some], most)
        yield kept.step, true[kept.step], max(accuracy for step, accuracy in true.items() if step)


def rows_of(cell: Cell, draws: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one row per number of prompts."""
    measured, slices, most = measurements(cell, folder)
    curve = {str(one.step): round(mean(one), 4) for one in measured if not one.cooled}
    for prompts in PROMPTS:
        found = list(drawn(measured, slices, most, prompts, draws, cell.seed))
        yield {
            "task": cell.task,
            "seed": cell.seed,
            "prompts": prompts,
            "draws": draws,
            "curve": curve,
            "accuracy": fmean(accuracy for _, accuracy, _ in found),
            "best": found[0][2],
            "lost": fmean(top - accuracy for _, accuracy, top in found),
            "worse_than_start": fmean(accuracy < mean(measured[0]) for _, accuracy, _ in found),
            "date": datetime.now(UTC).date().isoformat(),
            "code": measured_code()[:12],
        }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table: what the choice by n prompts loses against the best measured step."""
    lines = ["| task | start | best step | " + " | ".join(f"{n} prompts" for n in PROMPTS) + " |", "|---" * (len(PROMPTS) + 3) + "|"]
    for (task, _), found in itertools.groupby(rows, lambda row: (row["task"], row["seed"])):
        group = list(found)
        cells = [f"-{row['lost']:.3f} ({row['worse_than_start']:.0%})" for row in group]
        lines.append(f"| {task} | {group[0]['curve']['0']:.3f} | {group[0]['best']:.3f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=["kubectl", "sql", "route", "extract", "sort"])
    parser.add_argument("--seeds", nargs="*", type=int, default=[5])
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    assert min(PROMPTS) >= LEAST
    known = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    rows = [row for row in known if row["task"] not in given.tasks or row["seed"] not in given.seeds]
    with tempfile.TemporaryDirectory() as temporary:
        for seed, task in itertools.product(given.seeds, given.tasks):
            rows += rows_of(Cell(task, 0.6, 0.15, seed), given.draws, Path(temporary))
            given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(table(rows))


if __name__ == "__main__":
    main()
