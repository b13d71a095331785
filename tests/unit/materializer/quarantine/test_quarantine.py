"""Tests of the quarantine: what is kept of a bad record, and the replay of records from their file or from the kept bytes."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.quarantine import QuarantineEntry, ReplayReport
from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ids import digest
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.dialects import jsonl, otlp
from ratchet.materializer.dialects.people import places
from ratchet.materializer.quarantine.kept import FILE
from ratchet.materializer.receive.files.source import FileSource
from ratchet.runtime.secrets.keyring import add_key, drop_old_keys
from tests.unit.materializer.conftest import NOW, make_datasets, make_loop, pseudonym_of
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, raw, span, spans

SHOP = Sender(name="shop", roles=(Role.TRACES, Role.FEEDBACK))
RECORD = {"id": "a", "timestamp": T0, "user_id": "ada", "session_id": "s1", "messages": "mail ada@example.org", "response": "ok"}


def received(*requests: Any, kind: str = "otlp-json", source: str = "gateway") -> RawBatch:
    return replace(batch(*requests, source=source, kind=kind), sender=SHOP)


def only(datasets: LakeDatasets) -> QuarantineEntry:
    [entry] = datasets.quarantine.entries()
    return entry


def replayed(datasets: LakeDatasets, dry_run: bool = False) -> ReplayReport:
    return datasets.quarantine.replay([entry.id for entry in datasets.quarantine.entries()], dry_run)


def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the decoder accept the origin `batch`, as a later release could."""
    monkeypatch.setattr(otlp, "ORIGINS", otlp.ORIGINS | {"batch"})
    monkeypatch.setattr(jsonl, "ORIGINS", otlp.ORIGINS)


def files(datasets: LakeDatasets, folder: Path, kind: str = "jsonl") -> list[Any]:
    return [datasets.ingest(one) for one in FileSource("app", kind, folder).batches()]


# What a row names, and what is kept


def test_a_row_names_file_and_place_and_keeps_masked_bytes_with_pseudonyms(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    (tmp_path / "in").mkdir()
    good = json.dumps(RECORD | {"consent": True}).encode() + b"\n"
    bad = json.dumps(RECORD | {"id": "b", "consent": True, "origin": "batch"}).encode()
    (tmp_path / "in/x.jsonl").write_bytes(good + bad + b"\n")
    files(datasets, tmp_path / "in")
    entry = only(datasets)
    assert (entry.origin, entry.position, entry.offset, entry.length) == (str(tmp_path / "in/x.jsonl"), "line 2", len(good), len(bad))
    assert (entry.reason, entry.kind, entry.parts, entry.cut, entry.state) == ("bad_origin", "traces", 1, False, None)
    assert entry.user == pseudonym_of(datasets, "u", "ada")
    assert entry.expires is not None
    assert (entry.expires - entry.first).days == 30
    content = datasets.quarantine.content(entry.id)
    assert content is not None
    kept = json.loads(content.text)
    assert kept["messages"] == "mail [EMAIL_1]"
    assert (kept["user_id"], kept["session_id"]) == (entry.user, pseudonym_of(datasets, "s", "s1"))
    assert (kept["id"], kept["timestamp"]) == ("b", T0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("consent", "assumed", "kept"),
    [(True, False, True), (None, False, False), (None, True, True), (False, True, False), (False, False, False), ("maybe", True, False)],
)
@pytest.mark.parametrize("form", ["jsonl", "otlp"])
def test_bytes_are_kept_only_with_consent(tmp_path: Path, consent: Any, assumed: bool, kept: bool, form: str) -> None:
    loop = make_loop(governance={"consent": "assumed" if assumed else "required"})
    datasets = make_datasets(tmp_path, loop)
    if form == "jsonl":
        record = RECORD | {"origin": "batch"} | ({} if consent is None else {"consent": consent})
        datasets.ingest(batch(record, source="app", kind="jsonl"))
    else:
        datasets.ingest(batch(spans(span(1, metadata__consent=consent, ratchet__origin="batch"))))
    entry = only(datasets)
    assert (datasets.quarantine.content(entry.id) is not None) is kept
    assert (entry.expires is not None) is kept
    store = tmp_path / "lake" / FILE
    assert kept or b"1 + 1" not in store.read_bytes()


@pytest.mark.slow
def test_a_resource_cannot_consent_for_a_signed_span_and_its_refusal_counts(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    one = span(1, metadata__consent=None, ratchet__origin="batch", ratchet__signature="v1:0:00")
    two = span(2, ratchet__origin="batch")
    for item, given in ((one, True), (two, False)):
        request = spans(item)
        request["resourceSpans"][0]["resource"] = {"attributes": [{"key": "metadata.consent", "value": {"boolValue": given}}]}
        datasets.ingest(batch(request))
    assert [datasets.quarantine.content(entry.id) for entry in datasets.quarantine.entries()] == [None, None]


def test_an_id_in_a_list_becomes_a_pseudonym_too(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(RECORD | {"user_id": ["ada", 7, None], "consent": True, "origin": "batch"}, source="app", kind="jsonl"))
    content = datasets.quarantine.content(only(datasets).id)
    assert content is not None
    assert json.loads(content.text)["user_id"] == [pseudonym_of(datasets, "u", "ada"), pseudonym_of(datasets, "u", "7")]


@pytest.mark.parametrize("keep", [False, True])
def test_a_setting_decides_whether_unreadable_records_keep_masked_bytes(tmp_path: Path, keep: bool) -> None:
    datasets = make_datasets(tmp_path, make_loop(quarantine={"keep_unreadable": keep}))
    datasets.ingest(batch(b'{"user_id": "ada", "messages": "mail ada@example.org', source="app", kind="jsonl"))
    entry = only(datasets)
    content = datasets.quarantine.content(entry.id)
    assert entry.reason == "malformed_json"
    if not keep:
        assert content is None
    else:
        assert content is not None
        assert content.text == f'{{"user_id": "{pseudonym_of(datasets, "u", "ada")}", "messages": "[4] [[7]]'
        assert b"mail" not in (datasets.lake.root / FILE).read_bytes()


def test_a_value_under_a_damaged_key_is_not_stored_in_clear_and_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)
    odd = {"key": "user.idx", "value": {"stringValue": "ada-1815"}}
    item = span(7, "a question", ratchet__origin="batch", app__setting="blue", user__id=None)
    datasets.ingest(received(spans(item | {"attributes": [*item["attributes"], odd]})))
    entry = only(datasets)
    content = datasets.quarantine.content(entry.id)
    assert content is not None
    for word in ("ada-1815", "blue"):
        assert word not in content.text
        assert word.encode() not in (datasets.lake.root / FILE).read_bytes()
    assert "[text of 8]" in content.text
    assert "a question" in content.text
    fixed(monkeypatch)
    monkeypatch.setitem(places._NAMES, "useridx", "user")  # type: ignore[index]  # a release that knows the key
    places.meaning.cache_clear()
    assert replayed(datasets).outcomes == {"resolved": 1}
    monkeypatch.undo()
    places.meaning.cache_clear()
    assert datasets.lake.scan("traces")["user"].to_list() == [pseudonym_of(datasets, "u", "ada-1815")]


def test_without_its_key_a_record_cannot_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(received(spans(span(7, ratchet__origin="batch"))))
    fixed(monkeypatch)
    add_key(tmp_path / "user-keys.json", NOW)
    drop_old_keys(tmp_path / "user-keys.json")
    later = make_datasets(tmp_path)
    assert replayed(later).outcomes == {"unavailable": 1}


def test_what_a_former_release_has_kept_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)
    record = spans(span(7, ratchet__origin="batch"))
    datasets.ingest(received(record))
    with closing(sqlite3.connect(datasets.lake.root / FILE)) as connection, connection:
        connection.execute("UPDATE kept SET content = ?", (json.dumps(record).encode(),))
        connection.execute("ALTER TABLE kept DROP COLUMN sealed")
    fixed(monkeypatch)
    assert replayed(datasets, dry_run=True).outcomes == {"resolved": 1}
    assert replayed(datasets).outcomes == {"resolved": 1}


def test_masking_that_fails_keeps_no_bytes_and_costs_no_other_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)

    def fails() -> Any:
        def mask(_value: Any) -> Any:
            raise ZeroDivisionError

        return mask

    monkeypatch.setattr(datasets._masker, "masked_value", fails)
    report = datasets.ingest(batch(spans(span(1, ratchet__origin="batch"), span(2))))
    assert (report.traces.kept, report.traces.quarantined) == (1, 1)
    assert datasets.quarantine.content(only(datasets).id) is None


@pytest.mark.slow
def test_bytes_are_limited_per_record_and_in_total(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(quarantine={"max_bytes": 1000, "max_total_bytes": 1500}))
    datasets.ingest(batch(*(spans(span(n, "x" * 2000, ratchet__origin="batch")) for n in (1, 2))))
    one, two = (datasets.quarantine.content(entry.id) for entry in datasets.quarantine.entries())
    assert one is not None
    assert (len(one.text), one.truncated, two) == (1000, True, None)
    assert replayed(datasets).outcomes == {"unavailable": 2}
    datasets.ingest(batch(spans(span(3, "x" * 20_000, ratchet__origin="batch"))))  # too large to be masked
    assert len([one for one in datasets.quarantine.entries() if datasets.quarantine.content(one.id)]) == 1


@pytest.mark.slow
def test_bytes_expire_and_a_refusal_of_the_user_deletes_them(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(received(spans(span(1, ratchet__origin="batch"))))
    datasets.ingest(received(spans(span(2, ratchet__origin="batch"))))
    first, second = datasets.quarantine.entries()
    refusal = {"consent_for": "user", "user_id": "user-1", "timestamp": T0, "consent": False}
    datasets.ingest(batch(refusal, source="app", kind="jsonl"))
    assert datasets.quarantine.content(first.id) is None
    assert datasets.quarantine.content(second.id) is not None
    datasets.clock.sleep(31 * 86_400)
    assert datasets.quarantine.content(second.id) is None
    assert datasets.quarantine.expire() == 1
    assert b"1 + 1" not in (tmp_path / "lake" / FILE).read_bytes()
    assert replayed(datasets).outcomes == {"unavailable": 2}


# Replay


@pytest.mark.slow
def test_a_received_record_is_replayed_from_its_kept_bytes_exactly_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)
    rating = evaluation("user_feedback", 1, user__id="user-7")
    datasets.ingest(received(spans(span(1), span(7, "call +49 30 901820", events=[rating], ratchet__origin="batch"), span(2))))
    entry = only(datasets)
    assert entry.origin == "received by traces+feedback/shop"
    assert entry.position == "line 1, span 1"
    assert replayed(datasets).outcomes == {"bad": 1}
    assert datasets.quarantine.entries() == [entry]
    fixed(monkeypatch)
    dry = replayed(datasets, dry_run=True)
    assert (dry.outcomes, dry.stored, dry.entries[0].by) == ({"resolved": 1}, 1, "kept")
    assert datasets.cursor().traces == 2
    report = replayed(datasets)
    assert (report.outcomes, report.stored) == ({"resolved": 1}, 1)
    row = next(row for row in datasets.lake.scan("traces").to_dicts() if row["origin"] == "batch")
    assert (row["user"], row["sender"], row["batch"]) == (pseudonym_of(datasets, "u", "user-7"), SHOP.label, entry.batch)
    assert "[PHONE_1]" in row["messages"]
    assert (datasets.cursor().traces, datasets.cursor().feedback) == (3, 1)
    assert replayed(datasets).entries == ()
    done = only(datasets)
    assert (done.state, done.reason, done.id) == ("resolved", "bad_origin", entry.id)
    assert datasets.quarantine.content(entry.id) is None


@pytest.mark.slow
def test_a_replay_that_was_interrupted_is_repeated_without_a_second_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(received(spans(span(1, ratchet__origin="batch"))))
    fixed(monkeypatch)
    append = datasets.lake.append

    def crash(name: Any, rows: Any, of: str, read: Any = None) -> None:
        if name == "quarantine":
            raise KeyboardInterrupt
        append(name, rows, of, read)

    quarantine = datasets.quarantine
    monkeypatch.setattr(quarantine._lake, "append", crash)
    with pytest.raises(KeyboardInterrupt):
        quarantine.replay([only(datasets).id])
    monkeypatch.setattr(quarantine._lake, "append", append)
    assert (datasets.cursor().traces, only(datasets).is_open) == (1, True)
    report = replayed(datasets)
    assert (report.outcomes, report.stored) == ({"resolved": 1}, 0)
    assert datasets.cursor().traces == 1


@pytest.mark.slow
def test_a_record_is_replayed_from_its_file_without_kept_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path, make_loop(quarantine={"keep_days": 0}))
    (tmp_path / "in").mkdir()
    with gzip.open(tmp_path / "in/x.jsonl.gz", "wb") as file:
        file.write(b"\n".join(json.dumps(RECORD | {"id": str(n), "consent": True, "origin": "batch"}).encode() for n in range(3)))
    files(datasets, tmp_path / "in")
    fixed(monkeypatch)
    report = replayed(datasets)
    assert (report.outcomes, report.stored) == ({"resolved": 3}, 3)
    assert {one.by for one in report.entries} == {"file"}
    assert set(datasets.lake.scan("traces")["user"]) == {pseudonym_of(datasets, "u", "ada")}


def test_a_file_that_has_changed_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path, make_loop(quarantine={"keep_days": 0}))
    (tmp_path / "in").mkdir()
    line = json.dumps(RECORD | {"consent": True, "origin": "batch"})
    (tmp_path / "in/x.jsonl").write_text(line + "\n")
    files(datasets, tmp_path / "in")
    (tmp_path / "in/x.jsonl").write_text(line.replace("ada@", "eve@") + "\n")
    fixed(monkeypatch)
    report = replayed(datasets)
    assert report.outcomes == {"unavailable": 1}
    assert "send the record again" in report.entries[0].detail


@pytest.mark.slow
def test_a_pseudonym_in_a_file_is_an_id_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a record could name the user of another one by a pseudonym."""
    datasets = make_datasets(tmp_path)
    other = pseudonym_of(datasets, "u", "ada")
    datasets.ingest(received(spans(span(1, user__id=other, ratchet__origin="batch"))))
    grow(tmp_path / "in", json.dumps(RECORD | {"user_id": other, "consent": True, "origin": "batch"}).encode() + b"\n")
    files(datasets, tmp_path / "in")
    fixed(monkeypatch)
    report = replayed(datasets)
    assert ({one.by for one in report.entries}, report.stored) == ({"file", "kept"}, 2)
    assert set(datasets.lake.scan("traces")["user"]) == {pseudonym_of(datasets, "u", other)}


def test_a_replay_uses_the_role_that_the_sender_had(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    rater = Sender(name="poll", roles=(Role.FEEDBACK,))
    datasets.ingest(replace(batch(spans(span(1))), sender=rater))
    assert only(datasets).reason == "role_not_allowed"
    assert replayed(datasets).outcomes == {"bad": 1}
    assert datasets.cursor().traces == 0


@pytest.mark.slow
def test_a_conflict_of_ids_stays_one(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(received(spans(span(1)), spans(span(1, answer="A: 3"))))
    assert only(datasets).reason == "id_conflict"
    assert only(datasets).position == "line 2, span 0"
    assert replayed(datasets).outcomes == {"bad": 1}
    assert datasets.lake.scan("traces")["answer"].to_list() == ["A: 2"]


@pytest.mark.slow
def test_a_record_that_is_bad_for_another_reason_keeps_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(received(spans(span(1, ratchet__origin="batch"))))

    def other(_value: Any) -> str:
        raise Rejected("bad_value", "still wrong")

    monkeypatch.setattr(otlp, "_origin", other)
    assert replayed(datasets).outcomes == {"bad": 1}
    entry = only(datasets)
    assert (entry.reason, entry.detail, entry.is_open) == ("bad_value", "still wrong", True)
    rows = datasets.lake.size("quarantine")[0]
    replayed(datasets)
    assert datasets.lake.size("quarantine")[0] == rows == 2


@pytest.mark.slow
def test_parts_of_one_request_are_entries_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)
    request = spans(span(1, ratchet__origin="batch"), span(2) | {"traceId": ""}, span(3, ratchet__origin="batch"))
    opinions = logs(log(1, evaluation("user_feedback", 7)), log(3, evaluation("user_feedback", 1)))
    report = datasets.ingest(received(request, opinions))
    assert report.traces.quarantined + report.feedback.quarantined == len(datasets.quarantine.entries()) == 4
    fixed(monkeypatch)
    found = replayed(datasets)
    assert (found.outcomes, found.stored) == ({"bad": 1, "resolved": 2, "unavailable": 1}, 2)
    assert {one.reason for one in found.entries if one.outcome == "unavailable"} == {"rating_scale"}  # feedback states no consent
    assert sum(found.outcomes.values()) == len(found.entries) == 4
    assert [entry.state for entry in datasets.quarantine.entries()].count("resolved") == 2


@pytest.mark.slow
def test_a_file_with_many_bad_parts_is_replayed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = make_datasets(tmp_path)
    (tmp_path / "in").mkdir()
    request = spans(*(span(n, ratchet__origin="batch") for n in range(1, 131)))
    (tmp_path / "in/x.jsonl").write_text(json.dumps(request) + "\n")
    files(datasets, tmp_path / "in", "otlp")
    entries = datasets.quarantine.entries()
    assert (len(entries), sum(entry.parts for entry in entries)) == (101, 130)
    fixed(monkeypatch)
    report = replayed(datasets)
    assert (report.outcomes, report.stored) == ({"resolved": 101}, 130)


# Files that grow


def grow(folder: Path, data: bytes, name: str = "x.jsonl") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)


@pytest.mark.slow
def test_a_cut_last_line_is_resolved_when_the_whole_line_arrives(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    lines = [json.dumps(RECORD | {"id": str(n), "consent": True}).encode() + b"\n" for n in range(3)]
    grow(tmp_path / "in", lines[0] + lines[1][:40])
    [first] = files(datasets, tmp_path / "in")
    assert (first.traces.kept, first.traces.quarantined) == (1, 1)
    assert only(datasets).cut
    grow(tmp_path / "in", lines[0] + lines[1][:60])
    files(datasets, tmp_path / "in")
    assert sorted(entry.state or "open" for entry in datasets.quarantine.entries()) == ["open", "replaced"]
    grow(tmp_path / "in", b"".join(lines))
    [last] = files(datasets, tmp_path / "in")
    assert (last.traces.kept, last.traces.duplicate) == (2, 1)
    assert sorted(entry.state or "open" for entry in datasets.quarantine.entries()) == ["replaced", "resolved"]
    assert replayed(datasets).entries == ()


@pytest.mark.slow
def test_a_cut_line_can_be_replayed_when_its_file_has_grown(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    line = json.dumps(RECORD | {"consent": True}).encode()
    grow(tmp_path / "in", line[:50])
    files(datasets, tmp_path / "in")
    grow(tmp_path / "in", line + b"\n")
    report = replayed(datasets)
    assert (report.outcomes, report.stored) == ({"resolved": 1}, 1)
    [again] = files(datasets, tmp_path / "in")
    assert (again.traces.kept, again.traces.duplicate, datasets.cursor().traces) == (0, 1, 1)


@pytest.mark.slow
def test_a_cut_gzip_stream_is_resolved_when_it_is_complete(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    lines = b"".join(json.dumps(RECORD | {"id": str(n), "consent": True, "x": digest(n)}).encode() + b"\n" for n in range(50))
    whole = gzip.compress(lines)
    grow(tmp_path / "in", whole[: len(whole) // 2], "x.jsonl.gz")
    files(datasets, tmp_path / "in")
    assert only(datasets).reason == "damaged_file"
    grow(tmp_path / "in", whole, "x.jsonl.gz")
    files(datasets, tmp_path / "in")
    assert only(datasets).state == "resolved"
    assert datasets.cursor().traces == 50


@pytest.mark.slow
def test_a_bad_line_of_a_growing_file_is_one_entry(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    bad = b"{broken}\n"
    for n in range(3):
        grow(tmp_path / "in", bad + json.dumps(RECORD | {"id": str(n), "consent": True}).encode() * (n > 0) + b"\n" * n)
        files(datasets, tmp_path / "in")
    assert only(datasets).reason == "malformed_json"
    assert datasets.lake.size("quarantine")[0] == 3


# Sources


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_an_array_of_records_is_read_as_records(tmp_path: Path, name: str) -> None:
    datasets = make_datasets(tmp_path)
    text = json.dumps([RECORD | {"id": str(n), "consent": True} for n in range(3)] + [7], indent=2).encode()
    grow(tmp_path / "in", gzip.compress(text) if name.endswith("gz") else text, name)
    [report] = files(datasets, tmp_path / "in")
    assert (report.traces.kept, report.traces.reasons) == (3, {"wrong_type": 1})
    assert only(datasets).position == "line 4"


def test_an_array_of_otlp_requests_is_read_as_requests(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    grow(tmp_path / "in", json.dumps([spans(span(1)), spans(span(2))], indent=1).encode(), "x.json")
    [report] = files(datasets, tmp_path / "in", "otlp")
    assert report.traces.kept == 2


# Tables and counts


def test_counts_of_the_window_count_a_batch_once(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    one = batch(spans(span(1), span(2) | {"traceId": ""}), b"{broken")
    for _ in range(2):
        datasets.ingest(one)
    counts = datasets.quarantine.counts(0)
    assert (counts.read, counts.quarantined, counts.reasons) == (3, 2, {"malformed_json": 1, "missing_id": 1})
    assert datasets.quarantine.counts(2e9).read == 0


@pytest.mark.slow
def test_protobuf_frames_are_kept_as_json_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    from tests.unit.materializer.records import request_of

    datasets = make_datasets(tmp_path)
    request = request_of(2)
    request.resource_spans[0].scope_spans[0].spans[1].attributes.append(
        KeyValue(key="ratchet.origin", value=AnyValue(string_value="batch"))
    )
    body = request.SerializeToString()
    frame = b"T" + len(body).to_bytes(4, "big") + body
    report = datasets.ingest(replace(raw(frame * 2, kind="otlp-proto"), sender=SHOP))
    assert (report.traces.kept, report.traces.duplicate, report.traces.quarantined) == (1, 1, 2)
    assert [entry.position for entry in datasets.quarantine.entries()] == ["frame 1, span 1", "frame 2, span 1"]
    assert [entry.offset for entry in datasets.quarantine.entries()] == [0, len(frame)]
    fixed(monkeypatch)
    found = replayed(datasets)
    assert (found.outcomes, found.stored) == ({"resolved": 2}, 1)
