"""Small datasets for tests: questions on both sides of the holdout split, snapshots and training sets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ratchet.contracts.data.datasets import ScorerVersion, Snapshot, TrainingSet
from ratchet.contracts.data.records import Tier
from ratchet.contracts.ids import root_id
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.schemas import read_parquet
from ratchet.materializer.training_sets.holdout import held_out
from tests.unit.materializer.records import batch, span, spans

LATER = datetime(2026, 12, 1, tzinfo=UTC)


def questions(held: bool, count: int) -> list[str]:
    """Return the first `count` questions that are held out, or that are not."""
    texts = (f"question {n}?" for n in range(1000))
    return [text for text in texts if held_out(root_id([{"role": "user", "content": text}]), "ratchet", 0.2) is held][:count]


HELD = questions(True, 1)[0]

TRAIN = questions(False, 9)


def frozen(datasets: LakeDatasets, *items: Any, name: str = "s") -> Snapshot:
    """Ingest the spans and one held-out question, and freeze them as the snapshot `name`."""
    datasets.ingest(batch(spans(span(900, HELD, metadata__reference="1"), *items)))
    return datasets.freeze(name, LATER, datasets.edition(1))


def rows(datasets: LakeDatasets, key: str) -> list[dict[str, Any]]:
    """Return the rows of a Parquet artifact."""
    return read_parquet(datasets.artifacts.get(key)).to_dicts()


def assembled(datasets: LakeDatasets, *items: Any) -> tuple[TrainingSet, list[dict[str, Any]]]:
    """Ingest the spans, assemble a training set, and return it with its pairs."""
    training = datasets.assemble("t", frozen(datasets, *items), None)
    return training, rows(datasets, training.pairs)


VERSIONS = tuple(
    ScorerVersion(name=n, distribution="d", version="1", code="c", tier=t, weight=1.0)
    for n, t in (("v", Tier.VERIFIABLE), ("f", Tier.FEEDBACK))
)
