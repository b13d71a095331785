"""Traces that are stored as columns give the same lake, index and counts as those that are sorted one by one."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.storing import common_traces
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import T0, batch

_TABLES = ("traces", "feedback", "consent", "quarantine")


def _record(rng: random.Random) -> dict[str, Any]:
    """Return a record with an id that often repeats. Some are not plain, and some only state consent."""
    identity = f"{rng.choice('ab')}{rng.randint(0, 25)}{rng.choice(('', '', ':1', ':2'))}"
    if rng.random() < 0.15:
        subject = rng.choice(("trace", "user", "session"))
        named = identity if subject == "trace" else f"{subject[0]}{rng.randint(0, 4)}"
        return {"id": named, "timestamp": T0 // 1000 + rng.randint(0, 3), "consent_for": subject, "consent": rng.random() < 0.5}
    made: dict[str, Any] = {
        "id": identity,
        "timestamp": T0 // 1000 + rng.choice((0, 0, 1)),
        "messages": [{"role": "user", "content": f"write to {rng.choice(('ada@example.org', 'us'))}"}],
        "response": rng.choice(("Yes.", "Yes.", "No.")),
        "consent": rng.choice((True, True, True, False, None)),
        "user_id": rng.choice((None, "u1", "u2")),
        "session_id": rng.choice((None, "s1", "s2")),
    }
    if rng.random() < 0.4:
        made |= {
            "feedback": rng.choice((0, 1)),
            "response_id": rng.choice(("r1", "r2", identity)),
            "model_version": rng.choice((None, "v1")),
        }
    if rng.random() < 0.1:
        made |= rng.choice(({"correction": "Maybe."}, {"timestamp": "x"}, {"response": ""}, {"reference": "Yes."}))
    return made


def _state(datasets: LakeDatasets) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for table in _TABLES:
        rows = datasets.lake.scan(table)  # type: ignore[arg-type]
        found[table] = sorted(rows.drop("ingested", *(("expires",) if table == "quarantine" else ())).rows(), key=repr)
        datasets._seen.catch_up(table)  # type: ignore[arg-type]
    with closing(sqlite3.connect(datasets.lake.root / "seen.sqlite")) as index:
        for table in (*_TABLES, "names"):
            found[f"index of {table}"] = sorted(index.execute(f"SELECT * FROM {table}").fetchall())
    return found


def _hold_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> tuple[int, int]:
    """Ingest the same batches both ways and compare. Return the numbers of traces that were stored as columns, and of all traces."""
    rng, taken = random.Random(seed), [0]
    batches = [batch(*(_record(rng) for _ in range(40)), kind="jsonl") for _ in range(4)]
    batches.append(batches[1])  # a batch that comes again
    one, other = make_datasets(tmp_path / "one"), make_datasets(tmp_path / "other")
    take = common_traces._concerned

    def counted(lake: Any, seen: Any, decoded: Any, plain: Any, keys: Any) -> set[int]:
        found = take(lake, seen, decoded, plain, keys)
        taken[0] += len(plain) - len(found)
        return found

    for part in batches:
        with monkeypatch.context() as patched:
            patched.setattr(common_traces, "_concerned", counted)
            first = one.ingest(part)
        with monkeypatch.context() as patched:
            patched.setattr(common_traces, "_concerned", lambda _lake, _seen, _decoded, plain, _keys: set(range(len(plain))))
            second = other.ingest(part)
        assert first == second
    mine, its = _state(one), _state(other)
    for name, rows in its.items():
        assert mine[name] == rows, name
    return taken[0], len(its["traces"])


@pytest.mark.slow
def test_both_ways_store_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, stored = _hold_both(tmp_path, monkeypatch, 1)
    assert 5 < taken < stored


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 22))
def test_both_ways_store_the_same_over_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    _hold_both(tmp_path, monkeypatch, seed)
