"""Tests of Langfuse's API as a source, against a server on loopback: pages, cursor, failures, and what a hostile server can do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.materializer.dialects.exports.langfuse_export import USER_FEEDBACK
from ratchet.materializer.receive.langfuse import client as client_module
from ratchet.materializer.receive.langfuse.api import LangfuseApi
from ratchet.materializer.receive.langfuse.client import LangfuseClient
from tests.unit.materializer.receive.kinds import ingested, opened, reasons
from tests.unit.materializer.receive.langfuse.api_server import KEYS, LangfuseServer, langfuse_server

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


def observation(identity: str, minutes: int = 60) -> dict[str, Any]:
    """A generation, `minutes` before NOW."""
    return {
        "id": identity,
        "traceId": f"t-{identity}",
        "type": "GENERATION",
        "startTime": (NOW - timedelta(minutes=minutes)).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "userId": "u1",
        "input": json.dumps([{"role": "user", "content": "question"}]),
        "output": "answer",
        "metadata": {"consent": "true"},
        "providedModelName": "m",
    }


def rating(identity: str, about: str, value: Any = True, **subject: Any) -> dict[str, Any]:
    """A score of version 3 on the trace of an observation."""
    known = {"id": identity, "name": "user-feedback", "dataType": "BOOLEAN", "timestamp": "2026-11-18T11:30:00.000Z", "comment": "secret"}
    return known | {"value": value, "subject": {"kind": "trace", "id": f"t-{about}"} | subject}


@pytest.fixture
def server() -> Iterator[LangfuseServer]:
    with langfuse_server() as running:
        yield running


def source(server: LangfuseServer, state: Path, now: datetime = NOW, waits: list[float] | None = None, page: int = 2) -> LangfuseApi:
    """A source that reads the server's last two days."""
    slept = [] if waits is None else waits
    return LangfuseApi(
        "s", lambda: LangfuseClient(server.url, KEYS, page, slept.append), state, USER_FEEDBACK, NOW - timedelta(days=2), (), lambda: now
    )


@pytest.mark.parametrize("has_v3", [True, False])
def test_all_pages_are_read_and_scores_find_their_generation(server: LangfuseServer, has_v3: bool, tmp_path: Path) -> None:
    server.observations = [observation(str(number)) for number in range(5)]
    server.has_v3 = has_v3
    server.scores = [rating("a", "1"), rating("b", "3", False), rating("c", "gone")]
    if not has_v3:
        server.scores = [
            row | {"traceId": row.pop("subject")["id"], "stringValue": "True", "value": float(row["value"])} for row in server.scores
        ]
    found = ingested(source(server, tmp_path), assumed=False)
    assert sorted(row["id"] for row in found.traces) == ["0", "1", "2", "3", "4"]
    assert {(one["trace_id"], one["value"]) for one in found.feedback} == {("1", 1.0), ("3", 0.0)}
    assert found.skipped["feedback"]["score_without_generation"] >= 1
    assert not list((tmp_path / "slices").iterdir())
    assert "secret" not in json.dumps(found.feedback)


def test_the_cursor_moves_when_the_lake_has_the_slice(server: LangfuseServer, tmp_path: Path) -> None:
    server.observations = [observation("a", 30)]
    first = source(server, tmp_path)
    batches = list(first.batches())  # the process ends here, before `done`
    assert batches
    assert len(ingested(source(server, tmp_path)).traces) >= 1
    assert list(source(server, tmp_path, NOW + timedelta(minutes=10)).batches()) == []  # too early
    server.observations.append(observation("b", -20))
    later = ingested(source(server, tmp_path, NOW + timedelta(hours=1)))
    assert {row["id"] for row in later.traces} == {"a", "b"}  # the last hour is read again
    assert server.requests[-2][1]["fromStartTime"] > "2026-11-18T10"


def test_a_busy_server_is_asked_again_after_the_time_it_says(server: LangfuseServer, tmp_path: Path) -> None:
    server.observations = [observation("a")]
    server.failures = [(429, {"Retry-After": "7"}), (503, {}), (500, {"Retry-After": "99999"})]
    waits: list[float] = []
    assert len(ingested(source(server, tmp_path, waits=waits)).traces) >= 1
    assert waits == [7.0, 2.0, 60.0]


def test_a_server_that_stays_busy_is_asked_at_the_next_ingest(server: LangfuseServer, tmp_path: Path) -> None:
    server.failures = [(502, {})] * 5
    with pytest.raises(Retryable, match="failed 5 times, the last time with HTTP 502"):
        list(source(server, tmp_path).batches())


def test_wrong_keys_and_other_servers_are_named(server: LangfuseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "wrong")
    with pytest.raises(ConfigError, match="refuses the keys"):
        list(opened("langfuse", None, tmp_path, base_url=server.url).batches())
    monkeypatch.delenv("LANGFUSE_SECRET_KEY")
    with pytest.raises(ConfigError, match="LANGFUSE_SECRET_KEY"):
        list(opened("langfuse", None, tmp_path, base_url=server.url).batches())
    server.body = b'{"hello": "world"}'
    with pytest.raises(ConfigError, match="does not answer like Langfuse"):
        list(source(server, tmp_path).batches())


def test_a_reply_is_bounded_and_a_redirect_is_not_followed(server: LangfuseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.failures = [(302, {"Location": "http://127.0.0.1:9/steal"})]
    with pytest.raises(ConfigError, match="HTTP 302"):
        list(source(server, tmp_path).batches())
    monkeypatch.setattr(client_module, "MAX_REPLY", 1000)
    server.body = b" " * 5000
    with pytest.raises(Retryable, match="larger than"):
        list(source(server, tmp_path).batches())


def test_pages_without_an_end_are_an_error(server: LangfuseServer, tmp_path: Path) -> None:
    server.body = b'{"data": [], "meta": {"cursor": "same"}}'
    with pytest.raises(Retryable, match="without an end"):
        list(source(server, tmp_path).batches())


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        (None, {}, "either `path`"),
        ("export", {"base_url": "https://x.example"}, "either `path`"),
        (None, {"base_url": "cloud.langfuse.com"}, "must be the address"),
        (None, {"base_url": "https://pk:sk@cloud.langfuse.com"}, "without keys"),
        (None, {"base_url": "https://x.example", "page": 5000}, "page"),
    ],
)
def test_settings_that_do_not_fit_are_refused(path: str | None, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        opened("langfuse", path, tmp_path, **options)


def test_the_state_has_no_content_and_no_name_of_a_user(server: LangfuseServer, tmp_path: Path) -> None:
    server.observations = [observation("a", 30)]
    ingested(source(server, tmp_path))
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"question" not in stored
    assert b"u1" not in stored


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1,)])
def test_the_cursor_does_not_pass_a_slice_that_the_lake_does_not_have(
    server: LangfuseServer, order: tuple[int, ...], tmp_path: Path
) -> None:
    reading = source(server, tmp_path)
    batches = list(reading.batches())  # without any calls
    assert len({batch.digest for batch in batches}) == len(batches) == 2
    cursor, ends = tmp_path / "cursor.json", [NOW - timedelta(days=1), NOW - timedelta(minutes=5)]
    for done, number in enumerate(order):
        reading.done(batches[number])
        finished = set(order[: done + 1])
        if 0 not in finished:
            assert not cursor.exists()
        else:
            assert json.loads(cursor.read_text())["until"] == ends[1 if 1 in finished else 0].isoformat()
    if order == (1,):  # the first one has failed
        assert len(list(reading.batches())) == 2


def test_an_observation_that_nests_too_deeply_costs_only_itself(server: LangfuseServer, tmp_path: Path) -> None:
    deep: Any = json.loads("[" * 300 + "]" * 300)
    server.observations = [observation("a") | {"input": deep}, observation("b")]
    found = ingested(source(server, tmp_path))
    assert {row["id"] for row in found.traces} == {"b"}
    assert set(reasons(found)) < {"too_deep", "malformed_json"}  # by the version of the parser
