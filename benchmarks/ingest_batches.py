"""Ingests files one after another with one process, and prints the CPU seconds of each as JSON (`benchmarks/ingest.py --section batches`).

`python benchmarks/ingest_batches.py FOLDER LAKE`
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from ratchet.contracts.loop import Loop
from ratchet.contracts.schema import stamped
from ratchet.flows.composition.ports import SystemClock
from ratchet.flows.config.load import load_loop
from ratchet.materializer.datasets import IngestKeys, LakeDatasets
from ratchet.materializer.receive.files.source import FileSource
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.secrets.files import create_secret
from ratchet.runtime.secrets.keyring import Key, KeyFile, Keyring


def main(folder: Path, lake: Path) -> None:
    """Ingest the files of a folder in the order of their names."""
    lake.mkdir(parents=True)
    loop: Loop = load_loop(folder.parent / "loop.toml")
    create_secret(lake / "keys.json", stamped(Keyring(keys=(Key(id=1, secret="5e" * 32, created=datetime.now(UTC)),))))
    keys = IngestKeys(KeyFile(lake / "spans.json"), KeyFile(lake / "keys.json"))
    artifacts = FolderArtifacts(lake / "artifacts")
    datasets = LakeDatasets(lake / "lake", loop, lake, build_scorer_set(loop.rewards), artifacts, SystemClock(), keys)
    taken = []
    for batch in FileSource("history", "jsonl", folder).batches():
        begun = time.process_time()
        report = datasets.ingest(batch)
        taken.append(round(time.process_time() - begun, 4))
        assert report.traces.kept == report.traces.read
    print(json.dumps(taken))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
