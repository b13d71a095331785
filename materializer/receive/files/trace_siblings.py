"""Finds refusals of whole traces beside the observations of Langfuse: a file with traces in the folder of a file with observations.

A user who saves both from the API has such a folder. Langfuse's blob export has a source of its own (`receive/langfuse`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from ratchet.materializer.dialects.langfuse import is_observation, is_trace, json_object
from ratchet.materializer.dialects.people.told import told_in_record
from ratchet.materializer.receive.files.reading import content_of, rows_of
from ratchet.materializer.receive.files.storage import StoredFile


class TraceSiblings:
    """The files with traces beside each file with observations. Remembers by version what the first row of a file is."""

    def __init__(self) -> None:
        self._firsts: dict[str, tuple[str, str]] = {}

    def beside(self, file: StoredFile, files: Iterable[StoredFile]) -> list[StoredFile]:
        """Return the files with traces in the folder of a file with observations; none for another file."""
        if self._first(file) != "observation":
            return []
        folder = file.name.rpartition("/")[0]
        return [one for one in files if one.name != file.name and one.name.rpartition("/")[0] == folder and self._first(one) == "trace"]

    def _first(self, file: StoredFile) -> str:
        version, kind = self._firsts.get(file.name, ("", ""))
        if version != file.version:
            kind = _kind_of_first_row(file)
            self._firsts[file.name] = file.version, kind
        return kind


def _kind_of_first_row(file: StoredFile) -> str:
    try:
        content = content_of(file)
        row = next(islice(rows_of(file, content), 1), None) if content.form in ("lines", "json") else None
    except (OSError, EOFError):  # the reader of the file reports it
        return ""
    return "observation" if is_observation(row) else "trace" if is_trace(row) else ""


def refused_traces(files: Iterable[StoredFile]) -> set[str]:
    """Return the ids of the traces in `files` that refuse consent. Raises OSError if a file cannot be read."""
    found = set[str]()
    for file in files:
        try:
            for row in rows_of(file, content_of(file)):
                if isinstance(row, dict) and is_trace(row) and told_in_record(row).refuses():
                    found.add(row["id"])
        except EOFError:  # the decoder reports the damage with the file's own batch
            continue
    return found


def with_refusal(row: dict[str, Any], refused: set[str]) -> dict[str, Any]:
    """Return an observation with the refusal of its trace."""
    trace = row.get("traceId")
    if not isinstance(trace, str) or trace not in refused or not is_observation(row):
        return row
    return row | {"metadata": json_object(row.get("metadata")) | {"consent": False}}
