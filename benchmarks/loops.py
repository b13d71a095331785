"""Closed loops: what a line learns over several cycles from its own people, beside what could have been learnt.

Each loop goes through the product's engine (benchmarks/closed_loops/line.py): new questions are answered by the champion, people rate and
correct, and a cycle probes, chooses, trains, judges, and rolls out. After each cycle, questions that nothing else uses measure the truth.
Two oracles with tuned length and rate train on the same requests: one with the true answers, one with the product's last training set.

`python -m benchmarks.loops [--tasks NAME...] [--seeds N] [--traps NAME...] [--cycles 5] [--start champion|held] [--search SECONDS]
[--no-oracles] [--quick] [--table] [--out FILE]` appends one row per loop and prints a table. Rows that exist are not computed again.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.closed_loops.line import ClosedLine, interval
from benchmarks.closed_loops.oracles import on_evidence, on_truth
from benchmarks.closed_loops.people import TRAPS, People
from benchmarks.closed_loops.picture import draw
from benchmarks.closed_loops.tasks import EVERY, FRESH
from benchmarks.recipe_cell import pretrained, right
from benchmarks.recipe_worlds import Question, Task, World
from contracts.cycle import State, Step
from contracts.data.datasets import TrainingSet
from contracts.ids import digest, rollout_stream
from flows.core.folds import CycleView
from trainers.code_digest import code_digest

HERE = Path(__file__).resolve().parent
RESULTS, PICTURE = HERE / "results" / "loops.jsonl", HERE.parent / "docs" / "images" / "loops.svg"
TEST, GOLDEN, TUNING = 2000, 100, 200
"""Test questions, golden questions per slice, and questions on which the oracles choose."""


def world_of(task: Task, seed: int, tests: int) -> tuple[World, dict[str, list[Question]]]:
    """Return disjoint sets of questions, and a pool per slice for the requests of all cycles."""
    draw_ = random.Random(f"loops-{task.name}-{seed}")
    old = [name for name in task.intents if name not in task.new]
    learnt = task.questions(1000 + seed, 800, old) + task.questions(1000 + seed, 6, task.new)
    seen = {q.prompt for q in learnt}
    slices: dict[str, list[Question]] = {name: [] for name in task.intents}
    for question in task.questions(7919 + seed, task.capacity, task.intents):
        if question.prompt not in seen:
            seen.add(question.prompt)
            slices[question.slice].append(question)
    parts = []
    for size in (tests // len(slices), GOLDEN, TUNING // len(slices)):
        parts.append([slices[name].pop() for name in slices for _ in range(size) if slices[name]])
    for pool in slices.values():
        draw_.shuffle(pool)
    corpus = [text for q in task.questions(1, 4000, task.intents) for text in (q.prompt, q.answer)]
    return World(learnt, [], parts[1], parts[2], parts[0], corpus), slices


def run(task: str, seed: int, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one loop and return its row."""
    began = time.process_time()
    torch.set_num_threads(1)
    world, pool = world_of(EVERY[task], seed, given.tests)
    people = People(seed, given.trap)
    base = pretrained(world, EVERY[task].base_steps[0.6], seed, folder / "base")
    line = ClosedLine(folder / "line", base, world.golden, seed, given.start, given.search)
    truth = right(base, world.test)
    cycles: list[dict[str, Any]] = []
    asked: list[Question] = []
    data: TrainingSet | None = None
    current = truth
    for number in range(given.cycles):
        questions = people.questions(pool, number)
        requests = people.asked(questions, number)
        asked += questions
        line.ingest(people.records(requests, line.answer(requests, number), number, line.champion.tag))
        cycle, known = line.cycle(number, world.test, int(digest([task, given.trap, seed, number])[:8], 16))
        if Step.PLAN in cycle.done:
            data = TrainingSet.model_validate(cycle.done[Step.PLAN]["dataset"])
        cycles.append(_told(cycle, known, line, world.test, current))
        if cycle.state is State.PROMOTED:
            current = known["candidate"]
        cycles[-1]["accuracy"] = fmean(current)
        print(json.dumps({"task": task, "seed": seed, "cycle": number + 1, **cycles[-1]}), flush=True)
    loop_seconds = time.process_time() - began
    best: dict[str, Any] = {}
    if data is not None and not given.no_oracles:
        model, recipe = on_truth(line.artifacts, base, asked, data, world.tuning, folder / "truth")
        best["truth"] = {"accuracy": fmean(right(model, world.test)), "recipe": recipe}
        found = on_evidence(line.artifacts, base, data, world.tuning, folder / "evidence")
        if found is not None:
            best["evidence"] = {"accuracy": fmean(right(found[0], world.test)), "recipe": found[1]}
    return {
        "task": task,
        "seed": seed,
        "trap": given.trap,
        "start": given.start,
        "search": given.search,
        "base": fmean(truth),
        "final": fmean(current),
        "cycles": cycles,
        "oracles": best,
        "tests": len(world.test),
        "loop_cpu_seconds": round(loop_seconds),
        "cpu_seconds": round(time.process_time() - began),
        "code": code_digest()[:12],
    }


def _told(cycle: CycleView, known: dict[str, Any], line: ClosedLine, test: list[Question], current: list[bool]) -> dict[str, Any]:
    """Return what a cycle did, and the truth about its candidate."""
    told: dict[str, Any] = {"state": str(cycle.state), "reason": cycle.reason[:300]}
    if cycle.choice is not None:
        told["method"] = str(cycle.choice.method)
    if cycle.checkpoint is not None and cycle.trained_plan is not None:
        told |= {"method": str(cycle.trained_plan.method), "steps": cycle.checkpoint.step}
        told["published"] = cycle.checkpoint.metrics.get("published_step")
    if cycle.chosen is not None:
        told["search"] = {"trial": cycle.chosen.trial, "variant": cycle.chosen.variant, "reason": cycle.chosen.reason}
    if not known:
        return told
    difference = interval(current, known["candidate"])
    slices = {}
    for name in sorted({q.slice for q in test}):
        at = [i for i, q in enumerate(test) if q.slice == name]
        slices[name] = round(fmean(known["candidate"][i] for i in at) - fmean(current[i] for i in at), 4)
    rollout = line.context.rollout_view(rollout_stream(cycle.id))
    return told | {
        "candidate": fmean(known["candidate"]),
        "difference": [round(one, 4) for one in (difference.low, difference.estimate, difference.high)],
        "slices": slices,
        "rollout_steps": len(rollout.steps) if rollout else 0,
    }


def share(row: dict[str, Any], oracle: str) -> float | None:
    """Return the share of an oracle's gain that a loop earned; None if the oracle gains less than two points."""
    best = row["oracles"].get(oracle)
    if best is None or best["accuracy"] - row["base"] < 0.02:
        return None
    return float((row["final"] - row["base"]) / (best["accuracy"] - row["base"]))


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per task, trap and setting: means over the loops."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["task"] not in FRESH, row["task"], row["trap"], row["start"], row["search"]].append(row)
    head = ["task", "loops", "base", "after the last cycle", "oracle: evidence", "oracle: truth", "share: evidence", "share: truth"]
    lines = ["| " + " | ".join([*head, "promoted, of cycles"]) + " |", "|---" * (len(head) + 1) + "|"]
    for (_, task, trap, start, search), found in sorted(groups.items()):
        notes = [trap] * (trap != "none") + [f"start: {start}"] * (start != "champion") + [f"search {search:g} s"] * bool(search)
        cells = [f"{task} ({', '.join(notes)})" if notes else task, str(len(found))]
        cells += [f"{fmean(row[key] for row in found):.3f}" for key in ("base", "final")]
        for oracle in ("evidence", "truth"):
            known = [row["oracles"][oracle]["accuracy"] for row in found if oracle in row["oracles"]]
            cells.append(f"{fmean(known):.3f}" if known else "–")
        for oracle in ("evidence", "truth"):
            shares = [one for row in found if (one := share(row, oracle)) is not None]
            cells.append(f"{fmean(shares):.0%}" if shares else "–")
        promoted = sum(cycle["state"] == "promoted" for row in found for cycle in row["cycles"])
        lines.append("| " + " | ".join([*cells, f"{promoted} of {sum(len(row['cycles']) for row in found)}"]) + " |")
    return "\n".join(lines)


def goals(rows: list[dict[str, Any]], margin: float = 0.05) -> str:
    """Return the harm over all loops: promotions that are shown to lose, and worse candidates that got traffic."""
    trained = [cycle for row in rows for cycle in row["cycles"] if "difference" in cycle]
    promoted = [cycle for cycle in trained if cycle["state"] == "promoted"]
    lost = [cycle for cycle in promoted if cycle["difference"][2] < -0.02]
    in_slice = [cycle for cycle in promoted if min(cycle["slices"].values()) < -0.1]
    small = [cycle for cycle in promoted if -0.1 <= min(cycle["slices"].values()) < -0.02]
    worse = [cycle for cycle in trained if cycle["difference"][1] < -margin]
    past = [cycle for cycle in worse if cycle["rollout_steps"] > 1]
    return "\n".join(
        [
            f"{len(rows)} loops, {sum(len(row['cycles']) for row in rows)} cycles, {len(trained)} candidates, {len(promoted)} promotions; "
            f"{sum(row['cpu_seconds'] for row in rows) / 3600:.1f} CPU hours",
            f"promotions shown (99 %) to lose more than 2 points: {len(lost)}; with a slice more than 10 points lower: {len(in_slice)}; "
            f"with a slice 2 to 10 points lower: {len(small)}",
            f"candidates worse by more than the margin {margin:g}: {len(worse)}; past the first canary step: {len(past)}; promoted: "
            f"{sum(cycle['state'] == 'promoted' for cycle in worse)}",
        ]
    )


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what identifies the loop of a row. `tests` is the number that was asked for, which the row may round down."""
    return row["task"], row["seed"], row["trap"], row["start"], row["search"], len(row["cycles"]), row["tests"]


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=[*FRESH, "kubectl", "sql", "extract", "sort", "route"], choices=list(EVERY))
    parser.add_argument("--seeds", type=int, nargs="*", default=[31, 32])
    parser.add_argument("--trap", default="none", choices=TRAPS)
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--start", default="champion", choices=("champion", "held"))
    parser.add_argument("--search", type=float, default=0.0, help="Seconds of `training.search.budget`.")
    parser.add_argument("--tests", type=int, default=TEST)
    parser.add_argument("--no-oracles", action="store_true", help="Leave out the oracles, which take most of the time.")
    parser.add_argument("--quick", action="store_true", help="One task, two cycles, few tests, no oracles; writes nothing.")
    parser.add_argument("--table", action="store_true", help="Print the table of the existing rows and draw the picture, and run nothing.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.quick:
        given.tasks, given.seeds, given.cycles, given.tests, given.no_oracles = given.tasks[:1], given.seeds[:1], 2, 200, True
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() and not given.quick else []
    rows = list({_key(row): row for row in rows}.values())  # a later row replaces an earlier one, which had no oracles
    known = {_key(row): row for row in rows}
    for seed in () if given.table else given.seeds:
        for task in given.tasks:
            found = known.get((task, seed, given.trap, given.start, given.search, given.cycles, given.tests))
            if found is not None and (found["oracles"] or given.no_oracles):
                continue
            folder = Path(tempfile.mkdtemp(prefix="loops-"))
            try:
                row = run(task, seed, given, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            rows = [other for other in rows if _key(other) != _key(row)] + [row]
            if not given.quick:
                with given.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(table(rows))
    print(goals(rows))
    if given.table:
        PICTURE.write_text(draw(rows))


if __name__ == "__main__":
    main()
