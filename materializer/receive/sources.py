"""Sources of raw batches: the files of a folder, and the receiver's spool. Sources neither decode batches nor store state."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import orjson

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.errors import ConfigError, Rejected
from ratchet.contracts.ids import Digest, canonical, digest, digest_file
from ratchet.contracts.loop import SourceSettings
from ratchet.materializer.dialects.values import parse_json
from ratchet.materializer.receive.spool import Envelope, read_envelope, read_request, spooled

_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
_FORMATS = {"otlp": "otlp-json", "jsonl": "jsonl"}


def open_files(settings: SourceSettings, folder: Path, _state: Path) -> FileSource:
    """Files of OTLP JSON requests or of Ratchet's JSON Lines records. A relative path starts at `folder`, that of the loop file."""
    return FileSource(settings.name, settings.kind, folder / str(settings.path))


def open_spool(settings: SourceSettings, _folder: Path, state: Path) -> SpoolSource:
    """Requests that the line's OTLP/HTTP receiver has accepted. `state` is the spool."""
    return SpoolSource(settings.name, state)


class FileSource:
    """Delivers each file below a folder (or one single file) as a batch, in the order of file names. The files are not changed."""

    def __init__(self, name: str, kind: str, path: Path) -> None:
        self.name = name
        self.format = _FORMATS[kind]
        self.path = path

    def batches(self) -> Iterator[RawBatch]:
        """Yield one batch per file. Raises ConfigError if the path does not exist."""
        if not self.path.exists():
            raise ConfigError(f"source {self.name!r}: {self.path} does not exist; correct its path in the loop file")
        for path in self._files():
            yield RawBatch(self.name, self.format, digest_file(path), str(path), partial(open_file, path))

    def _files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        files = [file for file in self.path.rglob("*") if file.name.endswith(_ENDINGS) and not file.name.startswith(".") and file.is_file()]
        # Names of daily files begin with the date, so this is the order of time across all folders.
        return sorted(files, key=lambda file: (file.name, str(file)))

    def done(self, batch: RawBatch) -> None:
        """Do nothing, because the files belong to the owner of the folder."""


def open_file(path: Path) -> BinaryIO:
    """Open a file of a source as a stream with one record per line. A file whose name ends in .gz is decompressed."""
    whole = _one_value(path) if path.name.removesuffix(".gz").endswith(".json") else None
    return io.BytesIO(whole) if whole is not None else _stream(path)


def _stream(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.name.endswith(".gz") else path.open("rb")


def _one_value(path: Path) -> bytes | None:
    """Return the content of a `.json` file with one record per line. None if it is no single JSON value, so that lines are read.

    An array contains a record per element. The lines of any other value are joined. This is safe because JSON strings cannot contain
    unescaped line breaks.
    """
    try:
        with _stream(path) as stream:
            data = stream.read()
        value = parse_json(data.removeprefix(b"\xef\xbb\xbf"))
    except (Rejected, EOFError, zlib.error, gzip.BadGzipFile):
        return None  # JSON Lines, malformed or damaged: the decoder reports errors per line
    if isinstance(value, list):
        return b"".join(orjson.dumps(item) + b"\n" for item in value)
    return data.replace(b"\n", b" ").replace(b"\r", b" ")


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
