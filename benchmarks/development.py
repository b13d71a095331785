"""What can 10, 30, 100 or 300 development prompts tell about the length of a run, and what does a choice by them lose?

One SFT run per task and seed is trained to its limit of steps, and measured on thousands of unseen questions at every point that the
product measures. Draws of n questions of one half then take the place of the line's development prompts: the product's own rules
(`ratchet.trainers.length`) decide on each draw when the run ends and which step is published. The accuracy on the other half is the truth.
The regret of a draw is what it loses against the step that is best on all questions of the first half.
The model after a cooldown is left out: it is measured at one length only, and the choice would be the same.

`python -m benchmarks.development [--tasks NAME...] [--seeds N...] [--draws N] [--tests N] [--out FILE]` prints tables and writes its rows.
Rows that exist are not computed again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, quantiles, stdev
from typing import Any, NamedTuple
from unittest.mock import patch

from scipy.special import stdtrit

from benchmarks.closed_loops.tasks import EVERY
from benchmarks.recipe_cell import TRAINERS, measured_code, one_cycle
from benchmarks.recipe_grid import Cell
from ratchet.contracts.data.records import DEVELOPMENT
from ratchet.contracts.jobs.training import Method
from ratchet.materializer.lake.schemas import frame_of, parquet
from ratchet.trainers import length
from ratchet.trainers.job.trl import length_control
from ratchet.trainers.job.trl.figures import STATE
from ratchet.trainers.job.trl.length_control import AGREEMENT, SCORES
from ratchet.trainers.length import LEAST, Length, Measurement, best, cooldown_steps, decide, difference, mean, points

PROMPTS = (10, 30, 100, 300)
SMALL = {"gradient_checkpointing": False, "micro_batch": 16, "save_every": 1000, "steps": "auto"}
RESULTS = Path(__file__).resolve().parent / "results" / "development.jsonl"
UNTOUCHED = ("times", "mails", "paths", "days")
"""Tasks whose curves were never looked at before the rules were fixed."""
SHORTEST = 60
"""Steps of the shortest run with which the compute is compared. A run that is best after 13 steps must be longer to know it."""


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
            "tools": None,
        }
        for i, question in enumerate(bench.world.test)
    ]
    measured = bench.artifacts.put(parquet(frame_of(rows, DEVELOPMENT), DEVELOPMENT, ["prompt_id"]))
    data = cycle.data.model_copy(update={"development": measured, "development_prompts": len(rows), "cross_validation": None})
    recipe = TRAINERS[Method.SFT].recipe(SMALL, data.facts)
    with _to_the_limit():
        bench.train(bench.plan(data, cycle.start, Method.SFT, recipe, cell.chance), cycle.model, "run")
    newest = max((bench.folder / "run" / "i1").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    logged = [entry for entry in json.loads((newest / STATE).read_bytes())["log_history"] if SCORES in entry]
    found = [Measurement(entry["step"], tuple(entry[SCORES]), entry["cooled"], tuple(entry[AGREEMENT])) for entry in logged]
    return found, [row["slice"] for row in rows], int(recipe["most_steps"])


@contextmanager
def _to_the_limit() -> Iterator[None]:
    """Let runs in this process train to their limit, whatever the scores are."""

    def unless_at_the_limit(measured: Sequence[Measurement], _slices: Sequence[str | None], most: int) -> Length:
        newest = measured[-1]
        action = "end" if newest.cooled else "cool" if newest.step >= points(most)[-1] else "train"
        return Length(action, newest.step, "the run goes to its limit")

    with patch.object(length, "decide", unless_at_the_limit), patch.object(length_control, "decide", unless_at_the_limit):
        yield


class Draw(NamedTuple):
    """What one draw of development prompts decides."""

    published: int
    """Step."""
    baseline: int
    """Step that the one-standard-error rule would publish."""
    trained: int
    """Steps of the run, with its cooldown."""


def published(measured: Sequence[Measurement], slices: Sequence[str | None], most: int) -> Draw:
    """Return what the product decides, from the measurements up to the decision to end."""
    known = 2
    while (action := decide(measured[:known], slices, most).action) == "train" and known < len(measured):
        known += 1
    last = measured[known - 1].step
    kept = best(measured[0], measured[1:known], slices)[0].step
    return Draw(kept, one_standard_error(measured[1:known]), last + (cooldown_steps(last) if action == "cool" else 0))


def one_standard_error(trained: Sequence[Measurement]) -> int:
    """Return the step of the baseline: a longer training must be better by a standard error (Breiman et al. 1984).

    The scores decide; if they differ by less in both directions, the agreement does.
    """
    kept = trained[0]
    for one in trained[1:]:
        gain, error = difference(one, kept)
        if abs(gain) <= error:
            gain, error = difference(Measurement(one.step, one.agreement), Measurement(kept.step, kept.agreement))
        kept = one if gain > error else kept
    return kept.step


def drawn(
    measured: Sequence[Measurement], slices: Sequence[str | None], most: int, prompts: int, draws: int, seed: int
) -> tuple[int, dict[int, float], list[Draw]]:
    """Return the step that is best on one half of the questions, the accuracy of each step on the other half, and draws."""
    constant = [one for one in measured if not one.cooled]
    chosen_by, scored_by = range(0, len(slices), 2), range(1, len(slices), 2)
    top = max(constant[1:], key=lambda one: mean(_some(one, chosen_by))).step
    true = {one.step: mean(_some(one, scored_by)) for one in constant}
    draw, found = random.Random(seed), []
    for _ in range(draws):
        some = draw.sample(chosen_by, prompts)
        found.append(published([_some(one, some) for one in constant], [slices[i] for i in some], most))
    return top, true, found


def _some(one: Measurement, places: Sequence[int]) -> Measurement:
    return Measurement(one.step, tuple(one.scores[i] for i in places), one.cooled, tuple(one.agreement[i] for i in places))


def rows_of(cell: Cell, draws: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one row per number of prompts."""
    measured, slices, most = measurements(cell, folder)
    curve = {str(one.step): round(mean(one), 4) for one in measured if not one.cooled}
    for prompts in PROMPTS:
        top, true, found = drawn(measured, slices, most, prompts, draws, cell.seed)
        regrets = [true[top] - true[one.published] for one in found]
        yield {
            "task": cell.task,
            "seed": cell.seed,
            "prompts": prompts,
            "draws": draws,
            "questions": len(slices),
            "curve": curve,
            "best_step": top,
            "best": true[top],
            "regret": fmean(regrets),
            "regret_of_one_error": fmean(true[top] - true[one.baseline] for one in found),
            "regret_of_one_in_ten": quantiles(regrets, n=10)[-1],
            "published": fmean(one.published for one in found),
            "compute": fmean(one.trained for one in found) / max(SHORTEST, top + cooldown_steps(top)),
            "worse_than_start": fmean(true[one.published] < true[0] for one in found),
            "date": datetime.now(UTC).date().isoformat(),
            "code": measured_code()[:12],
        }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table: the regret of the choice by n prompts, on average and in one of ten draws."""
    lines = [
        "| task | seeds | start | best step | " + " | ".join(f"{n} prompts" for n in PROMPTS) + " |",
        "|---" * (len(PROMPTS) + 4) + "|",
    ]
    for task, found in _by(rows, "task").items():
        start, tops = fmean(row["curve"]["0"] for row in found), sorted({row["best_step"] for row in found})
        cells = [f"{task}{' (untouched)' if task in UNTOUCHED else ''}", str(len({row["seed"] for row in found})), f"{start:.3f}"]
        cells.append(f"{fmean(row['best'] for row in found):.3f} at {', '.join(map(str, tops))}")
        for group in _by(found, "prompts").values():
            cells.append(f"{fmean(row['regret'] for row in group):.3f} ({max(row['regret_of_one_in_ten'] for row in group):.3f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table per number of prompts, over all runs of tuned-on and of untouched tasks."""
    head = ["tasks", "prompts", "runs", "mean regret", "its upper 90 % bound", "largest mean of a run", "one-standard-error rule"]
    lines = ["| " + " | ".join([*head, "compute against the best step"]) + " |", "|---" * (len(head) + 1) + "|"]
    for untouched, prompts in itertools.product((False, True), PROMPTS):
        found = [row for row in rows if row["prompts"] == prompts and (row["task"] in UNTOUCHED) is untouched]
        if len({row["task"] for row in found}) < 2:
            continue
        regrets = [fmean(row["regret"] for row in group) for group in _by(found, "task").values()]  # runs of a task are alike
        bound = fmean(regrets) + float(stdtrit(len(regrets) - 1, 0.9)) * stdev(regrets) / math.sqrt(len(regrets))
        cells = ["untouched" if untouched else "present", prompts, len(found), f"{fmean(regrets):.4f}", f"{bound:.4f}"]
        cells += [f"{max(row['regret'] for row in found):.4f}", f"{fmean(row['regret_of_one_error'] for row in found):.4f}"]
        cells.append(f"{fmean(row['compute'] for row in found):.1f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _by(rows: Sequence[dict[str, Any]], name: str) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row[name]].append(row)
    return groups


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=list(EVERY), choices=list(EVERY))
    parser.add_argument("--seeds", nargs="*", type=int, default=[5])
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--tests", type=int, default=1250, help="Test questions per kind of request.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    assert min(PROMPTS) >= LEAST
    read = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    rows = [row for row in read if "regret" in row]  # older rows have another meaning
    known = {(row["task"], row["seed"], row["code"]) for row in rows}
    for seed, task in itertools.product(given.seeds, given.tasks):
        if (task, seed, measured_code()[:12]) in known:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            new = list(rows_of(Cell(task, 0.6, 0.15, seed, tests=given.tests), given.draws, Path(temporary)))
        rows = [row for row in rows if (row["task"], row["seed"]) != (task, seed)] + new
        given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(table(rows), summary(rows), sep="\n\n")


if __name__ == "__main__":
    main()
