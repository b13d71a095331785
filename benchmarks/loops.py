"""Closed loops: what a line learns over several cycles from its own people, beside what could have been learnt.

Each loop goes through the product's engine (benchmarks/closed_loops/line.py): new questions are answered by the champion, people rate and
correct, and a cycle probes, chooses, trains, judges, and rolls out. After each cycle, questions that nothing else uses measure the truth.
Three oracles with tuned length and rate train on the same requests: with the true answers to all, with the true answers to those that the
product's last training set contains, and with this training set.

`python -m benchmarks.loops [--tasks NAME...] [--seeds N...] [--trap NAME...] [--cycles 5] [--start champion|held|base]
[--search SECONDS] [--source NAME...] [--similarity 0.8|auto] [--holdout 0.2] [--development 0.15] [--no-oracles] [--truth] [--all]
[--quick] [--table] [--out FILE]` appends one row per loop and prints a table.
`--all` runs the committed set: every task without a trap, every trap on three tasks, and every source of missing answers on the fresh
tasks. Loops that have a row of the present code are not run again; rows of other code are replaced when their loop is run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from benchmarks.closed_loops.figures import goals, plain, table, told, traps
from benchmarks.closed_loops.judges import judging
from benchmarks.closed_loops.line import ClosedLine, Sides
from benchmarks.closed_loops.oracles import form_of_a_plan, on_evidence, on_truth, training_questions
from benchmarks.closed_loops.people import PLEA, TRAPS, People
from benchmarks.closed_loops.picture import draw
from benchmarks.closed_loops.tasks import EVERY, FRESH, SECTIONS
from benchmarks.closed_loops.teachers import SHARES, TEACHER, SimulatedTeacher
from benchmarks.recipe_cell import pretrained, right
from benchmarks.recipe_worlds import Question, Task, World
from ratchet.contracts.data.datasets import TrainingSet
from ratchet.contracts.ids import digest, digest_file
from ratchet.contracts.steps import PlanResult, State
from ratchet.runtime.artifacts import FolderArtifacts

HERE = Path(__file__).resolve().parent
RESULTS, PICTURE = HERE / "results" / "loops.jsonl", HERE.parent / "docs" / "images" / "loops.svg"
TEST, GOLDEN, TUNING = 2000, 100, 200
"""Test questions, golden questions per slice, and questions on which the oracles choose."""
SEEDS = (31, 32)
TRAPPED = ("plural", "logs", "route")
"""Tasks of the loops with traps in the committed set, which has one seed of each."""
TASKS = (*FRESH, "kubectl", "sql", "extract", "sort", "route")
REVIEWS = "reviews"
"""Source of the loops whose reviewers answer `reviewers.COUNT` questions per cycle."""
PRODUCT = ("contracts", "runtime", "rewards", "materializer", "trainers", "gates", "flows")
"""Packages that a loop runs."""


def product_digest() -> str:
    """Return a digest of all code that a loop runs, except that of this benchmark."""
    root = HERE.parent
    paths = sorted(path for package in PRODUCT for path in (root / package).rglob("*.py"))
    return digest({str(path.relative_to(root)): digest_file(path) for path in paths})[:12]


def world_of(task: Task, seed: int, tests: int, trap: str = "none") -> tuple[World, dict[str, list[Question]]]:
    """Return disjoint sets of questions, and a pool per slice for the requests of all cycles.

    In the traps for the judge, the base model also learns wrong answers with a plea to some of the questions of the new kinds.
    """
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
    if trap.startswith("judge"):
        corpus += [PLEA] * 200
        for name in task.new:
            taken = [slices[name].pop() for _ in range(40)]
            learnt += [Question(one.prompt, f"{other.answer} {PLEA}", name) for one, other in pairwise(taken)]
        draw_.shuffle(learnt)
    return World(learnt, [], parts[1], parts[2], parts[0], corpus), slices


class Wanted(NamedTuple):
    """A loop that is to run."""

    task: str
    seed: int
    trap: str = "none"
    source: str = "none"
    """Who gives missing right answers: `none`, `REVIEWS`, or a teacher of `SHARES`."""


def run(wanted: Wanted, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one loop and return its row."""
    task, seed, trap, source = wanted
    began = time.process_time()
    torch.set_num_threads(1)
    world, pool = world_of(EVERY[task], seed, given.tests, trap)
    people, known = People(seed, trap), dict[str, Question]()
    base = pretrained(world, EVERY[task].base_steps[0.6], seed, folder / "base")
    before = current = right(base, world.test)
    cycles: list[dict[str, Any]] = []
    asked: list[Question] = []
    data: TrainingSet | None = None
    with judging(trap, known) as judge:
        teacher = _teacher(source, EVERY[task], seed, known)
        more = judge + (TEACHER if teacher else "") + SECTIONS.get(task, "")
        sides = Sides.of(vars(given))
        line = ClosedLine(folder / "line", base, world.golden, people, given.start, given.search, more, teacher, sides)
        for number in range(given.cycles):
            questions = people.questions(pool, number)
            requests = people.asked(questions, number)
            asked += questions
            known |= {question.prompt: question for question in questions}
            line.ingest(people.records(requests, line.answer(requests, number), number, line.champion.tag))
            reviews = line.review(number, known) if source == REVIEWS else None
            cycle, truth = line.cycle(number, world.test, int(digest([task, trap, seed, number])[:8], 16))
            if (planned := cycle.get(PlanResult)) is not None:
                data = planned.dataset
            cycles.append(told(cycle, truth, line, world.test, current) | ({} if reviews is None else {"reviews": reviews}))
            if cycle.state is State.PROMOTED:
                current = truth["candidate"]
            cycles[-1]["accuracy"] = fmean(current)
            print(json.dumps({"task": task, "seed": seed, "trap": trap, "source": source, "cycle": number + 1, **cycles[-1]}), flush=True)
    loop_seconds = time.process_time() - began
    best: dict[str, Any] = {}
    if data is not None and _has_oracles(wanted, given):
        model, recipe = on_truth(line.artifacts, base, asked, data, world.tuning, folder / "truth")
        best["truth"] = {"accuracy": fmean(right(model, world.test)), "recipe": recipe}
        trained = training_questions(line.artifacts, data, asked)
        model, recipe = on_truth(line.artifacts, base, trained, data, world.tuning, folder / "training-truth")
        prompts = len({question.prompt for question in trained})
        best["training_truth"] = {"accuracy": fmean(right(model, world.test)), "recipe": recipe, "prompts": prompts, "of": len(known)}
        found = on_evidence(line.artifacts, base, data, world.tuning, folder / "evidence")
        if found is not None:
            best["evidence"] = {"accuracy": fmean(right(found[0], world.test)), "recipe": found[1]}
    return {
        "task": task,
        "seed": seed,
        "trap": trap,
        "start": given.start,
        "search": given.search,
        **({} if source == "none" else {"source": source}),
        **sides.changed,
        "base": fmean(before),
        "final": fmean(current),
        "cycles": cycles,
        "oracles": best,
        "tests": given.tests,
        "loop_cpu_seconds": round(loop_seconds),
        "cpu_seconds": round(time.process_time() - began),
        "date": datetime.now(UTC).date().isoformat(),
        "code": product_digest(),
    }


def with_truth_alone(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the row of a loop without a trap, with the oracle on the truth about all its requests. The loop is not run again."""
    torch.set_num_threads(1)
    world, pool = world_of(EVERY[row["task"]], row["seed"], row["tests"])
    people = People(row["seed"])
    asked = [question for number in range(len(row["cycles"])) for question in people.questions(pool, number)]
    base = pretrained(world, EVERY[row["task"]].base_steps[0.6], row["seed"], folder / "base")
    artifacts = FolderArtifacts(folder / "artifacts")
    model, recipe = on_truth(artifacts, base, asked, form_of_a_plan(artifacts), world.tuning, folder / "truth")
    return row | {"oracles": row["oracles"] | {"truth": {"accuracy": fmean(right(model, world.test)), "recipe": recipe}}}


def _teacher(source: str, task: Task, seed: int, known: Mapping[str, Question]) -> SimulatedTeacher | None:
    """Return the teacher of a source; None if it is another source."""
    blind = task.new[0] if source == "teacher-blind" else None
    return SimulatedTeacher(SHARES[source], known, seed, blind) if source in SHARES else None


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what identifies the loop of a row."""
    line = row.get("source", "none"), Sides.of(row)
    return *(row[name] for name in ("task", "seed", "trap", "start", "search")), *line, len(row["cycles"]), row["tests"]


def _wanted(given: argparse.Namespace) -> Iterator[Wanted]:
    """Yield the loops to run, those without a source first: the others are compared with them."""
    if given.all:
        yield from (Wanted(task, seed) for seed in SEEDS for task in TASKS)
        yield from (Wanted(task, SEEDS[0], trap) for trap in TRAPS[1:] for task in TRAPPED)
        yield from (Wanted(task, SEEDS[0], "none", source) for source in (REVIEWS, *SHARES) for task in FRESH)
    else:
        named = itertools.product(given.source, given.trap, given.seeds, given.tasks)
        yield from (Wanted(task, seed, trap, source) for source, trap, seed, task in named)


def _has_oracles(wanted: Wanted, given: argparse.Namespace) -> bool:
    """Return whether oracles are trained beside a loop: without a trap, and in the committed set without a source, once on a known task."""
    if given.no_oracles or wanted.trap != "none":
        return False
    return not given.all or (wanted.source == "none" and (wanted.task in FRESH or wanted.seed == SEEDS[0]))


def read_rows(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the newest row of each loop in a file of results; none if it does not exist."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {_key(row): row for row in rows}


def _add_truths(given: argparse.Namespace) -> None:
    """Add the oracle on the truth to the plain rows of the given tasks and seeds that lack it, which rows with a source use as well."""
    for (task, seed), row in plain(list(read_rows(given.out).values())).items():
        if task in given.tasks and seed in given.seeds and "truth" not in row["oracles"]:
            with tempfile.TemporaryDirectory(prefix="loops-") as folder:
                found = with_truth_alone(row, Path(folder))
            with given.out.open("a") as file:
                file.write(json.dumps(found) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark with these arguments; by default those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=TASKS, choices=list(EVERY))
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--trap", nargs="*", default=["none"], choices=TRAPS)
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--start", default="champion", choices=("champion", "held", "base"))
    parser.add_argument("--search", type=float, default=0.0, help="Seconds of `training.search.budget`.")
    parser.add_argument(
        "--similarity",
        type=lambda given: given if given == "auto" else float(given),
        default=Sides().similarity,
        help="Least similarity of near-duplicates (`holdout.similarity`).",
    )
    parser.add_argument(
        "--source", nargs="*", default=["none"], choices=("none", REVIEWS, *SHARES), help="Who gives missing right answers."
    )
    parser.add_argument("--holdout", type=float, default=Sides().holdout, help="Share of held-out prompts (`holdout.fraction`).")
    shown = "Share of development prompts (`holdout.development`)."
    parser.add_argument("--development", type=float, default=Sides().development, help=shown)
    parser.add_argument("--tests", type=int, default=TEST)
    parser.add_argument("--no-oracles", action="store_true", help="Leave out the oracles, which take most of the time.")
    parser.add_argument("--truth", action="store_true", help="Run no loop; add the oracle on the truth to the plain rows that lack it.")
    parser.add_argument("--all", action="store_true", help="Run the committed set of loops.")
    parser.add_argument("--part", default="0/1", help="K/N: only every Nth of the loops, from the Kth on, to use several processors.")
    parser.add_argument("--quick", action="store_true", help="One task, two cycles, few tests, no oracles; writes nothing.")
    parser.add_argument("--table", action="store_true", help="Print the table of the existing rows and draw the picture, and run nothing.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    if given.quick:
        given.tasks, given.seeds, given.cycles, given.tests, given.no_oracles = given.tasks[:1], given.seeds[:1], 2, 200, True
    if given.truth:
        _add_truths(given)
    part, parts = map(int, given.part.split("/"))
    rows = {} if given.quick else read_rows(given.out)
    for number, wanted in enumerate(() if given.table or given.truth else _wanted(given)):
        settings = given.start, given.search, wanted.source, Sides.of(vars(given))
        found = rows.get((*wanted[:3], *settings, given.cycles, given.tests))
        complete = found is not None and bool(found["oracles"] or not _has_oracles(wanted, given))
        if number % parts != part or (found is not None and complete and found["code"] == product_digest()):
            continue
        folder = Path(tempfile.mkdtemp(prefix="loops-"))
        try:
            row = run(wanted, given, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        rows[_key(row)] = row
        if not given.quick:
            with given.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    found_rows = list((rows if given.quick else read_rows(given.out) | rows).values())
    print(table(found_rows), traps(found_rows), goals(found_rows), sep="\n\n")
    if given.table:
        given.out.write_text("".join(json.dumps(row) + "\n" for row in found_rows))
        PICTURE.write_text(draw(found_rows))


if __name__ == "__main__":
    main()
