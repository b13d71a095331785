"""Tests of pseudonyms: no user id is stored in clear, and lakes of earlier releases are rewritten once, also after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.materializer.lake.concealment import CONCEALED
from ratchet.runtime.secrets.keyring import read_keyring
from ratchet.runtime.secrets.pseudonyms import is_pseudonym, pseudonym
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans

pytestmark = pytest.mark.slow  # whole lakes are rewritten

DAY = 86_400_000_000_000
NEW = {"traces": ("sender", "verified", "consent_time"), "feedback": ("sender", "trusted")}
"""Columns that the tables of the earlier release did not have."""


def record(n: int) -> dict[str, Any]:
    values = {"id": f"j{n}", "timestamp": "2026-10-01T00:00:00Z", "user_id": f"jane-{n}", "session_id": f"talk-{n}", "messages": "hi"}
    return values | {"response": "hello", "consent": n % 2 == 0, "feedback": 1}


def everything() -> list[Any]:
    """Batches of all built-in dialects, over two days."""
    asked = [span(n, at=T0 + n % 2 * DAY, gen_ai__conversation__id=f"talk-{n}", user__id=f"jane-{n}") for n in range(1, 5)]
    rated = [log(n, evaluation("user_feedback", 1, at=T0 + n % 2 * DAY, user__id=f"jane-{n}")) for n in range(1, 5)]
    return [batch(spans(*asked)), batch(logs(*rated)), batch(record(5), record(6), source="app", kind="jsonl")]


def test_no_id_of_a_user_or_session_is_stored_in_clear_and_equal_ids_stay_equal(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    for one in everything():
        datasets.ingest(one)
    traces, feedback = datasets.lake.scan("traces"), datasets.lake.scan("feedback")
    assert len(traces) == len(feedback) == 6
    stored = [*traces["user"], *traces["session"], *feedback["rater"]]
    assert all(is_pseudonym(name) for name in stored)
    assert sorted(traces["user"]) == sorted(feedback["rater"])
    assert set(traces["user"]).isdisjoint(traces["session"])
    for file in (tmp_path / "lake").rglob("*"):
        assert not file.is_file() or b"jane-" not in file.read_bytes(), file
    key = read_keyring(tmp_path / "user-keys.json").keys[0]
    assert pseudonym("u", "jane-1", key) in set(traces["user"])
    assert key.secret not in str(stored)


def test_without_the_key_nothing_is_ingested(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    (tmp_path / "user-keys.json").unlink()
    with pytest.raises(ConfigError, match="pseudonyms"):
        datasets.ingest(everything()[0])
    assert datasets.cursor().traces == 0


def older_lake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Fill a lake as an earlier release: with ids in clear, and without the new columns. Return the snapshot that a tag pins."""
    datasets = make_datasets(folder)
    with monkeypatch.context() as patch:
        patch.setattr("ratchet.materializer.datasets.pseudonym", lambda _subject, text, _key: text)
        for one in everything():
            datasets.ingest(one)
    for name, columns in NEW.items():
        table = datasets.lake._table(name)
        with table.update_schema() as update:
            for column in columns:
                update.delete_column(column)
        with table.transaction() as transaction:
            transaction.remove_properties(CONCEALED)
        table.overwrite(table.scan().to_arrow())  # a snapshot of the smaller schema
    pinned = datasets.lake.pin("traces", "edition/math/1")
    assert pinned is not None
    assert "jane-1" in set(datasets.lake.scan("traces")["user"])
    return pinned


@pytest.mark.parametrize("crash", [None, "overwrite", "forget", "mark"])
def test_a_lake_of_an_earlier_release_is_rewritten_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: str | None) -> None:
    pinned = older_lake(tmp_path, monkeypatch)
    datasets = make_datasets(tmp_path)
    again = batch(log_of())
    if crash:
        with monkeypatch.context() as patch:
            _crash_at(crash, patch)
            with pytest.raises(KeyboardInterrupt):
                datasets.ingest(again)
        datasets = make_datasets(tmp_path)
    report = datasets.ingest(again)
    assert (report.feedback.duplicate, report.feedback.kept) == (1, 0), "the key of feedback contains its rater"
    traces, feedback = datasets.lake.scan("traces"), datasets.lake.scan("feedback")
    assert (len(traces), len(feedback)) == (6, 6)
    assert all(is_pseudonym(name) for name in [*traces["user"], *traces["session"], *feedback["rater"]])
    assert sorted(traces["user"]) == sorted(feedback["rater"])
    assert traces["verified"].to_list() == [None] * 6
    old = datasets.lake.scan("traces", snapshot=pinned)
    assert (len(old), "jane-1" in set(old["user"]), old["sender"].to_list()) == (6, True, [None] * 6)
    datasets.ingest(batch(spans(span(9, user__id="jane-9"))))
    assert datasets.lake.scan("traces")["verified"].to_list().count(False) == 1
    before = datasets.lake.snapshot("feedback")
    datasets.ingest(batch(spans(span(10))))
    assert datasets.lake.snapshot("feedback") == before


def test_a_withdrawal_finds_its_user_in_a_snapshot_that_an_earlier_release_has_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older_lake(tmp_path, monkeypatch)
    datasets = make_datasets(tmp_path)
    for table in ("traces", "feedback"):
        datasets.lake.pin(table, "s")  # type: ignore[arg-type]
    refusal = evaluation("user_consent", 0, at=T0 + 2 * DAY, user__id="jane-1") | {"eventName": "gen_ai.evaluation.result"}
    datasets.ingest(batch(logs(refusal)))
    settled = datasets._settled.read(None, "s")
    refused = settled.traces.filter(settled.traces["refused"] & settled.traces["messages"].is_not_null())
    assert refused["id"].to_list() == [span(1)["traceId"] + ":" + span(1)["spanId"]]
    assert len(settled.refusing) == 1
    assert set(settled.refusing) < set(settled.feedback["rater"])


def log_of() -> dict[str, Any]:
    return logs(log(1, evaluation("user_feedback", 1, at=T0 + DAY, user__id="jane-1")))


def _crash_at(where: str, patch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    if where == "overwrite":
        from pyiceberg.table import Table

        original, calls = Table.overwrite, iter(range(9))

        def second(*args: Any, **more: Any) -> None:
            if next(calls) == 1:
                raise KeyboardInterrupt
            original(*args, **more)

        patch.setattr(Table, "overwrite", second)
    elif where == "forget":
        patch.setattr("ratchet.materializer.lake.dedup_index.DedupIndex.forget", crash)
    else:
        patch.setattr("pyiceberg.table.Transaction.set_properties", crash)
