"""Tests with broken, unusual and hostile OTLP records, each with its accepted outcomes.

Ratchet does not mask personal data, so masking is not tested.
"""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.ids import digest_file
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.tables import joined, preferred
from tests.unit.materializer.conftest import governed_by_rules, make_datasets, pseudonym_of

pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def expected(traces: Path) -> list[dict[str, Any]]:
    records = json.loads((traces / "dirty" / "expected_dirty.json").read_text())["records"]
    return [record for record in records if record["format"] == "otlp"]


@pytest.fixture(scope="module")
def filled(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> LakeDatasets:
    path = traces / "dirty" / "otlp" / "traces.jsonl"
    datasets = make_datasets(tmp_path_factory.mktemp("dirty"))
    report = datasets.ingest(RawBatch("gateway", "otlp-json", digest_file(path), str(path), lambda: path.open("rb")))
    assert report.traces.adds_up
    assert report.traces.read == 76
    return datasets


def rows_of(datasets: LakeDatasets) -> dict[str, dict[str, Any]]:
    """The traces by their ids. The halves of a call are one trace."""
    return {row["id"]: row for row in preferred(joined(datasets.lake.scan("traces"))).iter_rows(named=True)}


def _is_half(row: dict[str, Any]) -> bool:
    """Whether it is the row of a span that was skipped because its content was not captured: its log records are in another file."""
    return row["consent"] and row["messages"] is None and row["status"] == "ok"


@pytest.mark.slow
def test_every_record_has_an_accepted_outcome(filled: LakeDatasets, expected: list[dict[str, Any]]) -> None:
    stored = rows_of(filled)
    reasons = defaultdict(list)
    for row in filled.lake.scan("quarantine").iter_rows(named=True):
        reasons[row["position"].partition(",")[0]].append((row["position"], row["reason"]))
    wrong = []
    for record in expected:
        identity = f"{record['record_id']['trace_id']}:{record['record_id']['span_id']}" if record["record_id"] else ""
        rejected = [
            reason for at, reason in reasons[f"line {record['line']}"] if ", span" not in at or at.endswith(f"span {record['index']}")
        ]
        if rejected:
            outcome = f"rejected:{rejected[0]}"
        elif identity in stored and _is_half(stored[identity]):
            outcome = "rejected:no_content"
        elif identity in stored and record["case"] != "duplicate":
            outcome = "rejected:failed_request" if stored[identity]["status"] == "error" else "kept"
        else:
            outcome = "rejected:duplicate" if record["case"] == "duplicate" else "rejected:not_a_generation"
        accepted = [*record["accept"], "kept"] if record["outcome"] == "masked" else record["accept"]
        if outcome not in accepted:
            wrong.append((record["case"], outcome, accepted))
    assert wrong == []


@pytest.mark.slow
def test_kept_records_have_the_expected_fields(filled: LakeDatasets, expected: list[dict[str, Any]]) -> None:
    stored = rows_of(filled)
    names = {"user_id": "user", "session_id": "session", "response": "answer"}
    compared = 0
    for record in expected:
        row = stored.get(f"{record['record_id']['trace_id']}:{record['record_id']['span_id']}") if record["record_id"] else None
        if record["outcome"] != "kept" or row is None or _is_half(row):
            continue
        for key, value in record["expect"].items():
            if key in ("messages", "response") and not record["expect"]["consent"]:
                value = None  # without consent, no content is stored
            found = row[names.get(key, key)] if key != "timestamp" else row["time"]
            if key == "timestamp":
                value = datetime.fromisoformat(value)
            elif key in ("user_id", "session_id") and value is not None:
                value = pseudonym_of(filled, "u" if key == "user_id" else "s", value)
            elif key == "messages" and found is not None:
                found = json.loads(found)
            assert found == value, (record["case"], key)
            compared += 1
    assert compared > 200


@pytest.mark.slow
def test_failed_calls_are_stored_but_excluded_from_training(filled: LakeDatasets) -> None:
    traces = preferred(joined(filled.lake.scan("traces")))
    governed = governed_by_rules(filled, traces)
    assert governed.out["failed_request"] == int((traces["status"] == "error").sum()) == 1
    assert len(governed.used) + sum(governed.out.values()) == len(traces)
    assert governed.used["time"].min() > datetime(2026, 10, 1, tzinfo=UTC)
