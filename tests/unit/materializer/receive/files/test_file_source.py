"""Tests of the sources of files: what they recognise by content, what they leave unread, and what a damaged or hostile file does."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Limits
from ratchet.contracts.errors import ConfigError
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.receive.files import streams
from ratchet.materializer.receive.files.content import recognise
from ratchet.materializer.receive.files.source import open_file
from ratchet.materializer.receive.files.streams import line_of, stream_of
from tests.unit.materializer.receive.kinds import NOW, ingested, opened, reasons

TIME = 1_790_000_000_000_000_000


def trace_request(number: int) -> ExportTraceServiceRequest:
    """A request with one call."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id = bytes([1]) * 16, number.to_bytes(8, "big")
    span.start_time_unix_nano, span.end_time_unix_nano = TIME, TIME + 1_000_000
    texts = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": f"question {number}"}]}]),
        "gen_ai.output.messages": json.dumps(
            [{"role": "assistant", "parts": [{"type": "text", "content": "answer"}], "finish_reason": "stop"}]
        ),
    }
    for key, text in texts.items():
        attribute = span.attributes.add()
        attribute.key, attribute.value.string_value = key, text
    return request


def log_request() -> ExportLogsServiceRequest:
    """A request with a rating."""
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.time_unix_nano, record.event_name = TIME, "gen_ai.evaluation.result"
    record.trace_id, record.span_id = bytes([1]) * 16, (1).to_bytes(8, "big")
    for key, value in (("gen_ai.evaluation.name", "user_feedback"), ("gen_ai.evaluation.score.value", 1.0)):
        attribute = record.attributes.add()
        attribute.key = key
        if isinstance(value, str):
            attribute.value.string_value = value
        else:
            attribute.value.double_value = value
    return request


def as_json(request: Any) -> bytes:
    """A request as the collector's JSON marshaler writes it."""
    from google.protobuf.json_format import MessageToDict

    found = MessageToDict(request, use_integers_for_enums=True)
    for resource in found.get("resourceSpans", []):
        for span in resource["scopeSpans"][0]["spans"]:
            span["traceId"], span["spanId"] = ("01" * 16), request.resource_spans[0].scope_spans[0].spans[0].span_id.hex()
    return json.dumps(found).encode()


def zstd(data: bytes) -> bytes:
    """Data compressed with zstd."""
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def framed(*messages: bytes) -> bytes:
    """Messages with their length in front."""
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)


FIRST, SECOND = trace_request(1), trace_request(2)
COLLECTOR = {
    "traces.json": as_json(FIRST) + b"\n" + as_json(SECOND) + b"\n",
    "traces-2026-11-24T00-00-00.000.json": as_json(FIRST) + b"\n" + as_json(SECOND) + b"\n",
    "traces.json.1": as_json(FIRST) + b"\n" + as_json(SECOND) + b"\n",
    "traces.log": as_json(FIRST) + b"\n" + as_json(SECOND) + b"\n",
    "traces.zst": zstd(as_json(FIRST) + b"\n" + as_json(SECOND) + b"\n"),
    "no-ending": gzip.compress(as_json(FIRST) + b"\n" + as_json(SECOND) + b"\n"),
    "proto": framed(FIRST.SerializeToString(), SECOND.SerializeToString()),
    "proto-with-zstd": framed(zstd(FIRST.SerializeToString()), zstd(SECOND.SerializeToString())),
    "json-with-zstd": framed(zstd(as_json(FIRST)), zstd(as_json(SECOND))),
    "proto.gz": gzip.compress(framed(FIRST.SerializeToString(), SECOND.SerializeToString())),
}
"""Files as the collector's file exporter and log rotation write them: name -> bytes. All have the same two calls."""


@pytest.mark.parametrize("name", list(COLLECTOR))
def test_a_file_of_the_collector_is_read_by_its_content(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(COLLECTOR[name])
    source = opened("otlp", tmp_path, tmp_path / "state")
    found = ingested(source)
    assert [json.loads(row["messages"])[0]["content"] for row in found.traces] == ["question 1", "question 2"]
    assert (found.bad, source.unread) == ([], [])


@pytest.mark.parametrize("body", ["binary", "json"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_an_object_of_the_s3_exporter_is_one_request(body: str, pack: Any, tmp_path: Path) -> None:
    trace = FIRST.SerializeToString() if body == "binary" else as_json(FIRST)
    (tmp_path / "traces_1.binpb").write_bytes(pack(trace))
    if body == "binary":
        (tmp_path / "logs_1.binpb").write_bytes(pack(log_request().SerializeToString()))
    found = ingested(opened("otlp", tmp_path, tmp_path / "state"))
    assert (len(found.traces), len(found.feedback), found.bad) == (1, 1 if body == "binary" else 0, [])


def test_files_that_no_reader_takes_are_named_with_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "timestamp": "2026-01-01T00:00:00Z", "messages": "q", "response": "a"}\n')
    (tmp_path / "b.zip").write_bytes(b"PK\x03\x04rest")
    (tmp_path / "notes.md").write_text("# Notes\n")
    (tmp_path / "c.xz").write_bytes(b"\xfd7zXZ\x00rest")
    (tmp_path / "proto").write_bytes(COLLECTOR["proto"])
    source = opened("jsonl", tmp_path, tmp_path / "state")
    assert len(ingested(source).traces) == 1
    known = {file.name: file.why for file in source.unread}
    assert known == {
        "b.zip": "a zip archive",
        "c.xz": "xz",
        "notes.md": "unknown content",
        "proto": "protobuf; a source of the kind otlp reads it",
    }
    assert source.look(10) == (1, source.unread)


def test_a_half_written_message_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "proto").write_bytes(COLLECTOR["proto"][:-5])
    found = ingested(opened("otlp", tmp_path, tmp_path / "state"))
    assert (len(found.traces), reasons(found)) == (1, {"damaged_file": 1})


@pytest.mark.parametrize("pack", [lambda data: gzip.compress(data, mtime=0), zstd])
def test_a_stream_that_becomes_suspiciously_large_ends(pack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.materializer.receive.files.streams._FREE", 1 << 20)
    record = b'{"id": "1", "timestamp": "2026-01-01T00:00:00Z", "messages": "q", "response": "a"}\n'
    (tmp_path / "bomb.jsonl.gz").write_bytes(pack(record + b" " * (20 << 20)))
    found = ingested(opened("jsonl", tmp_path, tmp_path / "state"))
    assert (len(found.traces), reasons(found)) == (1, {"damaged_file": 1})


def test_a_damaged_file_of_litellm_does_not_cost_the_others(tmp_path: Path) -> None:
    call = {
        "id": "c",
        "call_type": "completion",
        "litellm_call_id": "x",
        "model_parameters": {},
        "startTime": 1_790_000_000.0,
        "messages": "q",
    }
    good = json.dumps(call | {"response": "a", "status": "success"}).encode()
    (tmp_path / "1.json").write_bytes(good)
    (tmp_path / "2.json.gz").write_bytes(gzip.compress(good)[:-9])
    (tmp_path / "3.json").write_bytes(good.replace(b'"c"', b'"d"'))
    source = opened("litellm", tmp_path, tmp_path / "state")
    found = ingested(source)
    assert [row["id"] for row in found.traces] == ["c", "d"]
    assert reasons(found) == {"damaged_file": 1}
    assert list(source.batches()) == []  # nothing has changed since
    (tmp_path / "4.json").write_bytes(good.replace(b'"c"', b'"e"'))
    assert [row["id"] for row in ingested(source).traces] == ["e"]


def test_a_place_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="s3://"):
        opened("jsonl", "ftp://host/traces", tmp_path)
    with pytest.raises(ConfigError, match="credentials come from the environment"):
        opened("jsonl", "s3://key:secret@bucket/traces", tmp_path)


def test_a_record_of_a_compressed_file_can_be_read_again_at_its_place(tmp_path: Path) -> None:
    for name, data in (("a.jsonl.gz", gzip.compress(b"first\nsecond\n")), ("b.zst", zstd(b'{"a": 1}\n{"b": 2}\n'))):
        (tmp_path / name).write_bytes(data)
        with open_file(tmp_path / name) as stream:
            stream.seek(stream.readline().__len__())
            assert stream.readline() in (b"second\n", b'{"b": 2}\n')


@given(st.binary(max_size=200))
def test_any_bytes_are_recognised_or_named(head: bytes) -> None:
    found = recognise(head, "file")
    assert found.why or found.form != "unknown"


DEEP = "[" * 300 + "]" * 300
"""JSON that can be read, but nests too deeply to be written."""
TOO_DEEP = ("too_deep", "malformed_json")
"""Reasons for a record that nests too deeply, by the version of the parser."""


@pytest.mark.parametrize("kind", ["jsonl", "litellm", "otlp"])
def test_a_record_that_cannot_be_written_costs_only_itself(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f'[{{"id": "1", "metadata": {DEEP}}}, {{"id": "2"}}]')
    [batch] = opened(kind, tmp_path, tmp_path / "state").batches()
    found = decode(batch, Limits(NOW, True, {}))
    first, second = found.bad
    assert (first.position, second.position) == ("line 1", "line 2")
    assert first.reason in (*TOO_DEEP, second.reason)  # both are no calls


@pytest.mark.parametrize("form", ["jsonl", "litellm", "langfuse", "otlp-json"])
def test_a_line_in_the_place_of_a_record_is_rejected(form: str) -> None:
    deep: Any = json.loads(DEEP)
    lines = line_of({"a": deep}) + line_of({"a": 1 << 70})
    found = decode(RawBatch("s", form, "d", "o", lambda: io.BytesIO(lines)), Limits(NOW, True, {}))
    first, second = found.bad
    assert first.reason in TOO_DEEP
    assert second.reason == "wrong_type"


def test_an_unexpected_error_becomes_a_damaged_file_and_one_of_the_network_does_not() -> None:
    def failing(error: Exception) -> Iterator[bytes]:
        yield b"first\n"
        raise error

    with pytest.raises(EOFError, match="cannot be read: AttributeError"):
        stream_of(failing(AttributeError("secret"))).read()
    with pytest.raises(OSError, match="network"):
        stream_of(failing(OSError("network"))).read()


def test_an_array_of_any_size_and_the_lines_of_a_large_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = '{"id": "%s", "timestamp": "2026-01-01T00:00:00Z", "messages": "q", "response": "a"}'
    monkeypatch.setattr(streams, "MAX_WHOLE", 100)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(f" [{record % 1},\n{record % 2}]".encode()))
    (tmp_path / "b.json").write_text(f"{record % 3}\n{record % 4}\n")
    found = ingested(opened("jsonl", tmp_path, tmp_path / "state"))
    assert [row["id"] for row in found.traces] == ["1", "2", "3", "4"]
    assert not found.bad
