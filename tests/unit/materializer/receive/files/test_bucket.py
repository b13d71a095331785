"""Tests of sources on S3, against a local server: all kinds, unchanged and changed objects, and stores that do not answer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.materializer.receive.files import storage
from ratchet.materializer.receive.files.delivered import next_try
from ratchet.materializer.receive.files.source import FileSource
from ratchet.materializer.receive.files.storage import open_storage
from tests.s3 import S3, served_by_default
from tests.unit.materializer.receive.files.test_file_source import COLLECTOR, trace_request
from tests.unit.materializer.receive.files.test_tables import MAPPING, write
from tests.unit.materializer.receive.kinds import ingested, opened

pytestmark = pytest.mark.slow
RECORD = '{"id": "%s", "timestamp": "2026-01-01T00:00:00Z", "messages": "q", "response": "a"}\n'


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    with served_by_default(monkeypatch) as server:
        yield server


def put(s3: S3, key: str, body: bytes) -> None:
    """Store an object."""
    s3.client.put_object(Bucket=s3.bucket, Key=key, Body=body)


def test_only_new_and_changed_objects_are_read(s3: S3, tmp_path: Path) -> None:
    for number in range(3):
        put(s3, f"logs/2026-01-0{number + 1}/{number}.json", (RECORD % number).encode())
    put(s3, "logs/readme.md", b"# Notes")
    put(s3, "logs-of-others/x.json", (RECORD % "x").encode())
    source = opened("jsonl", f"s3://{s3.bucket}/logs", tmp_path)
    batches = list(source.batches())
    assert [batch.origin for batch in batches] == [f"s3://{s3.bucket}/logs/2026-01-01/0.json..2.json"]
    assert sorted(row["id"] for row in ingested(source).traces) == ["0", "1", "2"]
    assert [file.name for file in source.unread] == ["readme.md"]
    again = opened("jsonl", f"s3://{s3.bucket}/logs/", tmp_path)
    assert list(again.batches()) == []
    put(s3, "logs/2026-01-02/1.json", (RECORD % 1 + RECORD % "1b").encode())
    put(s3, "logs/2026-01-04/4.json.gz", gzip.compress((RECORD % 4).encode()))
    assert sorted(row["id"] for row in ingested(again).traces) == ["1", "1b", "4"]


def test_every_kind_reads_from_a_bucket(s3: S3, tmp_path: Path) -> None:
    write(tmp_path / "calls.parquet")
    put(s3, "tables/calls.parquet", (tmp_path / "calls.parquet").read_bytes())
    put(s3, "otel/year=2026/traces_1.binpb.gz", gzip.compress(trace_request(1).SerializeToString()))
    put(s3, "otel/year=2026/traces_2.json", COLLECTOR["traces.json"])
    call = {
        "call_type": "completion",
        "litellm_call_id": "x",
        "model_parameters": {},
        "startTime": 1_790_000_000.0,
        "messages": "q",
        "response": "a",
    }
    for name in "ab":
        put(s3, f"litellm/2026-09-21/{name}.json", json.dumps(call | {"id": name}).encode())
    row = {"id": "o", "trace_id": "t", "type": "GENERATION", "start_time": "2026-11-18 00:00:00.000", "input": "q", "output": "a"}
    put(s3, "lf/project/observations_v2/2026-11-18T00-00-00.jsonl", json.dumps(row).encode())
    place = f"s3://{s3.bucket}"
    assert len(ingested(opened("parquet", f"{place}/tables", tmp_path / "1", MAPPING), MAPPING).traces) == 6
    assert len(ingested(opened("otlp", f"{place}/otel", tmp_path / "2")).traces) == 3
    assert [row["id"] for row in ingested(opened("litellm", f"{place}/litellm", tmp_path / "3")).traces] == ["a", "b"]
    assert [row["id"] for row in ingested(opened("langfuse", f"{place}/lf", tmp_path / "4")).traces] == ["o"]


class Requests:
    """Refuses to give one object, and counts the requests for objects."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused, self.asked = "", list[str]()
        open_whole = storage.BucketStorage._open

        def opened(place: storage.BucketStorage, path: str, etag: str, size: int) -> BinaryIO:
            self.asked.append(path.rsplit("/", 1)[-1])
            if self.refused and path.endswith(self.refused):
                raise PermissionError("AccessDenied")
            return open_whole(place, path, etag, size)

        monkeypatch.setattr(storage.BucketStorage, "_open", opened)


def test_an_object_that_cannot_be_read_does_not_delay_the_others(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        put(s3, f"logs/{name}.json", (RECORD % name).encode())
    requests, clock = Requests(monkeypatch), [1000.0]
    requests.refused = "b.json"
    source = FileSource("s", "jsonl", open_storage(f"s3://{s3.bucket}/logs", tmp_path, "s"), tmp_path, now=lambda: clock[0])
    assert sorted(row["id"] for row in ingested(source).traces) == ["a", "c"]
    assert [(file.name, "AccessDenied" in file.why) for file in source.unread] == [("b.json", True)]
    requests.asked.clear()
    for _ in range(3):
        assert list(source.batches()) == []
        assert [file.name for file in source.unread] == ["b.json"]
    assert requests.asked == []
    clock[0] += next_try(1)
    assert list(source.batches()) == []
    assert requests.asked == ["b.json"]
    clock[0] += next_try(1)
    assert list(source.batches()) == []
    assert requests.asked == ["b.json"], "the second wait is longer"
    requests.refused = ""
    clock[0] += next_try(2)
    assert [row["id"] for row in ingested(source).traces] == ["b"]
    assert (list(source.batches()), source.unread) == ([], [])


def test_an_object_that_no_reader_takes_is_asked_for_again_when_it_changes(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(s3, "logs/notes.md", b"# Notes")
    requests = Requests(monkeypatch)
    source = opened("jsonl", f"s3://{s3.bucket}/logs", tmp_path)
    for _ in range(3):
        assert list(source.batches()) == []
        assert [file.name for file in source.unread] == ["notes.md"]
    assert requests.asked == ["notes.md"]
    put(s3, "logs/notes.md", (RECORD % 1).encode())
    assert [row["id"] for row in ingested(source).traces] == ["1"]


def test_a_file_of_langfuse_that_cannot_be_read_does_not_delay_the_others(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"trace_id": "t", "type": "GENERATION", "start_time": "2026-11-18 00:00:00.000", "input": "q", "output": "a"}
    for hour in range(3):
        put(s3, f"lf/p/observations_v2/2026-11-18T0{hour}-00-00.jsonl", json.dumps(row | {"id": str(hour)}).encode())
    requests = Requests(monkeypatch)
    requests.refused = "T01-00-00.jsonl"
    source = opened("langfuse", f"s3://{s3.bucket}/lf", tmp_path)
    assert [one["id"] for one in ingested(source).traces] == ["0", "2"]
    assert [file.name for file in source.unread] == ["p/observations_v2/2026-11-18T01-00-00.jsonl"]
    requests.asked.clear()
    assert (list(source.batches()), requests.asked) == ([], [])


def test_an_object_is_found_under_any_name(s3: S3, tmp_path: Path) -> None:
    names = ["x#1.json", "q?v=1.json", "ü ö.json", "a//b.json", "100%.json", "a%20b.json", "e+f.json", "s*r.json"]
    for name in names:
        put(s3, f"logs/{name}", (RECORD % len(name)).encode() + name.encode())
    found = list(open_storage(f"s3://{s3.bucket}/logs", tmp_path, "s").files())
    assert sorted(file.name for file in found) == sorted(names)
    for file in found:
        with file.open() as stream:
            assert stream.read().endswith(file.name.encode())


def test_a_missing_bucket_is_an_error_and_a_silent_store_is_asked_again(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="NoSuchBucket"):
        list(opened("jsonl", "s3://renamed-bucket/logs", tmp_path).batches())
    put(s3, "logs/a.json", (RECORD % 1).encode())
    source = opened("jsonl", f"s3://{s3.bucket}/logs", tmp_path)
    batches = list(source.batches())
    put(s3, "logs/a.json", (RECORD % 2).encode() * 2)  # it changes between the listing and the read
    with pytest.raises(OSError, match=r"a\.json"):
        batches[0].open().read()
    s3.stop()
    monkeypatch.setattr(storage, "ATTEMPTS", 1)
    with pytest.raises(Retryable, match="cannot be listed"):
        list(opened("jsonl", f"s3://{s3.bucket}/logs", tmp_path).batches())
