"""The files of Langfuse's blob export: PREFIX/PROJECT/TABLE/WINDOW.ENDING, one file per table and window of time.

The tables are `observations_v2` and `scores`, or those of the older layout, `traces`, `observations` and `scores`. Newer versions of
Langfuse write PREFIX/PROJECT/manifests/WINDOW.json when all files of a window are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ratchet.contracts.data.datasets import Unread
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.values import parse_json
from ratchet.materializer.receive.files.storage import StoredFile

TABLES = ("traces", "observations", "observations_v2", "scores")
MANIFESTS = "manifests"
_MANIFEST_BYTES = 1 << 20


@dataclass
class Project:
    """The files of one exported project, by table and window. Windows sort by time."""

    root: str
    tables: dict[str, dict[str, StoredFile]] = field(default_factory=lambda: {table: {} for table in (*TABLES, MANIFESTS)})

    def windows(self) -> list[str]:
        """Return the windows of all tables, oldest first."""
        return sorted({window for table in TABLES for window in self.tables[table]})

    def before(self, table: str, window: str, count: int) -> list[StoredFile]:
        """Return the files of a table for `window` and the `count` windows before it, newest first, then that of the next window."""
        files = self.tables[table]
        earlier = sorted((one for one in files if one <= window), reverse=True)[: count + 1]
        return [files[one] for one in (*earlier, *sorted(one for one in files if one > window)[:1])]


def projects(files: Iterable[StoredFile]) -> tuple[list[Project], list[Unread]]:
    """Sort the files of an export by project, table and window. Return (projects, files that have another place)."""
    found: dict[str, Project] = {}
    unread = []
    for file in files:
        root, _, rest = file.name.rpartition("/")
        root, _, table = root.rpartition("/")
        if table not in (*TABLES, MANIFESTS):
            unread.append(Unread(file.name, "in no folder of an export (" + ", ".join(TABLES) + ")"))
            continue
        found.setdefault(root, Project(root)).tables[table][rest.partition(".")[0]] = file
    return [found[root] for root in sorted(found)], unread


@dataclass(frozen=True)
class Ready:
    """Whether the files of a window are complete."""

    why_not: str | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    """Table -> number of rows that the manifest promises."""


def readiness(project: Project, window: str) -> Ready:
    """Return whether a window may be read.

    With manifests, the manifest must be there and name only files that are there. Without, the traces of the window must be there, or those
    of a later one. Raises OSError if the manifest cannot be read.
    """
    manifests = project.tables[MANIFESTS]
    if manifests:
        if window not in manifests:
            return Ready("the export has not written the manifest of this window yet")
        with manifests[window].open() as stream:
            try:
                return _promised(project, window, parse_json(stream.read(_MANIFEST_BYTES)))
            except (Rejected, KeyError, TypeError, AttributeError):
                return Ready("the manifest of this window is damaged")
    traces = project.tables["traces"]
    if traces and window in project.tables["observations"] and window > max(traces):
        return Ready("the traces of this window are not there yet")
    return Ready()


def _promised(project: Project, window: str, manifest: dict[str, Any]) -> Ready:
    rows: dict[str, int] = {}
    for file in manifest["files"]:
        table = str(file["table"])
        if table in TABLES and window not in project.tables[table]:
            return Ready(f"the manifest names a file of {table} that is not there")
        if isinstance(file.get("rowCount"), int):
            rows[table] = file["rowCount"]
    return Ready(None, rows)
