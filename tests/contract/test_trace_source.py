"""Contract tests for every TraceSource: batches are identified by their bytes, ordered, and available until they are done."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.fakes import FakeSource
from ratchet.contracts.loop import SourceSettings
from ratchet.contracts.ports import TraceSource
from ratchet.extend.testkit import SourceSuite, content
from ratchet.materializer.receive.files.source import FileSource
from ratchet.materializer.receive.sources import SpoolSource
from ratchet.materializer.receive.spool import FolderSpool
from ratchet.runtime.extensions import ExtensionKind, load

BODIES = [b'{"resourceSpans": []}', b'{"resourceSpans": [{}]}', b'{"resourceLogs": []}']


def _files(folder: Path) -> TraceSource:
    for number, body in enumerate(BODIES):
        (folder / f"2026-10-0{number}.jsonl").write_bytes(body + b"\n")
    return FileSource("s", "otlp", folder)


def _zipped(folder: Path) -> TraceSource:
    for number, body in enumerate(BODIES):
        (folder / f"2026-10-0{number}.jsonl.gz").write_bytes(gzip.compress(body + b"\n", mtime=number))
    return FileSource("s", "otlp", folder)


def _spool(folder: Path) -> TraceSource:
    spool = FolderSpool(folder)
    for body in BODIES:
        spool.put_json(Sender(name="shop", roles=(Role.TRACES,)), body)
    return SpoolSource("s", folder, max_files=1)


def _fake(folder: Path) -> TraceSource:
    return FakeSource("s", list(_files(folder).batches()))


def _example(folder: Path) -> TraceSource:
    _files(folder)
    settings = SourceSettings(name="s", kind="chat-exports", path="")
    made = load(ExtensionKind.SOURCE, settings.kind).create(settings, folder, folder / "state", options={"ending": ".jsonl"}, where="")
    source: TraceSource = made
    return source


SOURCES: dict[str, Callable[[Path], TraceSource]] = {
    "files": _files,
    "zipped": _zipped,
    "spool": _spool,
    "fake": _fake,
    "example": _example,
}
JSONL = {"example"}
"""Sources whose batches leave it to the dialects to recognise the records."""


@pytest.fixture(params=list(SOURCES))
def source(request: pytest.FixtureRequest, example: Path, tmp_path: Path) -> TraceSource:
    return SOURCES[request.param](tmp_path)


class TestSources(SourceSuite):
    """The suite, with the fixture above."""


def test_batches_are_oldest_first_and_have_the_name_of_the_source(source: TraceSource, request: pytest.FixtureRequest) -> None:
    batches = list(source.batches())
    assert [content(batch) for batch in batches] == BODIES
    known = "jsonl" if request.node.callspec.params["source"] in JSONL else "otlp-json"
    assert {(batch.source, batch.format) for batch in batches} == {(source.name, known)}


def test_folder_keeps_its_files_and_spool_deletes_them(tmp_path: Path) -> None:
    for name, left in (("files", 3), ("spool", 0)):
        folder = tmp_path / name
        folder.mkdir()
        source = SOURCES[name](folder)
        for batch in list(source.batches()):
            source.done(batch)
        assert len(list(source.batches())) == left


def test_file_batch_is_identified_by_its_compressed_bytes(tmp_path: Path) -> None:
    batch = next(_zipped(tmp_path).batches())
    assert batch.digest == hashlib.sha256(Path(batch.origin).read_bytes()).hexdigest()


def test_json_file_with_many_lines_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text('{\n  "resourceSpans": [\n  ]\n}\n')
    assert len(content(next(FileSource("s", "otlp", path).batches())).splitlines()) == 1


def test_missing_path_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        next(FileSource("s", "jsonl", tmp_path / "nowhere").batches())
