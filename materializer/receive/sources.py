"""The source of the receiver's spool. It does not decode the batches that it delivers. Sources of files are in `files/source.py`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.ids import Digest, canonical, digest
from ratchet.contracts.loop import SourceSettings
from ratchet.materializer.receive.spool import Envelope, read_envelope, read_request, spooled


def open_spool(settings: SourceSettings, _folder: Path, state: Path) -> SpoolSource:
    """Requests that the line's OTLP/HTTP receiver has accepted. `state` is the spool."""
    return SpoolSource(settings.name, state)


class SpoolSource:
    """Delivers the requests in the receiver's spool. The requests of one sender are in order of arrival.

    Small requests of one sender are joined to batches, because a commit to the lake costs the same for one record as for thousands.
    """

    def __init__(self, name: str, folder: Path, max_bytes: int = 32 << 20, max_files: int = 2000) -> None:
        self.name = name
        self.folder = folder
        self.max_bytes = max_bytes
        self.max_files = max_files
        self._handed_out: dict[Digest, list[Path]] = {}

    def batches(self) -> Iterator[RawBatch]:
        """Yield batches of one sender and format each. A batch ends when it has `max_bytes` bytes or `max_files` files."""
        files: dict[Envelope, list[Path]] = {}
        for file in spooled(self.folder):
            files.setdefault(read_envelope(file), []).append(file)
        for envelope, found in files.items():
            head = canonical(envelope)  # equal requests of two senders are two batches
            for group in self._grouped(found):
                data = b"".join(read_request(file) for file in group)
                origin = f"{self.folder}/{group[0].name}..{group[-1].name}"
                batch = RawBatch(self.name, envelope.format, digest(head + data), origin, partial(io.BytesIO, data), envelope.sender)
                self._handed_out[batch.digest] = group
                yield batch

    def _grouped(self, files: list[Path]) -> Iterator[list[Path]]:
        group: list[Path] = []
        size = 0
        for file in files:
            group.append(file)
            size += file.stat().st_size
            if size >= self.max_bytes or len(group) >= self.max_files:
                yield group
                group, size = [], 0
        if group:
            yield group

    def done(self, batch: RawBatch) -> None:
        """Delete the files of a batch that the ledger has recorded.

        After a crash before this call, the files are delivered again and their records count as duplicates.
        """
        for file in self._handed_out.pop(batch.digest, ()):
            file.unlink(missing_ok=True)
