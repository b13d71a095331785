"""Ingests the files of a folder, or one file, with one process, for `benchmarks/ingest.py`.

It does what the command `ratchet ingest` does with a batch, without the ledger and without the signatures that the command prepares for
the freeze afterwards. It prints the counts, the CPU seconds of this process for each batch, the CPU seconds of
its workers, the wall seconds of the ingest, and a digest of
the stored rows, as JSON. The engine is that of the loop file's section `compute`.

`python benchmarks/ingest_files.py PLACE HOME [--rows]`, where HOME has a loop file.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.ids import digest
from ratchet.contracts.schema import stamped
from ratchet.flows.composition.compute import open_compute
from ratchet.flows.composition.ports import SystemClock
from ratchet.flows.config.load import load_loop
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.ingest import IngestKeys
from ratchet.materializer.lake.tables import TABLES
from ratchet.materializer.receive.files.source import FileSource
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.secrets.files import create_secret
from ratchet.runtime.secrets.keyring import Key, KeyFile, Keyring


def main(place: Path, home: Path, compared: bool = False) -> None:
    """Ingest in the order of the names. With `compared`, it also prints a digest of all rows, which are then in memory together."""
    loop, users = load_loop(home / "loop.toml"), home / "keys.json"
    if not users.exists():
        create_secret(users, stamped(Keyring(keys=(Key(id=1, secret="5e" * 32, created=datetime.now(UTC)),))))
    keys, artifacts = IngestKeys(KeyFile(home / "spans.json"), KeyFile(users)), FolderArtifacts(home / "artifacts")
    scorers, compute = build_scorer_set(loop.rewards), open_compute(loop.compute)
    datasets = LakeDatasets(home / "lake", loop, home, scorers, artifacts, SystemClock(), keys, compute=compute)
    total, taken = IngestReport(), []
    wall, begun = time.perf_counter(), time.process_time()
    for report in datasets.ingest_each(FileSource("history", "jsonl", place).batches()):
        total += report
        taken.append(round(time.process_time() - begun, 4))
        begun = time.process_time()
    wall = time.perf_counter() - wall
    compute.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    counts = {"traces": total.traces.model_dump(), "feedback": total.feedback.model_dump()}
    print(
        json.dumps(
            {
                **counts,
                "seconds": taken,
                "wall_s": round(wall, 2),
                "workers_cpu_s": round(used.ru_utime + used.ru_stime, 2),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
                "rows": rows(datasets) if compared else None,
            }
        )
    )


def rows(datasets: LakeDatasets) -> str:
    """Return a digest of the rows of all tables, without the times of their ingest."""
    found = []
    for table in TABLES:
        frame = datasets.lake.scan(table).drop("ingested")
        found.append([table, len(frame), int(frame.hash_rows(seed=1).sort().hash(1).sum()) if len(frame) else 0])
    return digest(found)[:16]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "--rows" in sys.argv)
