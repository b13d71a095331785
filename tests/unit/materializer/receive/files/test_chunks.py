"""Tests of the chunks of large files: they are the file, in order, and the lake gets the same records as from the whole file."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import IngestReport
from ratchet.materializer.receive.files import source as files
from ratchet.materializer.receive.files.chunks import chunks_of
from tests.unit.materializer.receive.kinds import ingested, opened


def call(number: int, text: str = "") -> str:
    record = {"id": f"c-{number}", "timestamp": "2026-01-05T09:00:00Z", "messages": f"question {number} {text}", "response": "yes"}
    return json.dumps(record | {"consent": True}) + "\n"


@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"") + b"\n"), max_size=30),
    st.binary(max_size=6),
    st.integers(1, 60),
    st.integers(1, 9),
)
def test_chunks_are_the_stream_cut_at_ends_of_lines(lines: list[bytes], rest: bytes, size: int, most: int) -> None:
    data = b"".join(lines) + rest.replace(b"\n", b"")
    found = list(chunks_of(lambda: io.BufferedReader(io.BytesIO(data)), size, most))  # type: ignore[arg-type]
    at = 0
    for chunk in found:
        with chunk.open() as stream:
            part = stream.read()
        assert part == data[at : at + len(part)]
        assert (chunk.offset, chunk.first) == (at, data[:at].count(b"\n") + 1)
        if chunk is not found[-1]:
            last = len(part) - (part[:-1].rfind(b"\n") + 1)
            assert part.endswith(b"\n")
            assert len(part) - last < size
            assert len(part) >= size or part.count(b"\n") == most
            assert part.count(b"\n") <= most
        at += len(part)
    assert at == len(data)


def test_chunks_of_a_grown_file_stay_the_same_and_any_may_be_opened() -> None:
    data = b"".join(b"%d\n" % number for number in range(1000))
    opens = 0

    def whole(data: bytes) -> Callable[[], BinaryIO]:
        def opener() -> BinaryIO:
            nonlocal opens
            opens += 1
            return io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type,return-value]

        return opener

    before, after = list(chunks_of(whole(data), 500)), list(chunks_of(whole(data + b"more\n"), 500))
    assert [one.digest for one in before[:-1]] == [one.digest for one in after[: len(before) - 1]]
    assert before[-1].digest != after[-1].digest
    opens = 0
    assert b"".join(one.open().read() for one in before) == data
    parts = []
    for one in before:
        with one.open() as stream:
            parts.append(stream.read())
    assert b"".join(parts) == data
    assert opens <= len(before) + 1, "parts that are closed in their order go on with one stream"
    with before[2].open() as stream:
        stream.seek(3)
        assert stream.read(4) == data[before[2].offset + 3 :][:4]


def test_bad_records_of_each_part_are_read_again_without_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, opens = b"".join(b"%d\n" % number for number in range(1000)), 0

    def whole() -> BinaryIO:
        nonlocal opens
        opens += 1
        return io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type,return-value]

    found = list(chunks_of(whole, 300))
    opens = 0
    for chunk in found:
        for _ in range(3):
            with chunk.open() as stream:
                stream.read()
    assert opens <= 3, "the last part, which has no known end, is opened anew"
    monkeypatch.setattr(files, "CHUNK", 300)
    monkeypatch.setattr(files, "chunks_of", lambda opener: chunks_of(opener, 300))
    (tmp_path / "a.jsonl").write_text("".join(call(number) for number in range(20)))
    source = opened("jsonl", tmp_path, tmp_path / "state")
    first = [batch.digest for batch in source.batches()]
    monkeypatch.setattr(files, "chunks_of", lambda _: pytest.fail("the file has not changed"))
    assert [batch.digest for batch in source.batches()] == first


@pytest.mark.parametrize("form", ["plain", "gzip"])
def test_the_lake_gets_the_same_from_chunks(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [call(number, "x" * (number % 50)) for number in range(200)]
    lines[70] = "{broken\n"
    lines[130] = call(3)  # a duplicate of an earlier chunk
    data = "".join(lines).encode()[:-9]  # the last line is cut
    reports: list[IngestReport] = []
    positions: list[Any] = []
    for name, size in (("whole", 1 << 20), ("parts", 2000)):
        monkeypatch.setattr(files, "CHUNK", size)
        monkeypatch.setattr(files, "chunks_of", lambda opener, size=size: chunks_of(opener, size))
        folder = tmp_path / name
        folder.mkdir()
        (folder / ("a.jsonl.gz" if form == "gzip" else "a.jsonl")).write_bytes(gzip.compress(data) if form == "gzip" else data)
        source = opened("jsonl", folder, tmp_path / "state")
        batches = list(source.batches())
        assert (len(batches) > 5) == (name == "parts")
        decoded = ingested(source)
        positions.append(sorted((bad.reason, bad.position, bad.place.offset) for bad in decoded.bad if bad.place))
        reports.append([len(decoded.traces), sorted(row["id"] for row in decoded.traces)])  # type: ignore[arg-type]
    assert reports[0] == reports[1]
    assert positions[0] == positions[1]
    assert len(positions[0]) == 2


def test_a_damaged_end_is_told_by_the_last_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 2000)
    monkeypatch.setattr(files, "chunks_of", lambda opener: chunks_of(opener, 2000))
    packed = gzip.compress("".join(call(number) for number in range(300)).encode(), 0)
    (tmp_path / "a.jsonl.gz").write_bytes(packed[: len(packed) * 2 // 3])
    decoded = ingested(opened("jsonl", tmp_path, tmp_path / "state"))
    assert [bad.reason for bad in decoded.bad] == ["damaged_file"]
    assert 150 < len(decoded.traces) < 250
