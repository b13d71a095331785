"""Sources of files: of a folder, or of a place on S3. They do not decode the batches that they deliver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ratchet.contracts.data.datasets import RawBatch, Unread
from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ids import Digest
from ratchet.contracts.loop import SourceSettings
from ratchet.materializer.dialects.exports.langfuse_export import SentSignal
from ratchet.materializer.dialects.exports.litellm import with_signals
from ratchet.materializer.receive.files.chunks import CHUNK, Chunk, chunks_of
from ratchet.materializer.receive.files.content import Content
from ratchet.materializer.receive.files.delivered import Delivered
from ratchet.materializer.receive.files.reading import Convert, content_of, joined, open_records, open_requests, requests_format
from ratchet.materializer.receive.files.storage import Storage, StoredFile, identity_of, open_storage, stored
from ratchet.materializer.receive.files.table_rows import RewardColumn
from ratchet.materializer.receive.files.trace_siblings import TraceSiblings, refused_traces, with_refusal
from ratchet.runtime.moments import steady_time

_READ = {
    "otlp": ("lines", "json", "frames", "message"),
    "jsonl": ("lines", "json"),
    "litellm": ("lines", "json"),
    "parquet": ("parquet", "csv"),
}
"""Kind -> forms of content that it reads."""
_FORMATS = {"otlp": "otlp-json", "jsonl": "jsonl", "litellm": "litellm", "parquet": "jsonl"}
_READER = {"parquet": "Parquet; a source of the kind parquet reads it", "csv": "CSV; a source of the kind parquet reads it"}
_READER |= dict.fromkeys(("frames", "message"), "protobuf; a source of the kind otlp reads it")
_READER |= dict.fromkeys(("lines", "json"), "JSON; a source of the kind jsonl reads it")
_DENSE = 16
"""How many times smaller a compressed file or a table may be than its lines."""
_WHOLE = 256 << 10
"""Bytes up to which a local file is not divided: so few bytes have few lines."""
_GROUP_BYTES, _GROUP_FILES = 8 << 20, 2000
"""A group of small files ends with these. A commit to the lake costs the same for one record as for thousands."""


def open_files(settings: SourceSettings, folder: Path, state: Path) -> FileSource:
    """Files of OTLP requests, or of records as JSON Lines. A relative path starts at `folder`, that of the loop file."""
    return FileSource(settings.name, settings.kind, _storage(settings, folder), state)


def open_litellm(settings: SourceSettings, folder: Path, state: Path, signals: dict[str, SentSignal] | None = None) -> FileSource:
    """LiteLLM's log. `signals` says which keys of the metadata state a signal: key -> name of the signal."""
    names = {key: str(signal) for key, signal in (signals or {}).items()}
    convert = partial(with_signals, names=names) if names else None
    return FileSource(settings.name, settings.kind, _storage(settings, folder), state, convert=convert)


def open_tables(settings: SourceSettings, folder: Path, state: Path, reward: RewardColumn | None = None) -> FileSource:
    """Tables as Parquet or CSV. `reward` says what a column with rewards becomes. Raises ConfigError if the mapping says it too."""
    if reward and reward.becomes == "rating" and settings.rating_scale is not None:
        raise ConfigError(f"source {settings.name!r}: options.reward gives ratings from 0 to 1; remove rating_scale")
    target = {"rating": "feedback", "reference": "reference"}[reward.becomes] if reward else None
    if target in settings.mapping:
        raise ConfigError(f"source {settings.name!r}: either mapping.{target} or options.reward gives the {target}, not both")
    return FileSource(settings.name, settings.kind, _storage(settings, folder), state, reward, settings.mapping)


def _storage(settings: SourceSettings, folder: Path) -> Storage:
    return open_storage(str(settings.path), folder, f"source {settings.name!r}")


class FileSource:
    """Delivers the files below a folder or a prefix of a bucket, in the order of file names. They are not changed.

    Each local file is a batch, or several if it is large (`chunks`). Small objects of a bucket, and the files of LiteLLM, which has one per
    call, are joined to batches; then the source remembers in the folder `state` which versions of them the lake has, so that unchanged ones
    are not read again.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        place: Path | Storage,
        state: Path | None = None,
        reward: RewardColumn | None = None,
        mapping: dict[str, str] | None = None,
        convert: Convert | None = None,
        now: Callable[[], float] = steady_time,
    ) -> None:
        self.name = name
        self.kind = kind
        self.storage = open_storage(str(place), Path(), f"source {name!r}") if isinstance(place, Path) else place
        self.unread: list[Unread] = []
        self._now = now
        self._joins = self.storage.remote or kind == "litellm"
        self._delivered = Delivered(state) if state is not None and self._joins else None
        of_table = reward.converter(mapping or {}) if reward else None
        self._convert = of_table if kind == "parquet" else convert
        self._form = ""
        self._files: list[StoredFile] = []
        self._siblings = TraceSiblings()
        self._members: dict[Digest, list[StoredFile]] = {}
        self._divided: dict[str, tuple[str, list[Chunk]]] = {}
        """Name of a large file -> its version and its chunks, so that it is not divided at each look for news."""

    def batches(self) -> Iterator[RawBatch]:
        """Yield the batches. Raises ConfigError if the place does not exist, Retryable if it cannot be read."""
        known = self._delivered.versions() if self._delivered else {}
        self.unread = []
        group: list[tuple[StoredFile, Content]] = []
        self._files = list(self.storage.files())
        for file, content, form in self._readable(known, self._files):
            if not self._joins:
                yield from self._local(file, content, form)
                continue
            if group and (form != self._form or _full(group, file)):
                yield self._group(group)
                group = []
            self._form = form
            group.append((file, content))
        if group:
            yield self._group(group)

    def _local(self, file: StoredFile, content: Content, form: str) -> Iterator[RawBatch]:
        """Yield the batches of a local file: its chunks if it has many lines, otherwise one."""
        opened = partial(self._open, file, content)
        if self.kind == "jsonl" and (traces := self._siblings.beside(file, self._files)):
            both = [file, *traces]
            file = replace(file, version=" ".join(one.version for one in both), identity=partial(identity_of, both))
        stored_densely = content.compression or content.form == "parquet"
        if form == "otlp-proto" or file.size <= (CHUNK // _DENSE if stored_densely else min(CHUNK, _WHOLE)):
            yield RawBatch(self.name, form, file.identity(), file.origin, opened)
            return
        version, chunks = self._divided.get(file.name, ("", []))
        if version == file.version:
            yield from (self._batch_of(chunk, file, form) for chunk in chunks)
            return
        found = []
        for chunk in chunks_of(opened):
            found.append(chunk)
            yield self._batch_of(chunk, file, form)
        self._divided[file.name] = file.version, found

    def _batch_of(self, chunk: Chunk, file: StoredFile, form: str) -> RawBatch:
        return RawBatch(self.name, form, chunk.digest, file.origin, chunk.open, first=chunk.first, offset=chunk.offset)

    def look(self, most: int) -> tuple[int, list[Unread]]:
        """Look at up to `most` files. Return (number of those that would be read, the others). Raises like `batches`."""
        files = sorted(self.storage.files(), key=lambda one: one.name)[:most]
        self.unread = []
        return sum(1 for _ in self._readable({}, files, note=False)), self.unread

    def _readable(self, known: dict[str, str], files: Iterable[StoredFile], note: bool = True) -> Iterator[tuple[StoredFile, Content, str]]:
        """Yield the files that the kind reads, in order, with the format of their batches. Put the others into `unread`.

        With `note`, they are remembered in the state of the source, and opened again only after a while or when they have changed.
        """
        # Names of daily files begin with the date, so this is the order of time across all folders.
        waiting = self._delivered.unreadable() if self._delivered else {}
        for file in sorted(files, key=lambda one: (one.name.rsplit("/", 1)[-1], one.name)):
            if known.get(file.name) == file.version:
                continue
            before = waiting.get(file.name)
            if before is not None and before.waits(file.version, self._now()):
                self.unread.append(Unread(file.name, before.why))
                continue
            try:
                content = content_of(file)
                if content.form in _READ[self.kind]:
                    yield file, content, requests_format(file, content) if self.kind == "otlp" else _FORMATS[self.kind]
                    continue
                why = _READER.get(content.form, content.why)
            except OSError as error:
                if not self.storage.remote:
                    raise Retryable(
                        f"source {self.name!r}: {file.origin} cannot be read: {error}; restore it, then ingest again"
                    ) from error
                why = f"cannot be read: {error}"
            self.unread.append(Unread(file.name, why))
            if self._delivered and note:
                self._delivered.add_unreadable(file, why, before, self._now())

    def _open(self, file: StoredFile, content: Content) -> BinaryIO:
        if self.kind == "otlp":
            return open_requests(file, content)
        convert = self._convert
        if self.kind == "jsonl" and (traces := self._siblings.beside(file, self._files)):
            refused = refused_traces(traces)
            convert = partial(with_refusal, refused=refused) if refused else None
        return open_records(file, content, convert)

    def _group(self, group: list[tuple[StoredFile, Content]]) -> RawBatch:
        files = [file for file, _ in group]
        openers = [partial(self._open, file, content) for file, content in group]
        origin = files[0].origin if len(files) == 1 else f"{files[0].origin}..{files[-1].name.rsplit('/', 1)[-1]}"
        batch = RawBatch(self.name, self._form, identity_of(files), origin, partial(joined, openers, self._form != "otlp-proto"))
        self._members[batch.digest] = files
        return batch

    def done(self, batch: RawBatch) -> None:
        """Remember the files of a batch that the lake has. They are not deleted, because they belong to the owner of the place."""
        files = self._members.pop(batch.digest, ())
        if self._delivered and files:
            self._delivered.add(files)


def _full(group: list[tuple[StoredFile, Content]], file: StoredFile) -> bool:
    return len(group) >= _GROUP_FILES or sum(one.size for one, _ in group) + file.size > _GROUP_BYTES


def open_file(path: Path) -> BinaryIO:
    """Open a local file of a source as a stream with one record per line. Compressed content is decompressed."""
    file = stored(path, path.name)
    content = content_of(file)
    return open_records(file, content) if content.form != "unknown" else file.open()
