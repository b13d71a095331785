"""What an edition and a snapshot cost on a lake of many traces: CPU and wall seconds, and peak memory, of processes of their own.

The lake is made from a seed by `ingest` (ingest_corpus.py): prompts of 1 KB, each asked once, in sessions, three in ten with a
rating, and one in seven with a right answer. The
steps: `prepare` computes the signatures of the prompts, `edition` freezes the held-out prompts, `freeze` the scored samples; edition and
freeze run in one process, as in a cycle. Beside them stands `floor`: polars alone reads the same Parquet files, takes the distinct prompts,
joins them to all rows, sorts, and writes samples and prompts as Parquet. It decides no side, joins no feedback and scores nothing.

`python benchmarks/snapshot.py [--traces 300000] [--lake FOLDER]`
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import polars as pl
from ingest_corpus import Corpus

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.ids import digest
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.materializer.datasets import LakeDatasets
from ratchet.trainers.code_digest import code_digest

HERE = Path(__file__).resolve().parent
_LOOP = """[line]
name = "bench"
served_model = "m"
[[sources]]
name = "history"
kind = "jsonl"
path = "history"
[[rewards]]
name = "exact_match"
[[rewards]]
name = "user_feedback"
"""
_BATCH = 10_000
"""Records of a batch."""
_REFERENCES = 7
"""One record in so many has a right answer."""


def datasets_in(folder: Path) -> LakeDatasets:
    """Return the datasets of the benchmark's line, with all state below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.toml").write_text(_LOOP, encoding="utf-8")
    found = Installation(Home(folder / "home")).context(folder / "bench.toml").datasets
    assert isinstance(found, LakeDatasets)
    return found


def fill(folder: Path, traces: int) -> None:
    """Ingest the corpus, unless the lake has it."""
    datasets, lines = datasets_in(folder), list[bytes]()
    if datasets.cursor().traces == traces:
        return
    for number, line in enumerate(Corpus(records=traces).lines(), 1):
        lines.append(_with_reference(line) if number % _REFERENCES == 0 else line)
        if len(lines) == _BATCH or number == traces:
            content = b"".join(lines)
            datasets.ingest(_batch(content, number))
            click.echo(f"ingested {number} of {traces}", err=True)
            lines.clear()


def _with_reference(line: bytes) -> bytes:
    record = json.loads(line)
    return json.dumps({**record, "reference": record["response"]}).encode() + b"\n"


def _batch(content: bytes, number: int) -> RawBatch:
    return RawBatch(
        source="history", format="jsonl", digest=digest(content), origin=f"part-{number}.jsonl", open=lambda: io.BytesIO(content)
    )


def steps(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run edition and freeze in this process. Yield each with its costs."""
    datasets = datasets_in(folder)
    edition = datasets.edition(1)
    yield "edition", {"prompts": edition.size, "content": edition.prompts[:12]}
    snapshot = datasets.freeze("benchmark", datetime.now(UTC) + timedelta(days=1), edition)
    yield "freeze", {"counts": {name: snapshot.counts[name] for name in ("considered", "used", "scored")}, "content": snapshot.content[:12]}


def floor(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Do with polars alone what no freeze can do without."""
    rows = pl.read_parquet(next(folder.glob("home/**/traces/data")) / "**/*.parquet")
    prompts = rows.unique("messages", keep="first", maintain_order=True).with_columns(prompt=pl.col("messages").hash())
    samples = rows.join(prompts.select("messages", "prompt"), on="messages").sort("source", "id")
    prompts.sort("prompt").write_parquet(folder / "floor-prompts.parquet")
    samples.select("prompt", "messages", "answer", "source", "id", "user", "slice", "tools").write_parquet(folder / "floor-samples.parquet")
    yield "floor", {"prompts": len(prompts)}


def prepare(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Compute the signatures."""
    datasets_in(folder).prepare()
    yield "prepare", {}


_SECTIONS = {"prepare": prepare, "steps": steps, "floor": floor}


def measured(section: str, folder: Path) -> dict[str, Any]:
    """Run a section in a process of its own. Returns the costs of its steps."""
    command = [sys.executable, __file__, "--run", section, "--lake", str(folder)]
    found = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    if found.returncode:
        raise click.ClickException(found.stderr[-2000:])
    return dict(json.loads(found.stdout.splitlines()[-1]))


def run(section: str, folder: Path) -> dict[str, Any]:
    """Run a section here. Returns the costs of its steps, without the start of the process."""
    result = {}
    begun, cpu = time.perf_counter(), time.process_time()
    for name, more in _SECTIONS[section](folder):
        used = {"cpu_s": round(time.process_time() - cpu, 1), "wall_s": round(time.perf_counter() - begun, 1)}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        result[name] = {**used, "peak_mb": peak, **more}
        begun, cpu = time.perf_counter(), time.process_time()
    return result


@click.command()
@click.option("--traces", default=300_000, help="Traces of the lake.")
@click.option("--lake", type=click.Path(path_type=Path), help="Folder that keeps the lake between calls; edition and snapshot must be new.")
@click.option("--run", "only", type=click.Choice(sorted(_SECTIONS)), hidden=True)
@click.option("--out", type=click.Path(path_type=Path), default=HERE / "results" / "snapshot.json")
def main(traces: int, lake: Path | None, only: str | None, out: Path) -> None:
    """Measure, and write the result."""
    if only and lake:
        click.echo(json.dumps(run(only, lake)))
        return
    with tempfile.TemporaryDirectory(prefix="ratchet-snapshot-") as made:
        folder = lake or Path(made)
        fill(folder, traces)
        result: dict[str, Any] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "code": code_digest(), "cores": os.cpu_count()}
        result |= {"load": round(os.getloadavg()[0], 1), "traces": traces}
        for section in _SECTIONS:
            result |= measured(section, folder)
            click.echo(json.dumps(result), err=True)
        both = result["edition"]["cpu_s"] + result["freeze"]["cpu_s"]
        result["edition_and_freeze"] = {
            "cpu_s": round(both, 1),
            "wall_s": round(result["edition"]["wall_s"] + result["freeze"]["wall_s"], 1),
            "us_per_trace": round(both / traces * 1e6),
            "of_floor": round(both / result["floor"]["cpu_s"], 1),
        }
        known = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
        out.write_text(json.dumps({**known, str(traces): result}, indent=2) + "\n", encoding="utf-8")
        click.echo(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
