"""Tests of the quarantine's alarm: when it begins and ends, and who hears of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ratchet.contracts.data.quarantine import QuarantineCounts
from ratchet.contracts.fakes import FakeDatasets
from ratchet.contracts.ids import line_stream
from ratchet.contracts.loop import QuarantineSettings
from ratchet.flows.core.quarantine_alarm import alarm_text, is_alarm
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.prefect.events import event_of
from ratchet.flows.report.page import render_report
from tests.simulation.simulated_line import Scenario, SimulatedLine

LINE = line_stream("sim")


def counts(read: int, bad: int) -> QuarantineCounts:
    return QuarantineCounts(read=read, quarantined=bad, reasons={"bad_timestamp": bad} if bad else {})


@pytest.mark.parametrize(
    ("read", "bad", "raised", "alarm"),
    [
        (19, 19, False, False),
        (20, 1, False, False),
        (20, 2, False, True),
        (1000, 45, False, False),
        (1000, 45, True, True),
        (1000, 39, True, False),
        (0, 0, True, False),
    ],
)
def test_the_alarm_needs_enough_records_and_ends_below_its_limit(read: int, bad: int, raised: bool, alarm: bool) -> None:
    assert is_alarm(counts(read, bad), QuarantineSettings(), raised) is alarm


def test_a_share_of_one_is_no_alarm() -> None:
    assert not is_alarm(counts(100, 100), QuarantineSettings(alarm_share=1), False)


def test_the_alarm_is_recorded_once_shown_and_emitted_until_it_ends() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    datasets = sim.context.datasets
    assert isinstance(datasets, FakeDatasets)
    for read, bad in ((100, 1), (100, 9), (200, 19), (1000, 20), (2000, 21)):
        datasets.quarantine.held = counts(read, bad)
        ingest(sim.context)
    rows = [row for row in sim.ledger.read(LINE) if row.kind.startswith("quarantine")]
    assert [row.kind for row in rows] == ["quarantine_alarm", "quarantine_calm"]
    events = [event_of(row) for row in rows]
    assert [event and event["event"] for event in events] == ["ratchet.quarantine.alarm", "ratchet.quarantine.calm"]
    assert events[0] is not None
    assert (events[0]["payload"]["read"], events[0]["payload"]["quarantined"]) == (100, 9)
    assert sim.context.line_view().alarm is None
    datasets.quarantine.held = counts(100, 9)
    ingest(sim.context)
    alarm = sim.context.line_view().alarm
    assert alarm is not None
    assert alarm.text == alarm_text(counts(100, 9)) == "9 of 100 records were quarantined (9.0%; bad_timestamp 9)"
    page = render_report(sim.ledger, sim.world.artifacts, "sim", datetime(2026, 11, 1, tzinfo=UTC))
    assert alarm.text in page
