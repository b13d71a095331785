"""Tests of ingestion: each record is stored exactly once and counts add up, for any input and after a crash."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.errors import Retryable
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.tables import Lake, Read, TableName
from ratchet.materializer.receive.files.source import FileSource
from tests.unit.materializer.conftest import governed_by_rules, make_datasets, make_loop
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans


def test_bad_span_does_not_affect_other_spans(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    report = datasets.ingest(batch(spans(span(1), span(2) | {"traceId": ""}, 7, span(3)), b"{broken", spans(span(4))))
    assert report.traces.model_dump(exclude={"unsigned"}) == {
        "read": 6,
        "kept": 3,
        "duplicate": 0,
        "skipped": 0,
        "quarantined": 3,
        "reasons": {"malformed_json": 1, "missing_id": 1, "wrong_type": 1},
    }
    bad = datasets.lake.scan("quarantine").sort("position")
    assert bad["position"].to_list() == ["line 1, span 1", "line 1, span 2", "line 2"]


def test_two_broken_parts_of_one_request_are_two_entries(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    broken = {"resourceSpans": [7, 8, {"scopeSpans": [9, {"spans": 1}]}]}
    report = datasets.ingest(batch(broken))
    assert report.traces.reasons == {"wrong_type": 4}
    assert datasets.lake.scan("quarantine").sort("position")["position"].to_list() == [
        "line 1, resourceSpans 0",
        "line 1, resourceSpans 1",
        "line 1, resourceSpans 2, scopeSpans 0",
        "line 1, resourceSpans 2, scopeSpans 1",
    ]


@pytest.mark.slow
def test_equal_record_is_a_duplicate_and_different_record_with_the_same_id_is_a_conflict(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    report = datasets.ingest(batch(spans(span(1), span(1), span(1, answer="A: 3"))))
    assert (report.traces.kept, report.traces.duplicate, report.traces.reasons) == (1, 1, {"id_conflict": 1})
    later = datasets.ingest(batch(spans(span(1)), spans(span(1, answer="A: 4"))))
    assert (later.traces.kept, later.traces.duplicate, later.traces.reasons) == (0, 1, {"id_conflict": 1})
    assert datasets.lake.scan("traces")["answer"].to_list() == ["A: 2"]
    assert datasets.lake.scan("quarantine").height == 2


def test_different_sources_may_use_the_same_ids(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    assert datasets.ingest(batch(spans(span(1)))).traces.kept == 1
    assert datasets.ingest(batch(spans(span(1)), source="other")).traces.kept == 1


def test_without_consent_only_metadata_is_kept(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    correction = evaluation("user_correction", text="secret words")
    quiet = span(1, "secret prompt", "secret answer", [correction], metadata__consent=False, metadata__reference="secret reference")
    report = datasets.ingest(batch(spans(quiet, span(2, "secret too", metadata__consent=None))))
    assert report.traces.kept == 2
    assert report.feedback.reasons == {"no_consent": 1}
    for table in ("traces", "feedback", "quarantine"):
        assert "secret" not in str(datasets.lake.scan(table).to_dicts())  # type: ignore[arg-type]


def test_partial_answer_is_not_stored_and_its_trace_is_never_used(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    broken = span(1, answer="half", ratchet__partial=True) | {"status": {"code": 2}}
    left = span(2, answer="half", ratchet__partial=True, ratchet__refused=True)
    unmarked = span(3, answer="half", ratchet__partial=True)
    nothing = span(4, answer="", ratchet__partial=True, ratchet__refused=True)
    whole = span(5, answer="a whole answer")
    assert datasets.ingest(batch(spans(broken, left, unmarked, nothing, whole))).traces.kept == 5
    rows = datasets.lake.scan("traces").sort("id")
    assert rows["status"].to_list() == ["error", "refused", "refused", "refused", "ok"]
    assert rows["answer"].to_list() == [None, None, None, None, "a whole answer"]
    governed = governed_by_rules(datasets, rows)
    assert governed.used["answer"].to_list() == ["a whole answer"]
    assert governed.out == {"partial_answer": 4}


def test_assumed_consent_does_not_override_refused_consent(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(governance={"consent": "assumed"}))
    datasets.ingest(batch(spans(span(1, metadata__consent=None), span(2, metadata__consent=False))))
    rows = datasets.lake.scan("traces").sort("id")
    assert rows["answer"].to_list() == ["A: 2", None]
    assert rows["consent"].to_list() == [False, False]  # the record does not state consent


def test_feedback_may_arrive_before_its_trace(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    by_response = evaluation("user_feedback", 1, gen_ai__response__id="r-2") | {"eventName": "gen_ai.evaluation.result"}
    early = datasets.ingest(batch(logs(log(1, evaluation("user_feedback", 0)), by_response)))
    assert (early.feedback.kept, early.feedback.parked) == (2, 2)
    datasets.ingest(batch(spans(span(1), span(2))))
    late = datasets.ingest(batch(logs(log(1, evaluation("user_feedback", 1, at=T0 + 99_000)))))
    assert (late.feedback.kept, late.feedback.parked) == (1, 0)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (evaluation("user_feedback", 7), "rating_scale"),
        (evaluation("user_feedback"), "bad_value"),
        (evaluation("user_correction"), "bad_value"),
        (evaluation("user_feedback", 1, at=1), "bad_timestamp"),
        (evaluation("toxicity", 1), "other_evaluation"),
    ],
)
def test_invalid_feedback_is_counted(tmp_path: Path, event: dict[str, Any], reason: str) -> None:
    report = make_datasets(tmp_path).ingest(batch(logs(log(1, event))))
    assert report.feedback.adds_up
    assert (report.feedback.kept, report.feedback.reasons) == (0, {reason: 1})


def test_jsonl_with_mapped_field_names(tmp_path: Path) -> None:
    sources = [{"name": "app", "kind": "jsonl", "path": "x", "mapping": {"response": "out.text", "id": "meta.key"}}]
    datasets = make_datasets(tmp_path, make_loop(sources=sources))
    record = {"meta": {"key": "k1"}, "timestamp": "2026-10-01T00:00:00Z", "messages": "How?", "out": {"text": "So."}, "consent": True}
    report = datasets.ingest(
        batch(record | {"feedback": True, "user_id": "u"}, record | {"out": None, "meta": {"key": "k2"}}, source="app", kind="jsonl")
    )
    assert (report.traces.kept, report.traces.reasons, report.feedback.kept) == (1, {"empty_response": 1}, 1)
    row = datasets.lake.scan("traces").to_dicts()[0]
    assert (row["id"], row["answer"], json.loads(row["messages"])) == ("k1", "So.", [{"role": "user", "content": "How?"}])


class Crash(Exception):
    """Simulates the end of the process."""


class CrashingLake(Lake):
    """Raises Crash at commit number `at`, just before or just after it."""

    def __init__(self, root: Path, at: int, after: bool) -> None:
        super().__init__(root)
        self.left, self.after = at, after

    def append(self, name: TableName, rows: pa.Table, batch: str, read: Read | None = None) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crash
        super().append(name, rows, batch, read)
        if self.left == 0:
            raise Crash


def _whole() -> RawBatch:
    rated = span(1, events=[evaluation("user_feedback", 1)])
    silent, late = span(3, metadata__consent=None), span(2, metadata__consent=False)
    refused = evaluation("user_consent", 0, user__id="user-1")
    return batch(
        spans(rated, span(2), span(2), rated, silent, span(3), late, span(4, metadata__consent=False)),
        b"{",
        logs(log(2, evaluation("user_feedback", 0)), log(9, evaluation("x", 1)), log(1, refused), log(1, refused)),
    )


def _contents(datasets: LakeDatasets) -> list[list[dict[str, Any]]]:
    tables: tuple[TableName, ...] = ("traces", "feedback", "consent", "quarantine")
    return [sorted(datasets.lake.scan(name).drop("ingested").to_dicts(), key=str) for name in tables]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_ingesting_again_after_a_crash_gives_the_same_lake(tmp_path: Path, at: int, after: bool) -> None:
    undisturbed = make_datasets(tmp_path / "undisturbed")
    report = undisturbed.ingest(_whole())
    assert (report.traces.kept, report.feedback.kept, report.consent_changed) == (5, 3, 3)
    crashed = make_datasets(tmp_path / "crashed")
    crashed.lake = crashed._seen.lake = CrashingLake(tmp_path / "crashed" / "lake", at, after)
    with pytest.raises(Crash):
        crashed.ingest(_whole())
    again = make_datasets(tmp_path / "crashed")
    assert again.ingest(_whole()) == report
    assert _contents(again) == _contents(undisturbed)


@pytest.mark.slow
def test_truncated_file_gives_its_readable_records_and_is_reported(tmp_path: Path) -> None:
    whole = b"".join(json.dumps(spans(span(n))).encode() + b"\n" for n in range(1, 400))
    path = tmp_path / "day.jsonl.gz"
    path.write_bytes(gzip.compress(whole)[:-500])
    report = make_datasets(tmp_path).ingest(next(FileSource("gateway", "otlp", path).batches()))
    assert report.traces.adds_up
    assert report.traces.kept > 100
    assert report.traces.reasons.get("damaged_file", 0) + report.traces.reasons.get("malformed_json", 0) >= 1


def test_missing_file_is_retryable(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    path.write_bytes(b"{}")
    gone = next(FileSource("gateway", "otlp", path).batches())
    path.unlink()
    with pytest.raises(Retryable, match="restore the file, then ingest again"):
        make_datasets(tmp_path).ingest(gone)


@pytest.mark.slow
def test_lost_index_is_rebuilt_from_the_lake(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1), span(2))))
    for file in (tmp_path / "lake").glob("seen.sqlite*"):
        file.unlink()
    assert datasets.ingest(batch(spans(span(2), span(3)))).traces.duplicate == 1


@pytest.mark.slow
def test_index_of_another_version_is_built_again(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1), span(2, metadata__consent=None))))
    other = "CREATE TABLE {} (key BLOB PRIMARY KEY, batch BLOB NOT NULL, content BLOB NOT NULL) WITHOUT ROWID"
    with closing(sqlite3.connect(tmp_path / "lake" / "seen.sqlite")) as index, index:
        index.execute("PRAGMA user_version = 0")
        for table in ("traces", "feedback", "quarantine"):
            index.execute(f"DROP TABLE {table}")
            index.execute(other.format(table))
        index.execute("DROP TABLE consent")
    report = datasets.ingest(batch(spans(span(1), span(2))))
    assert (report.traces.duplicate, report.traces.kept, report.consent_changed) == (1, 1, 1)


def test_write_error_is_retryable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("ratchet.materializer.lake.data_files.write_file", refuse)
    with pytest.raises(Retryable, match=r"cannot write 1 rows to traces in .*: no space left on device; free disk space, then try again"):
        make_datasets(tmp_path).ingest(batch(spans(span(1))))


_BROKEN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3),
)


@st.composite
def _spans(draw: st.DrawFn) -> Any:
    item = span(draw(st.integers(0, 5)), answer=draw(st.sampled_from(["A: 2", "", "A: 3"])), events=draw(st.lists(_BROKEN, max_size=2)))
    for key in draw(st.sets(st.sampled_from(sorted(item)), max_size=2)):
        item[key] = draw(_BROKEN)
    return draw(st.sampled_from([item, item, item, draw(_BROKEN)]))


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(items=st.lists(_spans(), max_size=6), feedback=st.lists(st.integers(0, 5) | _BROKEN, max_size=4))
def test_counts_add_up_for_any_input(tmp_path_factory: pytest.TempPathFactory, items: list[Any], feedback: list[Any]) -> None:
    datasets = make_datasets(tmp_path_factory.mktemp("counts"))
    records = [log(item, evaluation("user_feedback", 1)) if isinstance(item, int) and 0 <= item <= 5 else item for item in feedback]
    request = batch(spans(*items), logs(*records))
    report = datasets.ingest(request)
    assert report.traces.adds_up
    assert report.feedback.adds_up
    assert report.traces.read == len(items)
    assert report.feedback.read >= len(records)
    assert (datasets.cursor().traces, datasets.cursor().feedback) == (report.traces.kept, report.feedback.kept)
    assert datasets.lake.size("quarantine")[0] == report.traces.quarantined + report.feedback.quarantined
    assert datasets.ingest(request).traces == report.traces
    again = datasets.ingest(batch(spans(*items), logs(*records), b""))
    assert (again.traces.kept, again.feedback.kept) == (0, 0)


def test_invalid_slice_name_is_dropped(tmp_path: Path) -> None:
    """Slice names are parts of metric names and reports, so invalid names are dropped. The rest of the trace is kept."""
    said = ["billing/eu 2", "a{b}", "it's", "x" * 65, "<b>"]
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(*(span(n, metadata__slice=text) for n, text in enumerate(said, 1)))))
    assert sorted(datasets.lake.scan("traces", ("slice",))["slice"].to_list(), key=str) == [None] * 4 + ["billing/eu 2"]
