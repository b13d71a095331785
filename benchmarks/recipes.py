"""The recipe benchmark: how much a cycle's training improves the true accuracy of a model, compared with training on the true answers.

The main table covers two tasks, base models of three qualities and a perfect one, three shares of wrong ratings, and five seeds. The
baseline is an oracle: SFT on the true answers to the same requests, with the same number of steps and a separately tuned learning rate.
Every cell uses the product's own code from traces to the gate (recipe_cell.py) and is tested on thousands of unused questions.

`python benchmarks/recipes.py` resumes where an earlier run stopped; `--quick 2` runs two cells. `--methods dpo` measures a second table, in
which DPO is the only method allowed. That table uses new traffic samples and compares DPO without and with rehearsal, which trains on right
answers to prompts that have no pairs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.recipe_grid import Cell, forced, grid
from benchmarks.recipe_table import arms, markdown, summary
from ratchet.runtime.threads import threads_of

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "recipes.jsonl"
FORCED = HERE / "results" / "recipes_{}.jsonl"
PAGE = HERE.parent / "docs" / "recipes.md"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def work(task: tuple[Cell, str]) -> dict[str, Any]:
    """Run one cell and return its row; must be called in a separate process, because it redirects stdout and stderr to `log.txt`."""
    cell, folder = task
    os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", **threads_of(1))
    log = os.open(Path(folder) / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from benchmarks.recipe_cell import run

    return run(cell, Path(folder))


def batches(cells: list[Cell]) -> list[list[Cell]]:
    """Group the cells by base model. The first cell of a group trains the base model and the oracle for the others."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.base, []).append(cell)
    return list(found.values())


def work_all(task: tuple[list[Cell], str, str]) -> int:
    """Run the cells of one base model and append each row to the results file at once; returns the number of cells."""
    cells, folder, out = task
    for cell in cells:
        row = work((cell, folder))
        with Path(out).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | {"at": datetime.now(UTC).isoformat(timespec="seconds")}) + "\n")
    return len(cells)


@click.command()
@click.option("--quick", type=click.IntRange(1, 2), help="Run only one or two cells and do not keep the results.")
@click.option("--methods", type=click.Choice(["sft", "dpo", "grpo"]), help="Allow only this method; the results form a separate table.")
@click.option("--seeds", default=5, help="Number of base models per task and quality.")
@click.option("--draws", default=2, help="With --methods: number of traffic samples per base model.")
@click.option("--workers", default=os.cpu_count() or 1, help="Number of parallel processes.")
@click.option("--folder", type=click.Path(path_type=Path), help="Folder for base models; a temporary folder by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the claims as JSON.")
@click.option("--out", type=click.Path(path_type=Path), help="Results file, one line per cell; the cells in it are not run again.")
def main(
    quick: int | None, methods: str | None, seeds: int, draws: int, workers: int, folder: Path | None, as_json: bool, out: Path | None
) -> None:
    """Run the missing cells, print the table, and update docs/recipes.md with the main table."""
    folder = folder or Path(tempfile.mkdtemp(prefix="recipes-"))
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "quick.jsonl" if quick else out or (Path(str(FORCED).format(methods)) if methods else RESULTS)
    cells = forced(methods, seeds, draws) if methods else grid(seeds)
    if quick:
        cells = (cells if methods else [Cell("kubectl", 0.6, 0.15, 0), Cell("sql", 0.6, 0.0, 0)])[:quick]
    known = {row["cell"] for row in _rows(out, cells)}
    missing = [cell for cell in cells if cell.name not in known]
    done = len(cells) - len(missing)
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, maxtasksperchild=1) as pool:
        for n in pool.imap_unordered(work_all, [(part, str(folder), str(out)) for part in batches(missing)]):
            done += n
            click.echo(f"{done} of {len(cells)} cells", err=True)
    rows = _rows(out, cells)
    stamp = f"Measured {rows[-1]['at'][:10]}, code {rows[-1]['code']}"
    table = arms(rows, stamp) if methods else markdown(rows, stamp)
    click.echo(json.dumps(summary(rows)) if as_json else table)
    if not quick and not methods and PAGE.exists():
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _rows(path: Path, cells: list[Cell]) -> list[dict[str, Any]]:
    """Return the rows of the results file. Raises UsageError if it holds other cells or rows of several code versions."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows, names = [json.loads(line) for line in lines], {cell.name for cell in cells}
    strange = sorted({row["cell"] for row in rows} - names)
    codes = sorted({row["code"] for row in rows})
    if strange or len(codes) > 1:
        why = (
            f"holds cells of another grid ({', '.join(strange[:3])}, …)"
            if strange
            else f"holds results of several code versions ({', '.join(codes)})"
        )
        raise click.UsageError(f"{path} {why}; choose another file with --out, or delete this file to measure again")
    return rows


if __name__ == "__main__":
    main()
