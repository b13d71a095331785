"""A hostile trainer for `test_job_reach.py`: it tries to reach what does not belong to its job, and records the result of each try."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ratchet.runtime.artifacts import FolderArtifacts


def result(action: Callable[[], object]) -> str:
    """Return the name of the error that the action ends with, or its value as text."""
    try:
        return str(action())
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "?")


def main() -> None:
    """Try everything once, in the run folder of the job."""
    store, golden, forged = FolderArtifacts(Path(os.environ["STORE"])), os.environ["GOLDEN"], os.environ["FORGED"]
    run = Path.cwd()
    found = {
        "read the golden set": result(store.path(golden).read_bytes),
        "list the names": result(lambda: list((store.root / "names").iterdir())),
        "delete the artifacts": result(lambda: shutil.rmtree(store.root)),
        "list the lines": result(lambda: sorted(path.name for path in store.root.parent.iterdir())),
        "change the plan": result(lambda: (run / "plan.json").write_text("{}")),
        "replace the plan": result(lambda: (run / "other").write_text("{}") and (run / "other").rename(run / "plan.json")),
        "change the data": result(lambda: (run / "pairs.parquet").open("r+b").write(b"x")),
        "delete the start model": result(lambda: shutil.rmtree(run / "model")),
        "add to the start model": result(lambda: (run / "model" / "extra.json").write_text("{}")),
        "begin another attempt": result(lambda: (run.parent / "a2").mkdir()),
    }
    for place in (store, FolderArtifacts(run / "drop")):
        result(lambda place=place: place.bind(forged, place.put(b"forged")))  # type: ignore[misc]
    (run / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
