"""Tests of judges in a snapshot: it states whether they are believed, and is computed from recorded verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.ids import root_id
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.training_sets.holdout import held_out
from ratchet.rewards.judge.records import JudgeRecords
from ratchet.rewards.scorer_set import build_scorer_set
from tests.judge_stub import Arithmetic, Stub, serving
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, evaluation, log, logs, span, spans
from tests.unit.materializer.small_datasets import HELD, LATER, rows

pytestmark = pytest.mark.slow

QUICK = {"model": "m", "probes": 50, "max_flips": 0.06, "min_labels": 20}


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving(Stub(model=Arithmetic())) as running:
        yield running


def _datasets(folder: Path, stub: Stub) -> LakeDatasets:
    loop = make_loop(rewards=[{"name": "user_feedback"}, {"name": "judge", "options": {"url": stub.url, **QUICK}}])
    datasets = make_datasets(folder, loop)
    datasets.rewards = build_scorer_set(loop.rewards, JudgeRecords(folder / "judgements.db", "math"))
    return datasets


def _traces(rated: int, unrated: int) -> list[dict[str, Any]]:
    """Return traces with right and wrong sums. The first `rated` have a rating that fits."""
    texts = (f"What is {n} + 1?" for n in range(1000))
    asked = [text for text in texts if not held_out(root_id([{"role": "user", "content": text}]), "ratchet", 0.2)][: rated + unrated]
    found = []
    for n, text in enumerate(asked):
        right = n % 2 == 0
        events = [evaluation("user_feedback", float(right), user__id=f"u{n}")] if n < rated else []
        answer = f"A: {int(text.split()[2]) + (1 if right else 2)}"
        found.append(span(n + 1, text, answer, events, user__id=f"u{n}"))
    return found


def _frozen(datasets: LakeDatasets, *items: Any) -> Any:
    datasets.ingest(batch(spans(span(2000, HELD, metadata__reference="1"), *items)))
    return datasets.freeze("s", LATER, datasets.edition(1))


def test_a_snapshot_contains_the_verdicts_of_a_judge_that_is_believed(tmp_path: Path, stub: Stub) -> None:
    datasets = _datasets(tmp_path, stub)
    snapshot = _frozen(datasets, *_traces(rated=60, unrated=20))
    (belief,) = snapshot.judges
    assert (belief.believed, belief.labels, belief.agreement) == (True, 60, 1.0)
    judged = [row for row in rows(datasets, snapshot.samples) if row["tier"] == "judge"]
    assert sorted(row["reward"] for row in judged) == [0.0] * 10 + [1.0] * 10


def test_a_snapshot_says_why_a_judge_is_not_believed(tmp_path: Path, stub: Stub) -> None:
    stub.model = Arithmetic(errs=0.5)
    datasets = _datasets(tmp_path, stub)
    snapshot = _frozen(datasets, *_traces(rated=60, unrated=20))
    (belief,) = snapshot.judges
    assert not belief.believed
    assert "below floor" in belief.reason
    assert {row["tier"] for row in rows(datasets, snapshot.samples)} == {"feedback", None}


def test_samples_that_are_computed_again_get_the_recorded_verdicts(tmp_path: Path, stub: Stub) -> None:
    datasets = _datasets(tmp_path, stub)
    snapshot = _frozen(datasets, *_traces(rated=60, unrated=20))
    before = stub.requests
    stub.model = Arithmetic(errs=1.0)  # a server that has changed its mind
    training = datasets.assemble("t", snapshot, None)
    assert stub.requests == before
    shown = rows(datasets, training.demonstrations)
    assert {row["source"] for row in shown} >= {"judge"}
    other = datasets.freeze("s2", LATER, datasets.edition(1))
    assert other.content == snapshot.content
    assert stub.requests == before


def test_a_correction_costs_no_verdict(tmp_path: Path, stub: Stub) -> None:
    datasets = _datasets(tmp_path, stub)
    items = _traces(rated=60, unrated=0)
    fixed = [log(n, evaluation("user_correction", text="A: 0", user__id=f"u{n - 1}")) for n in range(1, 11)]
    datasets.ingest(batch(logs(*fixed)))
    _frozen(datasets, *items)
    assert not any("A: 0" in body["messages"][1]["content"] for body in stub.bodies)
