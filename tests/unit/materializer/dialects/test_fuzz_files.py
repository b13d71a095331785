"""Mutated records in files and in the lake: each record that a file has is stored, skipped, quarantined or a duplicate."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.materializer.dialects.decode import decode
from tests.soak_results import record
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.dialects.conversations import forms as f
from tests.unit.materializer.dialects.conversations.test_fuzz_conversations import mutate
from tests.unit.materializer.dialects.counting import records_in
from tests.unit.materializer.dialects.test_fuzz_batches import BYTES, RECORDS, USER, check_counts, derived_refusals, mutated
from tests.unit.materializer.receive.kinds import NOW, opened
from tests.unit.materializer.receive.langfuse.test_export import FIRST, generation, score, trace
from tests.unit.materializer.records import T0, raw

ROW: dict[str, Any] = {
    "id": "a",
    "time": T0,
    "user": USER,
    "consent": True,
    "prompt": json.dumps(f.HISTORY),
    "answer": f.ANSWER,
    "final_reward": 0.9,
    "meta": {"region": "eu", "session": "s"},
}
MAPPING = {
    "timestamp": "time",
    "user_id": "user",
    "messages": "prompt",
    "response": "answer",
    "region": "meta.region",
    "session_id": "meta.session",
}


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Return a table of any rows. A column whose values have no common type holds them as JSON, as text."""
    columns = {}
    for key in {key: None for row in rows for key in row}:
        values = [row.get(key) for row in rows]
        try:
            columns[key] = pa.array(values)
            pq.write_table(pa.table({key: columns[key]}), pa.BufferOutputStream())  # Parquet has no objects without keys
        except (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError):
            columns[key] = pa.array([value if isinstance(value, str) else _text(value) for value in values])
    return pa.table(columns)


def _text(value: Any) -> str | None:
    try:
        return None if value is None else json.dumps(value)
    except (ValueError, RecursionError):
        return "["


def _decoded(source: Any, mapping: dict[str, str], form: str) -> tuple[Decoded, dict[str, int]]:
    """Return what a source delivers, decoded, and its counts, which must add up to the lines of its batches."""
    whole, total = Decoded(), Counter[str]()
    for batch in list(source.batches()):
        found = decode(batch, Limits(NOW, True, mapping))
        with batch.open() as stream:
            lines = stream.read().split(b"\n") if not any(bad.reason == "damaged_file" for bad in found.bad) else []
        if lines and not mapping:
            total.update(check_counts(form, lines, found))
        whole.merge(found, batch.origin)
    return whole, dict(total)


def _outcomes(found: Decoded, kind: str) -> int:
    """Return the number of records of a kind that have an outcome."""
    rows = len(found.traces) if kind == "traces" else len(found.feedback) + len(found.consents)
    return rows + found.skipped[kind].total() + sum(bad.count for bad in found.bad if bad.kind == kind)  # type: ignore[index]


def attack_parquet(folder: Path, count: int, seed: int) -> dict[str, int]:
    """Read mutated rows in tables, some of which are damaged files. Assert the law of counts, and return the counts."""
    draw, total = random.Random(f"parquet/{seed}"), Counter[str]()
    for begin in range(0, count, 50):
        rows = [mutate({"row": dict(ROW, id=f"a{begin + at}")}, draw).get("row") for at in range(min(50, count - begin))]
        table = _table([row if isinstance(row, dict) else {"other": _text(row)} for row in rows])
        file = folder / "rows.parquet"
        pq.write_table(table, file)
        found, _ = _decoded(opened("parquet", file, folder / "state", MAPPING, reward={}), MAPPING, "jsonl")
        labels = len(found.feedback) + sum(bad.count for bad in found.bad if bad.kind == "feedback")
        assert _outcomes(found, "traces") == table.num_rows
        assert labels <= table.num_rows
        assert all(bad.reason and bad.reason != "dialect_failed" for bad in found.bad), found.bad
        total.update(read=table.num_rows + labels, stored=len(found.traces) + len(found.feedback))
        total.update(quarantined=sum(bad.count for bad in found.bad), skipped=sum(one.total() for one in found.skipped.values()))
        _check_damaged(file, table.num_rows, draw, folder)
    assert total["read"] == total["stored"] + total["skipped"] + total["quarantined"]
    return dict(total)


def _check_damaged(file: Path, rows: int, draw: random.Random, folder: Path) -> None:
    """Damage a file. What can be read of it is read, and what cannot is one damaged file, or a file that is not read."""
    data = bytearray(file.read_bytes())
    at = draw.randrange(len(data))
    data[at : at + draw.choice([0, 1, 40])] = draw.choice(BYTES)
    file.write_bytes(data)
    source = opened("parquet", file, folder / "state", MAPPING)
    found, _ = _decoded(source, MAPPING, "jsonl")
    damage = [bad for bad in found.bad if bad.reason == "damaged_file"]
    assert len(damage) + len(source.unread) <= 1
    assert damage or source.unread or _outcomes(found, "traces") == rows


def attack_export(folder: Path, count: int, seed: int) -> dict[str, int]:
    """Read mutated rows in the files of Langfuse's export. Assert the law of counts, and return the counts."""
    draw, total = random.Random(f"export/{seed}"), Counter[str]()
    for begin in range(0, count, 50):
        place = folder / str(begin)
        observations = [mutated(generation(f"o{at}", f"t{at}", metadata={"consent": True}), draw) for at in range(25)]
        scores = [mutated(score(f"s{at}", trace_id=f"t{at}", observation_id=draw.choice([None, f"o{at}"])), draw) for at in range(25)]
        traces = [mutated(trace(f"t{at}"), draw) if draw.random() < 0.2 else json.dumps(trace(f"t{at}")).encode() for at in range(25)]
        for table, lines in (("observations", observations), ("scores", scores), ("traces", traces)):
            (place / "p" / table).mkdir(parents=True)
            (place / "p" / table / f"{FIRST}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        source = opened("langfuse", place, place / "state")
        found, counts = _decoded(source, {}, "langfuse")
        expected = sum(records_in("langfuse", line, is_kept=True) for line in [*observations, *scores])
        assert counts["read"] == expected, source.unread
        assert all(bad.reason and bad.reason != "dialect_failed" for bad in found.bad), found.bad
        total.update(counts)
    return dict(total)


ATTACKS = {"parquet": attack_parquet, "langfuse, export files": attack_export}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_three_hundred_mutated_rows_in_files(name: str, tmp_path: Path) -> None:
    counts = ATTACKS[name](tmp_path, 300, seed=0)
    assert counts["stored"] > 0
    assert counts["quarantined"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("name", ATTACKS)
def test_ten_thousand_mutated_rows_in_files(name: str, tmp_path: Path) -> None:
    counts = ATTACKS[name](tmp_path, 10_000, seed=1)
    record("fuzz_files", {"form": name, "records": 10_000, **counts})


def attack_lake(folder: Path, name: str, count: int, seed: int, size: int) -> dict[str, int]:
    """Ingest batches of mutated records, and each of them again in another order. Assert the law of counts, and return the counts."""
    draw, total = random.Random(f"lake/{name}/{seed}"), Counter[str]()
    form, made = RECORDS[name]
    kind = {"otlp-json": "otlp", "jsonl": "jsonl"}.get(form, form)
    settings = {"name": "s", "kind": kind, "path": "x"}
    datasets = make_datasets(folder, make_loop(sources=[settings], governance={"consent": "assumed"}))
    for begin in range(0, count, size):
        lines = [mutated(made, draw) for _ in range(min(size, count - begin))]
        for order in (lines, lines[::-1]):
            batch = raw(b"\n".join(order) + b"\n", "s", form)
            decoded = decode(batch, Limits(NOW, True))
            expected = check_counts(form, order, decoded)["read"]
            report = datasets.ingest(batch)
            both = report.traces + report.feedback
            assert both.adds_up
            assert both.read == expected + derived_refusals(decoded), "records appeared or were lost on the way to the lake"
            stored = datasets.lake.scan("quarantine")
            stored = stored.filter(stored["batch"] == batch.digest)
            assert int(stored["parts"].sum() or 0) == both.quarantined, "a quarantined record has no entry"
            assert all(stored["reason"].to_list())
            total.update(read=both.read, kept=both.kept, duplicate=both.duplicate, skipped=both.skipped, quarantined=both.quarantined)
    return dict(total)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_mutated_records_in_the_lake(name: str, tmp_path: Path) -> None:
    counts = attack_lake(tmp_path, name, 100, seed=0, size=100)
    assert counts["read"] == counts["kept"] + counts["duplicate"] + counts["skipped"] + counts["quarantined"]
    assert counts["quarantined"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("name", RECORDS)
def test_ten_thousand_mutated_records_in_the_lake(name: str, tmp_path: Path) -> None:
    counts = attack_lake(tmp_path, name, 10_000, seed=1, size=1000)
    record("fuzz_lake", {"form": name, "records": 10_000, **counts})
