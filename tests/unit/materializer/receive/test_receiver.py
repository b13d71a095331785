"""Tests of the receiver: acknowledged requests are on disk, and rejections have a reason in the client's encoding."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import Retryable
from ratchet.contracts.schema import stamped
from ratchet.materializer.receive import receiver, spool
from ratchet.materializer.receive.credentials import CredentialStore
from ratchet.materializer.receive.receiver import create_app
from ratchet.materializer.receive.settings import ReceiverLine
from ratchet.materializer.receive.sources import SpoolSource
from ratchet.materializer.receive.spool import FolderSpool
from ratchet.runtime.serving.settings import ANSWERS, LINES
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import request_of

TOKEN = "t" * 32
AUTH = {"authorization": f"Bearer {TOKEN}"}
SHOP = Sender(name="shop", roles=(Role.TRACES, Role.FEEDBACK))


def _shop(token: str) -> Sender | None:
    return SHOP if token == TOKEN else None


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return TestClient(create_app(FolderSpool(tmp_path / "spool"), _shop, max_body=100_000))


def _send(client: TestClient, body: bytes, kind: str = receiver.PROTO, path: str = "/v1/traces", **headers: str) -> httpx.Response:
    return client.post(path, content=body, headers={"content-type": kind, **AUTH, **{k.replace("_", "-"): v for k, v in headers.items()}})


def test_protobuf_and_json_requests_reach_the_lake(client: TestClient, tmp_path: Path) -> None:
    answer = _send(client, gzip.compress(request_of(3).SerializeToString()), content_encoding="gzip")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == receiver.PROTO
    ExportTraceServiceResponse.FromString(answer.content)
    attributes = [{"key": "gen_ai.evaluation.name", "value": {"stringValue": "user_feedback"}}]
    attributes.append({"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 1}})
    record = {"traceId": f"{1:032x}", "spanId": f"{1:016x}", "timeUnixNano": "1791158400000000000"}
    record |= {"eventName": "gen_ai.evaluation.result", "attributes": attributes}
    logs = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}, indent=1).encode()
    answer = _send(client, logs, receiver.JSON, "/v1/logs")
    assert (answer.status_code, answer.json()) == (200, {})

    datasets = make_datasets(tmp_path)
    source = SpoolSource("gateway", tmp_path / "spool")
    for batch in source.batches():
        report = datasets.ingest(batch)
        assert report.traces.adds_up
        source.done(batch)
    assert datasets.cursor().traces == 3
    rows = datasets.lake.scan("traces").sort("id").to_dicts()
    assert (rows[0]["id"], rows[0]["answer"], rows[0]["latency_ms"]) == (f"{1:032x}:{1:016x}", "A: 2", 5.0)
    assert rows[0]["model_version"] == "v-1"
    assert datasets.lake.scan("feedback")["trace_id"].to_list() == [rows[0]["id"]]
    assert list(source.batches()) == []


@pytest.mark.parametrize("kind", ["Application/X-Protobuf", "application/x-protobuf; charset=utf-8"])
def test_media_type_is_case_insensitive(client: TestClient, kind: str) -> None:
    answer = _send(client, request_of().SerializeToString(), kind)
    assert (answer.status_code, answer.headers["content-type"]) == (200, receiver.PROTO)


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}, {"authorization": "Bearer é"}])
def test_without_the_token_nothing_is_stored(client: TestClient, tmp_path: Path, given: dict[str, str]) -> None:
    headers = {"content-type": receiver.JSON, **{key: value.encode() for key, value in given.items()}}
    answer = client.post("/v1/traces", content=b"{}", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["code"] == 16
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize(
    ("body", "kind", "headers", "status"),
    [
        (b"{", receiver.JSON, {}, 400),
        (b"[]", receiver.JSON, {}, 400),
        (b'{"resourceLogs":[]}', receiver.JSON, {}, 400),
        (b"\xff\xff\xff", receiver.PROTO, {}, 400),
        (b"[" * 5000, receiver.JSON, {}, 400),
        (b"not gzip", receiver.PROTO, {"content_encoding": "gzip"}, 400),
        (gzip.compress(b"{}", mtime=0)[:-3], receiver.JSON, {"content_encoding": "gzip"}, 400),
        (b"x" * 100_001, receiver.PROTO, {}, 413),
        (gzip.compress(b" " * 100_001, mtime=0), receiver.JSON, {"content_encoding": "gzip"}, 413),
        (b"{}", "text/plain", {}, 415),
        (b"{}", receiver.JSON, {"content_encoding": "br"}, 415),
    ],
)
def test_unreadable_request_is_rejected(
    client: TestClient, tmp_path: Path, body: bytes, kind: str, headers: dict[str, str], status: int
) -> None:
    answer = _send(client, body, kind, **headers)
    assert answer.status_code == status
    if kind == receiver.PROTO:
        assert answer.content[0] == 0x08  # google.rpc.Status.code
    else:
        assert answer.json()["message"]
    assert list((tmp_path / "spool").iterdir()) == []


def test_full_disk_is_reported_and_the_client_may_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = TestClient(create_app(FolderSpool(tmp_path / "spool"), _shop, room=1 << 62))
    assert _send(full, request_of().SerializeToString()).status_code == 503

    def refuse(path: Path, data: bytes) -> None:
        raise Retryable("no space left")

    monkeypatch.setattr(spool, "write_atomic", refuse)
    answer = _send(TestClient(create_app(FolderSpool(tmp_path / "spool"), _shop)), request_of().SerializeToString())
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "30"


def test_request_stored_during_ingestion_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    writer, source = FolderSpool(folder), SpoolSource("gateway", folder)
    writer.put_json(SHOP, b'{"resourceSpans": []}')
    batch = next(source.batches())
    early = folder / "00000000000000000001-1-00000000.json"
    early.write_bytes(b"{}\n")
    late = writer.put_json(SHOP, b"{}")
    source.done(batch)
    assert sorted(file.name for file in folder.iterdir()) == sorted([early.name, late])


@pytest.mark.slow
def test_receiver_process_publishes_its_address(tmp_path: Path) -> None:
    store = CredentialStore(tmp_path / "credentials.json", lambda: datetime.now(UTC))
    settings = tmp_path / "receiver" / LINES / "shop.json"
    settings.parent.mkdir(parents=True)
    settings.write_bytes(stamped(ReceiverLine(spool="../../spool", credentials="../../credentials.json")))
    command = [sys.executable, "-m", "ratchet.materializer.receive.receiver", "--folder", str(tmp_path / "receiver")]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    try:
        told = tmp_path / "receiver" / ANSWERS / "shop.json"
        deadline = time.monotonic() + 60
        while not told.exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        address = json.loads(told.read_text())
        assert address["pid"] == process.pid
        base = f"http://127.0.0.1:{address['port']}"
        assert httpx.get(f"{base}/healthz").status_code == 200
        body = request_of().SerializeToString()

        def send(token: str) -> int:
            headers = {"content-type": receiver.PROTO, "authorization": f"Bearer {token}"}
            return httpx.post(f"{base}/v1/traces", content=body, headers=headers).status_code

        assert send("unknown") == 401
        first = store.add("shop", [Role.TRACES]).read_text()  # no restart from here on
        assert send(first) == 200
        second = store.rotate("shop").read_text()
        assert (send(first), send(second)) == (200, 200)
        store.revoke("shop", old_only=True)
        assert (send(first), send(second)) == (401, 200)
        store.revoke("shop")
        assert send(second) == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    spooled = list((tmp_path / "spool").iterdir())
    assert len(spooled) == 4
    assert not any(file.stat().st_mode & 0o077 for file in spooled), "other accounts on the machine must not read users' conversations"


def test_every_member_of_a_gzip_body_is_stored(client: TestClient, tmp_path: Path) -> None:
    halves = json.dumps({"resourceSpans": []}).encode()
    body = gzip.compress(halves[:9]) + gzip.compress(halves[9:])
    assert _send(client, body, receiver.JSON, content_encoding="gzip").status_code == 200
    (stored,) = SpoolSource("gateway", tmp_path / "spool").batches()
    with stored.open() as stream:
        assert json.loads(stream.read()) == {"resourceSpans": []}


def test_a_gzip_body_with_an_unreadable_or_endless_rest_is_refused(client: TestClient, tmp_path: Path) -> None:
    whole = gzip.compress(b"{}")
    for body in (whole + b"rest", whole + gzip.compress(b" ")[:-4], whole + gzip.compress(b"") * 100):
        assert _send(client, body, receiver.JSON, content_encoding="gzip").status_code == 400
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("kind", [receiver.JSON, receiver.PROTO])
def test_a_request_with_too_many_records_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(receiver, "MAX_RECORDS", 2)
    client = TestClient(create_app(FolderSpool(tmp_path / "spool"), _shop))
    for spans, status in ((2, 200), (3, 413)):
        request = {"resourceSpans": [{"scopeSpans": [{"spans": [0] * spans}]}]}
        body = json.dumps(request).encode() if kind == receiver.JSON else request_of(spans).SerializeToString()
        assert _send(client, body, kind).status_code == status
