"""Contract tests for every implementation of the port Datasets: a repeated name returns its first result, even after new data."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.datasets import Facts, RawBatch
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest
from ratchet.contracts.fakes import FakeClock, FakeDatasets, FakeWorld
from ratchet.contracts.ids import digest
from ratchet.contracts.loop import Loop
from ratchet.contracts.ports import Datasets, Progress
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.places.place import LakePlace
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from tests.shared_lake import postgres, shared_places  # noqa: F401  fixtures
from tests.unit.materializer.conftest import ingest_keys

NOW = datetime(2026, 11, 1, tzinfo=UTC)
LATER = datetime(2026, 12, 1, tzinfo=UTC)


def _facts() -> Facts:
    values: dict[str, Any] = dict.fromkeys(("pairs", "prompts", "prompts_with_reference", "corrections", "samples"), 0)
    none = dict.fromkeys(("group_coverage", "label_noise", "champion_reward", "best_of_k", "off_policy"))
    return Facts(**values, **none, pairs_by_tier={}, pairs_dropped={})


def _open(kind: str, folder: Path, place: LakePlace | None = None) -> Datasets:
    if kind == "fake":
        return FakeDatasets(FakeWorld(), _facts())
    loop = Loop.model_validate(
        {
            "line": {"name": "math", "served_model": "m"},
            "sources": [{"name": "app", "kind": "jsonl", "path": "x"}],
            "rewards": [{"name": "exact_match"}],
        }
    )
    return LakeDatasets(
        place or folder / "lake",
        loop,
        folder,
        build_scorer_set(loop.rewards),
        FolderArtifacts(folder / "artifacts"),
        FakeClock(NOW),
        ingest_keys(folder),
    )


@pytest.fixture(params=["fake", "lake", "shared lake"])
def datasets(request: pytest.FixtureRequest, tmp_path: Path) -> Datasets:
    place = request.getfixturevalue("shared_places").new(tmp_path / "lake") if request.param == "shared lake" else None
    return _open(request.param, tmp_path, place)


def _batch(first: int, count: int = 30) -> RawBatch:
    rows = [
        {
            "id": str(n),
            "timestamp": "2026-10-01T00:00:00Z",
            "messages": f"question {n}?",
            "response": str(n % 2),
            "consent": True,
            "reference": "1",
        }
        for n in range(first, first + count)
    ]
    data = "\n".join(json.dumps(row) for row in rows).encode()
    return RawBatch("app", "jsonl", digest(data), "test", lambda: io.BytesIO(data))


class Client:
    """A model client whose answers count up from `start`, modulo 3."""

    def __init__(self, start: int) -> None:
        self.start = start

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:
        return [ChatAnswer(text=str((self.start + index) % 3)) for index, _ in enumerate(requests)]


@pytest.mark.slow
def test_repeated_batch_gives_the_same_report(datasets: Datasets) -> None:
    report = datasets.ingest(_batch(0))
    before = datasets.cursor()
    assert datasets.ingest(_batch(0)) == report
    assert datasets.cursor() == before
    assert report.traces.adds_up
    assert report.feedback.adds_up


@pytest.mark.slow
def test_a_replay_without_open_entries_does_nothing(datasets: Datasets) -> None:
    datasets.ingest(_batch(0))
    before, held = datasets.cursor(), datasets.quarantine
    assert held.entries() == []
    assert held.content("unknown") is None
    assert held.counts(NOW.timestamp()).quarantined == 0
    assert [held.replay(["unknown"], dry_run).entries for dry_run in (True, False)] == [(), ()]
    assert datasets.cursor() == before


@pytest.mark.slow
def test_named_results_are_created_once(datasets: Datasets) -> None:
    datasets.ingest(_batch(0))

    def everything(start: int) -> list[Any]:
        edition = datasets.edition(1)
        snapshot = datasets.freeze("cycle/freeze", LATER, edition)
        probe = datasets.probe("cycle/probe", snapshot, Client(start), lambda *_: None)
        return [edition, snapshot, probe, datasets.assemble("cycle/assemble", snapshot, probe)]

    first = everything(0)
    datasets.ingest(_batch(1000))
    assert everything(1) == first


@pytest.mark.slow
def test_results_reference_their_inputs(datasets: Datasets) -> None:
    datasets.ingest(_batch(0))
    edition = datasets.edition(3)
    snapshot = datasets.freeze("a", LATER, edition)
    probe = datasets.probe("b", snapshot, Client(0), lambda *_: None)
    training = datasets.assemble("c", snapshot, probe)
    assert (edition.number, snapshot.edition) == (3, 3)
    assert snapshot.as_of == LATER
    assert (training.snapshot, training.probe) == (snapshot.content, probe.answers)
    assert [snapshot.name, probe.name, training.name] == ["a", "b", "c"]


@pytest.mark.slow
def test_training_set_without_a_probe(datasets: Datasets) -> None:
    datasets.ingest(_batch(0))
    snapshot = datasets.freeze("a", LATER, datasets.edition(1))
    assert datasets.assemble("c", snapshot, None).probe is None


@pytest.mark.slow
def test_another_process_finds_the_same_results(tmp_path: Path) -> None:
    one = _open("lake", tmp_path)
    one.ingest(_batch(0))
    snapshot = one.freeze("a", LATER, one.edition(1))
    other = _open("lake", tmp_path)
    assert other.freeze("a", NOW, other.edition(1)) == snapshot
    assert other.cursor() == one.cursor()
