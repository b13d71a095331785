"""An ingest that begins batches ahead records each batch once, in order, and continues after a crash."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from ratchet.contracts.data.datasets import IngestReport, RawBatch, TraceCounts
from ratchet.contracts.errors import Retryable
from ratchet.contracts.fakes import FakeDatasets, FakeSource
from ratchet.contracts.ids import digest, ingest_stream
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.ingest import ingest
from tests.simulation.simulated_line import Scenario, SimulatedLine


def batch(name: str) -> RawBatch:
    return RawBatch("app", "jsonl", digest(name), name, lambda: io.BytesIO(b""))


def line(*names: str) -> tuple[LineContext, FakeDatasets, FakeSource]:
    """A line whose source has the batches `names`, of one new trace each."""
    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    datasets, source = context.datasets, FakeSource("app", [batch(name) for name in names])
    assert isinstance(datasets, FakeDatasets)
    datasets.reports = {digest(name): IngestReport(traces=TraceCounts(read=1, kept=1)) for name in names}
    return replace(context, sources=(source,)), datasets, source


def kinds(context: LineContext, name: str) -> list[str]:
    return [row.kind for row in context.ledger.read(ingest_stream(context.line, digest(name)))]


def test_each_batch_is_recorded_and_done_in_order() -> None:
    context, _, source = line("a", "b", "c", "d")
    assert ingest(context).traces.kept == 4
    assert source.finished == [digest(name) for name in "abcd"]
    assert all(kinds(context, name) == ["intended", "done"] for name in "abcd")


def test_known_batches_between_new_ones_count_as_duplicates() -> None:
    context, _, _ = line("b", "d", "e")
    ingest(context)
    more, datasets, source = line("a", "b", "c", "d", "e")
    more = replace(more, ledger=context.ledger)
    report = ingest(more)
    assert (report.traces.kept, report.traces.duplicate) == (2, 3)
    assert source.finished == [digest(name) for name in "abcde"]
    assert {name for name in datasets.world.effects if name.startswith("ingest/")} == {f"ingest/{digest(name)}" for name in "ac"}


def test_a_batch_that_a_source_has_twice_is_ingested_once() -> None:
    """The second one is begun before the first one is recorded."""
    context, _, source = line("a", "a", "b", "a")
    report = ingest(context)
    assert (report.traces.kept, report.traces.duplicate) == (2, 2)
    assert kinds(context, "a") == ["intended", "done"]
    assert len(source.finished) == 4


def test_batches_that_were_begun_ahead_of_a_failure_are_ingested_later(monkeypatch: pytest.MonkeyPatch) -> None:
    context, datasets, source = line("a", "b", "c")
    real = datasets.ingest

    def failing(one: RawBatch) -> IngestReport:
        if one.origin == "b":
            raise Retryable("the disk is full")
        return real(one)

    monkeypatch.setattr(datasets, "ingest", failing)
    with pytest.raises(Retryable):
        ingest(context)
    assert source.finished == [digest("a")]
    assert [kinds(context, name) for name in "abc"] == [["intended", "done"], ["intended"], ["intended"]]
    monkeypatch.setattr(datasets, "ingest", real)
    report = ingest(context)
    assert (report.traces.kept, report.traces.duplicate) == (2, 1)
    assert all(kinds(context, name) == ["intended", "done"] for name in "abc")
