"""An ingest that begins batches ahead records each batch once, in order, and continues after a crash."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from ratchet.contracts.data.datasets import IngestReport, RawBatch, TraceCounts
from ratchet.contracts.errors import Retryable
from ratchet.contracts.fakes import FakeDatasets, FakeSource
from ratchet.contracts.ids import digest, ingest_stream
from ratchet.contracts.loop import SourceSettings
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.ingest import ingest, reading_rules
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


def with_mapping(context: LineContext, **mapping: str) -> LineContext:
    """The line with a source `app` that has this mapping."""
    source = SourceSettings(name="app", kind="jsonl", path="traces", mapping=mapping)
    return replace(context, loop=context.loop.model_copy(update={"sources": (source,)}))


def test_a_batch_is_read_again_when_the_settings_changed_by_which_its_records_are_read() -> None:
    context, datasets, source = line("a", "b")
    ingest(with_mapping(context, response="answer"))
    assert ingest(with_mapping(context, response="answer")).traces.duplicate == 2
    assert len(datasets.world.effects) == 2
    mended = with_mapping(context, response="answer", consent="agreed")
    datasets.reports |= {digest([digest("a"), reading_rules(mended.loop, "app")]): IngestReport(traces=TraceCounts(read=9, kept=9))}
    assert ingest(mended).traces.kept == 9
    assert len(datasets.world.effects) == 4
    assert source.finished == [digest(name) for name in "ababab"], "the source knows its batches by its own digests"
    assert ingest(mended).traces.kept == 0
    assert ingest(with_mapping(context, response="answer")).traces.kept == 0, "the lake has what the first settings read"
    assert len(datasets.world.effects) == 4


def test_settings_that_do_not_change_what_is_read_cause_no_second_reading() -> None:
    context, datasets, _ = line("a")
    ingest(with_mapping(context))
    other = context.loop.model_copy(update={"governance": context.loop.governance.model_copy(update={"max_chars": 7})})
    assert ingest(with_mapping(replace(context, loop=other))).traces.duplicate == 1
    assumed = context.loop.model_copy(update={"governance": context.loop.governance.model_copy(update={"consent": "assumed"})})
    ingest(with_mapping(replace(context, loop=assumed)))
    assert len(datasets.world.effects) == 2


def test_a_batch_that_another_source_has_delivered_is_not_read_again() -> None:
    context, datasets, _ = line("a")
    ingest(with_mapping(context, consent="agreed"))
    other = replace(context, sources=(FakeSource("copy", [replace(batch("a"), source="copy")]),))
    assert ingest(with_mapping(other)).traces.duplicate == 1
    assert len(datasets.world.effects) == 1


def test_settings_that_change_between_a_crash_and_the_restart_are_those_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    context, datasets, _ = line("a")
    real = datasets.ingest
    monkeypatch.setattr(datasets, "ingest", lambda _: (_ for _ in ()).throw(Retryable("killed")))
    with pytest.raises(Retryable):
        ingest(with_mapping(context, consent="agreed"))
    monkeypatch.setattr(datasets, "ingest", real)
    ingest(with_mapping(context, consent="wrong"))
    restored = with_mapping(context, consent="agreed")
    datasets.reports |= {digest([digest("a"), reading_rules(restored.loop, "app")]): IngestReport(traces=TraceCounts(read=9, kept=9))}
    assert ingest(restored).traces.kept == 9


def test_a_batch_of_an_earlier_release_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    context, datasets, _ = line("a")
    with monkeypatch.context() as patch:
        patch.setattr("ratchet.flows.engine.ingest.reading_rules", lambda *_: None)
        ingest(with_mapping(context))
    assert ingest(with_mapping(context, consent="agreed")).traces.duplicate == 1
    assert len(datasets.world.effects) == 1
