"""Tests with real GSM8K traces and known answers: counts, contents, snapshots and training sets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest
from ratchet.contracts.ports import Progress
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.schemas import read_parquet
from ratchet.materializer.receive.files.source import FileSource
from ratchet.rewards.verifiable import FinalNumber
from tests.unit.materializer.conftest import make_datasets, make_loop, pseudonym_of

pytestmark = [pytest.mark.shared, pytest.mark.slow]


def _ingest(datasets: LakeDatasets, folder: Path) -> IngestReport:
    total = IngestReport()
    for batch in FileSource("gateway", "otlp", folder).batches():
        total += datasets.ingest(batch)
    return total


@pytest.fixture(scope="module")
def filled(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[LakeDatasets, IngestReport]:
    datasets = make_datasets(tmp_path_factory.mktemp("gsm8k"))
    return datasets, _ingest(datasets, traces / "otlp")


def test_counts_equal_the_published_counts(filled: tuple[LakeDatasets, IngestReport], traces: Path) -> None:
    datasets, report = filled
    expected = json.loads((traces / "expected.json").read_text())["formats"]["otlp"]
    raw = expected["raw"]
    assert report.traces.read == raw["spans_delivered"]
    assert report.traces.kept == expected["traces"]
    assert report.traces.duplicate == raw["generation_spans_delivered"] - raw["generation_spans_distinct"]
    assert report.traces.reasons == {"not_a_generation": raw["spans_delivered"] - raw["generation_spans_delivered"]}
    assert report.feedback.kept == expected["with_feedback"]
    assert set(report.feedback.reasons) == {"other_evaluation"}
    assert report.traces.adds_up
    assert report.feedback.adds_up
    assert (datasets.cursor().traces, datasets.cursor().feedback) == (expected["traces"], expected["with_feedback"])


def test_every_record_equals_the_published_record(filled: tuple[LakeDatasets, IngestReport], traces: Path) -> None:
    stored = {row["id"]: row for row in filled[0].lake.scan("traces").iter_rows(named=True)}
    with gzip.open(traces / "golden.jsonl.gz", "rt", encoding="utf-8") as lines:
        golden = [row["record"] for row in map(json.loads, lines) if row["format"] == "otlp"]
    assert len(golden) == len(stored)
    for record in golden:
        row = stored[record["id"]]
        assert row["time"] == datetime.fromisoformat(record["timestamp"])
        people = pseudonym_of(filled[0], "u", record["user_id"]), pseudonym_of(filled[0], "s", record["session_id"])
        assert (row["user"], row["session"], row["model"]) == (*people, record["model"])
        assert (row["latency_ms"], row["input_tokens"], row["output_tokens"]) == (
            record["latency_ms"],
            record["input_tokens"],
            record["output_tokens"],
        )
        assert (row["region"], row["consent"]) == (record["region"], record["consent"])
        if record["consent"]:
            assert (json.loads(row["messages"]), row["answer"], row["reference"]) == (
                record["messages"],
                record["response"],
                record["reference"],
            )
        else:
            assert (row["messages"], row["answer"], row["reference"]) == (None, None, None)


def test_ingesting_the_same_records_again_changes_nothing(filled: tuple[LakeDatasets, IngestReport], traces: Path, tmp_path: Path) -> None:
    datasets, first = filled
    before = datasets.cursor()
    again = _ingest(datasets, traces / "otlp")
    assert again.traces == first.traces  # the same batches give the same report
    for path in (traces / "otlp").rglob("*.gz"):
        plain = tmp_path / path.parent.name / path.stem
        plain.parent.mkdir(exist_ok=True)
        plain.write_bytes(gzip.decompress(path.read_bytes()))
    other = _ingest(datasets, tmp_path)  # different bytes, the same records
    assert (other.traces.kept, other.traces.duplicate, other.traces.skipped) == (0, 1810, 450)
    assert (other.feedback.kept, other.feedback.parked) == (0, 0)
    assert datasets.cursor() == before


class Guesser:
    """Answers 0 and 1 in turn, by position of the request."""

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:
        return [ChatAnswer(text=f"A: {index % 2}") for index, _ in enumerate(requests)]


def test_snapshot_counts_cover_every_trace(filled: tuple[LakeDatasets, IngestReport]) -> None:
    datasets, _ = filled
    edition = datasets.edition(1)
    snapshot = datasets.freeze("cycle/math/0001/freeze", datetime(2026, 12, 1, tzinfo=UTC), edition)
    counts = snapshot.counts
    assert counts["considered"] == 1760
    assert counts["out:consent"] == 163
    assert counts["considered"] == counts["holdout"] + counts["used"] + sum(n for key, n in counts.items() if key.startswith("out:"))
    samples = read_parquet(datasets.artifacts.get(snapshot.samples))
    held = read_parquet(datasets.artifacts.get(edition.prompts))
    assert not set(samples["prompt_id"]) & set(held["prompt_id"])
    assert set(held["reference_kind"]) == {"logged"}
    assert not samples["user"].str.contains("user-").any()


def test_verifiable_pairs_are_ordered_correctly_and_noise_is_measured(filled: tuple[LakeDatasets, IngestReport]) -> None:
    datasets, _ = filled
    snapshot = datasets.freeze("cycle/math/0002/freeze", datetime(2026, 12, 1, tzinfo=UTC), datasets.edition(1))
    probe = datasets.probe("cycle/math/0002/probe", snapshot, Guesser(), lambda *_: None)
    assert (probe.prompts, probe.answered, probe.failures) == (200, 800, 0)
    training = datasets.assemble("cycle/math/0002/assemble", snapshot, probe)
    assert training.facts.pairs > 300
    assert training.facts.label_noise == pytest.approx(0.15, abs=0.03)
    assert training.facts.group_coverage == probe.group_coverage
    pairs = read_parquet(datasets.artifacts.get(training.pairs))
    known = read_parquet(datasets.artifacts.get(snapshot.prompts)).select("prompt_id", "reference")
    judged = pairs.join(known, on="prompt_id")
    for side, right in (("chosen", 1.0), ("rejected", 0.0)):
        rows = [{"answer": row[side], "reference": row["reference"]} for row in judged.iter_rows(named=True)]
        assert {label.reward for label in datasets.rewards.label_unseen(rows)} == {right}


@pytest.mark.slow
def test_weight_of_vote_pairs_matches_their_correctness(traces: Path, tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, make_loop(rewards=[{"name": "user_feedback"}]))
    _ingest(datasets, traces / "otlp")
    snapshot = datasets.freeze("s", datetime(2026, 12, 1, tzinfo=UTC), datasets.edition(1))
    training = datasets.assemble("t", snapshot, None)
    pairs = read_parquet(datasets.artifacts.get(training.pairs))
    known = read_parquet(datasets.artifacts.get(snapshot.prompts)).select("prompt_id", "reference")

    def truth(side: str) -> pl.Series:
        rows = [{"answer": row[side], "reference": row["reference"]} for row in pairs.join(known, on="prompt_id").iter_rows(named=True)]
        return pl.Series(FinalNumber().score(rows))

    worth = (truth("chosen") - truth("rejected")).mean()
    assert training.facts.pairs_by_tier == {"feedback": len(pairs)}
    assert pairs["weight"].mean() == pytest.approx(worth, abs=0.1)
