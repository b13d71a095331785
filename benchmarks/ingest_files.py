"""Ingests the files of a folder, or one file, with one process, for `benchmarks/ingest.py`.

It does what the command `ratchet ingest` does with a batch, without the ledger and without the signatures that the command prepares for
the freeze afterwards. It prints the counts, and the CPU seconds of each batch, as JSON.

`python benchmarks/ingest_files.py PLACE HOME`, where HOME has a loop file.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.schema import stamped
from ratchet.flows.composition.ports import SystemClock
from ratchet.flows.config.load import load_loop
from ratchet.materializer.datasets import IngestKeys, LakeDatasets
from ratchet.materializer.receive.files.source import FileSource
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.secrets.files import create_secret
from ratchet.runtime.secrets.keyring import Key, KeyFile, Keyring


def main(place: Path, home: Path) -> None:
    """Ingest in the order of the names."""
    loop, users = load_loop(home / "loop.toml"), home / "keys.json"
    if not users.exists():
        create_secret(users, stamped(Keyring(keys=(Key(id=1, secret="5e" * 32, created=datetime.now(UTC)),))))
    keys, artifacts = IngestKeys(KeyFile(home / "spans.json"), KeyFile(users)), FolderArtifacts(home / "artifacts")
    datasets = LakeDatasets(home / "lake", loop, home, build_scorer_set(loop.rewards), artifacts, SystemClock(), keys)
    total, taken = IngestReport(), []
    for batch in FileSource("history", "jsonl", place).batches():
        begun = time.process_time()
        total += datasets.ingest(batch)
        taken.append(round(time.process_time() - begun, 4))
    print(json.dumps({"traces": total.traces.model_dump(), "feedback": total.feedback.model_dump(), "seconds": taken}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
