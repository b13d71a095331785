"""A month of small batches in one lake, with upkeep and without: files, manifests, bytes, snapshots, and CPU seconds of append and scans.

Each day has `--batches` batches of `--records` records; `--late` of the records of a batch are of one of the five days before. The upkeep
runs after every twelfth batch, as the service runs it every few minutes, and once a day unused files are deleted, a day after they were
first seen. "Without" is a lake that only its writer keeps in order, as `ratchet ingest` without a service.

`python benchmarks/lake_month.py [--days 30] [--batches 24] [--records 200] [--late 0.05]` writes `results/lake_month.json` and draws
`docs/images/lake_month.svg`.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import click
from ingest import code
from ingest_corpus import Corpus
from lake_picture import draw

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.ids import digest
from ratchet.contracts.loop import Loop
from ratchet.contracts.moment import Moment
from ratchet.contracts.schema import stamped
from ratchet.materializer.datasets import IngestKeys, LakeDatasets
from ratchet.materializer.lake.compaction import day_of
from ratchet.materializer.lake.tables import TABLES
from ratchet.materializer.lake.unused import READER_SECONDS, sweep
from ratchet.materializer.lake.upkeep import keep
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.secrets.files import create_secret
from ratchet.runtime.secrets.keyring import Key, KeyFile, Keyring

HERE = Path(__file__).resolve().parent
BEGIN = datetime(2026, 6, 1, tzinfo=UTC)
UPKEEP_EVERY = 12
"""Batches between two upkeeps."""
LOOP = Loop.model_validate(
    {
        "line": {"name": "bench", "served_model": "m"},
        "sources": [{"name": "history", "kind": "jsonl", "path": "history"}],
        "rewards": [{"name": "exact_match"}],
    }
)


class SetClock:
    """A clock that stands where it was set."""

    def __init__(self) -> None:
        self.time = BEGIN

    def now(self) -> datetime:
        """Return the time that was set."""
        return self.time

    def moment(self) -> Moment:
        """Return the same time as a moment."""
        return Moment(self.time.timestamp())

    def sleep(self, seconds: float) -> None:
        """Move the clock."""
        self.time += timedelta(seconds=seconds)


class Month:
    """A lake that gets the batches of a month."""

    def __init__(self, folder: Path, late: float) -> None:
        users, self.clock, self._late = folder / "keys.json", SetClock(), late
        create_secret(users, stamped(Keyring(keys=(Key(id=1, secret="5e" * 32, created=BEGIN),))))
        keys, artifacts = IngestKeys(KeyFile(folder / "spans.json"), KeyFile(users)), FolderArtifacts(folder / "artifacts")
        self.datasets = LakeDatasets(folder / "lake", LOOP, folder, build_scorer_set(LOOP.rewards), artifacts, self.clock, keys)
        self.lake = self.datasets.lake

    def batch(self, day: int, number: int, batches: int, records: int) -> RawBatch:
        """Make a batch. Its records are of the time since the batch before; late ones are of one of five days before."""
        at, name = BEGIN + timedelta(days=day, seconds=86_400 * (number + 1) / batches), f"d{day:02d}-{number:03d}"
        rng, lines = random.Random(name), list[bytes]()
        for line in Corpus(records, seed=day * 1000 + number + 1, size=400, prefix=f"{name}-").lines():
            time_ = at - timedelta(seconds=rng.random() * 86_400 / batches)
            if rng.random() < self._late:
                time_ -= timedelta(days=rng.randint(1, 5))
            lines.append(json.dumps(json.loads(line) | {"timestamp": time_.isoformat()}).encode() + b"\n")
        self.clock.time = at
        content = b"".join(lines)
        return RawBatch("history", "jsonl", digest(content), name, lambda: BytesIO(content))

    def figures(self) -> dict[str, Any]:
        """Return the sizes of all tables together, and the CPU seconds of two scans."""
        tables = [self.lake.table(name) for name in TABLES]
        current = [(table, snapshot) for table in tables if (snapshot := table.current_snapshot()) is not None]
        on_disk = [path for path in (self.lake.root / "warehouse").rglob("*") if path.is_file()]
        manifests = list(chain.from_iterable(snapshot.manifests(table.io) for table, snapshot in current))
        with cpu() as day:
            self.lake.scan("traces", ("id", "messages"), day_of((self.clock.time - timedelta(days=2)).date()))
        with cpu() as full:
            rows = len(self.lake.scan("traces", ("id", "messages")))
        return {
            "rows": rows,
            "files": sum(int(snapshot.summary["total-data-files"] or 0) for _, snapshot in current if snapshot.summary),
            "manifests": len(manifests),
            "manifest_bytes": sum(manifest.manifest_length for manifest in manifests),
            "metadata_json_bytes": sum(Path(table.metadata_location.removeprefix("file://")).stat().st_size for table in tables),
            "snapshots": sum(len(table.metadata.snapshots) for table in tables),
            "live_bytes": sum(int(snapshot.summary["total-files-size"] or 0) for _, snapshot in current if snapshot.summary),
            "disk_files": len(on_disk),
            "disk_bytes": sum(path.stat().st_size for path in on_disk),
            "scan_day_cpu_s": day["s"],
            "scan_all_cpu_s": full["s"],
        }


@contextmanager
def cpu() -> Iterator[dict[str, float]]:
    """Measure the CPU seconds of a block."""
    found, begun = dict[str, float](), time.process_time()
    yield found
    found["s"] = round(time.process_time() - begun, 3)


def month(folder: Path, days: int, batches: int, records: int, late: float, with_upkeep: bool) -> list[dict[str, Any]]:
    """Ingest the month, and return the figures of each day."""
    lake, found = Month(folder, late), []
    for day in range(days):
        appends, steps, swept = list[float](), list[float](), 0.0
        for number in range(batches):
            batch = lake.batch(day, number, batches, records)
            with cpu() as taken:
                lake.datasets.ingest(batch)
            appends.append(taken["s"])
            if with_upkeep and (number + 1) % UPKEEP_EVERY == 0:
                at = time.process_time()
                for _ in keep(lake.lake, lake.clock.time.date()):
                    now = time.process_time()
                    steps.append(round(now - at, 3))
                    at = now
        if with_upkeep:
            with cpu() as taken:
                sweep(lake.lake, lake.clock.time.timestamp(), READER_SECONDS)
            swept = taken["s"]
        about = {"day": day + 1, "append_cpu_s": sorted(appends)[len(appends) // 2], "append_most_cpu_s": max(appends)}
        spent = {
            "steps": len(steps),
            "step_most_cpu_s": max(steps, default=0.0),
            "upkeep_cpu_s": round(sum(steps) + swept, 3),
            "sweep_cpu_s": swept,
        }
        found.append({**about, "appends_cpu_s": round(sum(appends), 3), **spent, **lake.figures()})
        click.echo(json.dumps(found[-1]))
    return found


@click.command()
@click.option("--days", default=30)
@click.option("--batches", default=24, help="Batches of a day.")
@click.option("--records", default=200, help="Records of a batch.")
@click.option("--late", default=0.05, help="Share of records of an earlier day.")
@click.option("--place", type=click.Path(path_type=Path), help="Folder for the lakes. Default: a temporary one.")
@click.option("--out", type=click.Path(path_type=Path), default=HERE / "results" / "lake_month.json")
@click.option("--picture", type=click.Path(path_type=Path), default=HERE.parent / "docs" / "images" / "lake_month.svg")
def main(days: int, batches: int, records: int, late: float, place: Path | None, out: Path, picture: Path) -> None:
    """Simulate the month twice, write the result, and draw it."""
    result: dict[str, Any] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "code": code(), "days": days, "batches": batches}
    result |= {"records": records, "late": late}
    for name, with_upkeep in (("with", True), ("without", False)):
        folder = Path(tempfile.mkdtemp(dir=place))
        result[name] = month(folder, days, batches, records, late, with_upkeep)
        shutil.rmtree(folder)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    picture.write_text(draw(result), encoding="utf-8")


if __name__ == "__main__":
    main()
