"""A source that delivers the daily exports of a chat tool, one batch per file, and remembers which ones it has delivered."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ratchet.extend import ConfigError, RawBatch, SourceSettings, digest_file


class ChatExports:
    """Files of a folder whose names end in the option `ending`, oldest first. The export's date is at the start of its name."""

    def __init__(self, settings: SourceSettings, folder: Path, state: Path, ending: str = ".chat.jsonl") -> None:
        if settings.path is None:
            raise ConfigError(f"source {settings.name!r}: set `path` to the folder of the exports")
        self.name = settings.name
        self._exports = folder / settings.path
        self._ending = ending
        self._delivered = state / "delivered"

    def batches(self) -> Iterator[RawBatch]:
        """Yield the exports that were not delivered before. The dialect is found by the content of each record."""
        for path in sorted(self._exports.glob(f"*{self._ending}")):
            content = digest_file(path)
            if not (self._delivered / content).exists():
                yield RawBatch(self.name, "jsonl", content, str(path), partial(_open, path))

    def done(self, batch: RawBatch) -> None:
        """Remember the batch. Without this, a file would be read at each ingest, and its records would count as duplicates."""
        self._delivered.mkdir(parents=True, exist_ok=True)
        (self._delivered / batch.digest).touch()


def _open(path: Path) -> BinaryIO:
    return path.open("rb")
