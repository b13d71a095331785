"""Tests of tables: nested columns, times, columns with JSON, and columns with rewards."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.errors import ConfigError
from tests.unit.materializer.receive.kinds import ingested, opened, reasons

MAPPING = {
    "id": "row",
    "timestamp": "when",
    "messages": "chat",
    "response": "reply.text",
    "user_id": "meta.user.id",
    "consent": "meta.consent",
}
REWARDS = (0.9, 0.7, 0.69, 0.5, 0.49, None)


def write(path: Path, **more: Any) -> None:
    """A table with one row per reward."""
    rows = range(len(REWARDS))
    columns = {
        "row": list(rows),
        "when": pa.array([datetime(2026, 1, 1, 12, number, tzinfo=UTC) for number in rows], pa.timestamp("us", tz="UTC")),
        "chat": [[{"role": "user", "content": f"question {number}"}] for number in rows],
        "reply": [{"text": f"answer {number}"} for number in rows],
        "meta": [json.dumps({"user": {"id": f"u{number}"}, "consent": True}) for number in rows],
        "final_reward": list(REWARDS),
    }
    pq.write_table(pa.table(columns | more), path, row_group_size=2)


def test_a_table_is_read_with_a_mapping(tmp_path: Path) -> None:
    write(tmp_path / "calls.parquet")
    found = ingested(opened("parquet", tmp_path, tmp_path / "state", MAPPING), MAPPING, assumed=False)
    assert [(row["id"], row["answer"], row["user"], row["consent"]) for row in found.traces] == [
        (str(number), f"answer {number}", f"u{number}", True) for number in range(len(REWARDS))
    ]
    assert found.traces[1]["time"] == int(datetime(2026, 1, 1, 12, 1, tzinfo=UTC).timestamp() * 1_000_000)
    assert (found.feedback, found.bad) == ([], [])


def test_rewards_become_ratings_with_the_two_thresholds(tmp_path: Path) -> None:
    write(tmp_path / "calls.parquet")
    source = opened("parquet", tmp_path, tmp_path / "state", MAPPING, reward={})
    assert [(row["trace_id"], row["value"]) for row in ingested(source, MAPPING).feedback] == [("0", 1.0), ("1", 1.0), ("4", 0.0)]


def test_rewards_become_references_only_if_the_loop_file_says_so(tmp_path: Path) -> None:
    write(tmp_path / "calls.parquet")
    source = opened("parquet", tmp_path, tmp_path / "state", MAPPING, reward={"becomes": "reference", "good": 0.8})
    found = ingested(source, MAPPING)
    assert [row["reference"] for row in found.traces] == ["answer 0", None, None, None, None, None]
    assert found.feedback == []


@pytest.mark.parametrize(
    ("mapping", "reward", "message"),
    [({}, {"good": 0.4}, "must not be above"), ({"feedback": "stars"}, {}, "not both"), ({}, {"becomes": "truth"}, "reward")],
)
def test_settings_that_contradict_each_other_are_refused(
    mapping: dict[str, str], reward: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        opened("parquet", tmp_path, tmp_path, mapping, reward=reward)


def test_a_damaged_table_is_quarantined(tmp_path: Path) -> None:
    write(tmp_path / "calls.parquet")
    whole = (tmp_path / "calls.parquet").read_bytes()
    (tmp_path / "calls.parquet").write_bytes(whole[: len(whole) // 2])
    found = ingested(opened("parquet", tmp_path, tmp_path / "state", MAPPING), MAPPING)
    assert (found.traces, reasons(found)) == ([], {"damaged_file": 1})


def test_a_table_as_csv_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "calls.csv").write_text('id,timestamp,messages,response\n1,2026-01-01T00:00:00Z,"Which, of these?",Both\n')
    found = ingested(opened("parquet", tmp_path, tmp_path / "state"))
    assert [(row["id"], json.loads(row["messages"])[0]["content"], row["answer"]) for row in found.traces] == [
        ("1", "Which, of these?", "Both")
    ]
