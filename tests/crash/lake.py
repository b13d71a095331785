"""A process that keeps the lake in a folder in order once, and can be killed in each phase: RATCHET_KILL_AT=n kills at its n-th boundary.

The boundaries are those of the upkeep and of the deletion of unused files, and the moment between the metadata file of a commit and the
catalog's row, which makes the commit valid.

    python -m tests.crash.lake ROOT NOW     NOW is in seconds since the epoch
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyiceberg.catalog import MetastoreCatalog

from ratchet.materializer.lake import upkeep
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.lake.unused import sweep
from tests.crash.driver import boundaries

GRACE = 60.0
"""Seconds for which unused files are kept."""
FEW = {"_KEPT": 2, "_MANY": 3}
"""Numbers of snapshots that are kept, so that a small lake has some to expire."""


def run(root: Path, now: float) -> None:
    """Merge files, expire snapshots, and delete unused files."""
    boundary = boundaries()
    write = MetastoreCatalog._write_metadata

    def written(**given: Any) -> None:
        write(**given)
        boundary("metadata written")

    lake = Lake(root)
    with patch.object(MetastoreCatalog, "_write_metadata", staticmethod(written)), patch.multiple(upkeep, **FEW):
        for _step in upkeep.keep(lake, datetime.fromtimestamp(now, UTC).date() + timedelta(days=30), boundary):
            pass
        sweep(lake, now, GRACE, boundary=boundary)


if __name__ == "__main__":
    run(Path(sys.argv[1]), float(sys.argv[2]))
