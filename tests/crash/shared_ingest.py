"""A process that ingests batches into a lake with a shared place, and can be killed in each phase.

RATCHET_KILL_AT=n kills at its n-th boundary. The boundaries are before and after each append, between the metadata file of a commit and the
catalog's row, and just after that row.

    python -m tests.crash.shared_ingest FOLDER CATALOG_URL WAREHOUSE LINE COUNT
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog

from ratchet.contracts.data.datasets import RawBatch
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.places.place import LakePlace
from ratchet.materializer.lake.tables import Lake
from tests.crash.driver import boundaries
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import batch, evaluation, log, logs, span, spans


def given(n: int) -> RawBatch:
    """Return batch `n`, with a row for each of the four tables."""
    refused = evaluation("user_consent", 0, user__id=f"user-{n}")
    return batch(spans(span(n)), b"{", logs(log(n, evaluation("user_feedback", 1)), log(n, refused)))


def opened(folder: Path, url: str, warehouse: str, line: str) -> LakeDatasets:
    """Return the datasets of a line whose lake has its catalog at `url` and its files in `warehouse`."""
    return make_datasets(folder, place=LakePlace(folder / "lake", line, url, warehouse))


def run(folder: Path, url: str, warehouse: str, line: str, count: int) -> None:
    """Ingest `count` batches."""
    boundary = boundaries()
    append, commit, write = Lake.append, SqlCatalog.commit_table, MetastoreCatalog._write_metadata

    def appended(*values: Any) -> Any:
        boundary("append")
        made = append(*values)
        boundary("appended")
        return made

    def written(*values: Any, **more: Any) -> None:
        write(*values, **more)
        boundary("metadata written")

    def committed(*values: Any) -> Any:
        made = commit(*values)
        boundary("committed")
        return made

    datasets = opened(folder, url, warehouse, line)
    changed = patch.object(Lake, "append", appended), patch.object(SqlCatalog, "commit_table", committed)
    with changed[0], changed[1], patch.object(MetastoreCatalog, "_write_metadata", staticmethod(written)):
        for n in range(1, count + 1):
            datasets.ingest(given(n))


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
