"""Does a cycle's training truly improve the model, and how near does it come to what the truth would have taught?

Two tasks, bases of three qualities and a perfect one, three shares of wrong ratings, five seeds; each against an oracle that is trained
on the true answers of the same requests in the same number of steps, its learning rate tuned on questions of its own. Every cell goes
the product's own way from traces to the gate (recipe_cell.py) and is tested on thousands of questions that nothing has seen.
`python benchmarks/recipes.py` goes on where it stopped; `--quick` runs two cells.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from contracts.threads import threads_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "recipes.jsonl"
PAGE = HERE.parent / "docs" / "recipes.md"
FIRST = 5
"""The first seed of the grid: on seeds 0 to 4 the recipes' settings were chosen, so they prove nothing about them."""
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def grid(seeds: int) -> list[tuple[str, float, float, int]]:
    """All cells, seed by seed, so that a run that is cut short has seen everything once. Beside the three qualities of either task stands a
    base with nothing left to learn."""
    bases = [*itertools.product(("kubectl", "sql"), (0.3, 0.6, 0.9)), ("sql", 1.0)]
    return [(*base, flips, seed) for seed, base, flips in itertools.product(range(FIRST, FIRST + seeds), bases, (0.0, 0.15, 0.3))]


def work(task: tuple[tuple[str, float, float, int], str]) -> dict[str, Any]:
    """One cell in a process of its own; what the libraries say goes to a log."""
    cell, folder = task
    os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", **threads_of(1))
    log = os.open(Path(folder) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from benchmarks.recipe_cell import Cell, run

    return run(Cell(*cell), Path(folder))


def batches(cells: list[tuple[str, float, float, int]]) -> list[list[tuple[str, float, float, int]]]:
    """Cells of one base model together: the first of them makes what the others share."""
    found: dict[tuple[str, float, int], list[tuple[str, float, float, int]]] = {}
    for cell in cells:
        found.setdefault((cell[0], cell[1], cell[3]), []).append(cell)
    return list(found.values())


def work_all(task: tuple[list[tuple[str, float, float, int]], str, str]) -> int:
    """The cells of one base model; each result is written as soon as it is known."""
    cells, folder, out = task
    for cell in cells:
        row = work((cell, folder))
        with Path(out).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | {"at": datetime.now(UTC).isoformat(timespec="seconds")}) + "\n")
    return len(cells)


@click.command()
@click.option("--quick", is_flag=True, help="Two cells, and nothing is kept.")
@click.option("--seeds", default=5, help="Base models per task and quality.")
@click.option("--workers", default=os.cpu_count() or 1, help="Processes side by side.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where base models are kept; a temporary one if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print the claims as JSON.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, help="One line per cell; cells that it holds are not run again.")
def main(quick: bool, seeds: int, workers: int, folder: Path | None, as_json: bool, out: Path) -> None:
    """Runs the cells that are missing and writes the table."""
    from benchmarks.recipe_table import markdown, summary

    folder = folder or Path(tempfile.mkdtemp(prefix="recipes-"))
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "quick.jsonl" if quick else out
    cells = [("kubectl", 0.6, 0.15, 0), ("sql", 0.6, 0.0, 0)] if quick else grid(seeds)
    known = {row["cell"] for row in _rows(out, cells)}
    missing = [cell for cell in cells if _name(cell) not in known]
    done = len(cells) - len(missing)
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, maxtasksperchild=1) as pool:
        for n in pool.imap_unordered(work_all, [(part, str(folder), str(out)) for part in batches(missing)]):
            done += n
            click.echo(f"{done} of {len(cells)} cells", err=True)
    rows = _rows(out, cells)
    stamp = f"Measured {rows[-1]['at'][:10]}, code {rows[-1]['code']}"
    click.echo(json.dumps(summary(rows)) if as_json else markdown(rows, stamp))
    if not quick and PAGE.exists():
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{markdown(rows, stamp)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _name(cell: tuple[str, float, float, int]) -> str:
    return "{}-{:g}-{:g}-{}".format(*cell)


def _rows(path: Path, cells: list[tuple[str, float, float, int]]) -> list[dict[str, Any]]:
    """Of these cells, all measured on one state of the code: claims over several would be claims about none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows, names = [json.loads(line) for line in lines], {_name(cell) for cell in cells}
    strange = sorted({row["cell"] for row in rows} - names)
    codes = sorted({row["code"] for row in rows})
    if strange or len(codes) > 1:
        why = (
            f"holds cells of another grid ({', '.join(strange[:3])}, …)"
            if strange
            else f"holds results of several states of the code ({', '.join(codes)})"
        )
        raise click.UsageError(f"{path} {why}; name another file with --out, or delete it to measure anew")
    return rows


if __name__ == "__main__":
    main()
