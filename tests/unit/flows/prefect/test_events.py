"""Tests of the events that the service sends to Prefect."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

from ratchet.contracts.cycle import Append, Row
from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.fakes import MemoryLedger
from ratchet.flows.config.home import Home
from ratchet.flows.prefect.events import EVENTS, INGESTED, Outbox, event_of, ingested_event
from ratchet.runtime.documents import FolderDocuments

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PAGE = Path(__file__).resolve().parents[4] / "docs" / "howto" / "prefect.md"


def put(ledger: MemoryLedger, stream: str, *rows: Row) -> None:
    """Append rows to a stream."""
    ledger.append([Append(stream=stream, after=len(ledger.rows.get(stream, [])), rows=rows)], None, NOON)


def test_every_event_is_documented_and_every_documented_event_exists() -> None:
    ends = {"ratchet.rollout.promoted", "ratchet.rollout.rolled_back"}
    documented = set(re.findall(r"`(ratchet\.[a-z]+\.[a-z_]+)`", PAGE.read_text(encoding="utf-8")))
    assert documented == {*EVENTS.values(), *ends, INGESTED}


def test_row_is_an_event_without_the_text_that_people_wrote() -> None:
    ledger = MemoryLedger()
    answer = {"approve": True, "actor": "ada", "identity": "claimed", "via": "cli", "note": "a secret note"}
    put(ledger, "approval/sim/0001/training", Row(kind="asked", key="training"), Row(kind="answered", key="training", data=answer))
    event = event_of(ledger.read("approval/sim/0001/training")[1])
    assert event is not None
    assert event["event"] == "ratchet.approval.answered"
    assert event["resource"]["prefect.resource.id"] == "ratchet.line.sim"
    assert event["payload"]["approve"] is True
    assert "secret" not in json.dumps(event)
    assert "ada" not in json.dumps(event)


def test_row_that_changes_no_state_is_no_event() -> None:
    ledger = MemoryLedger()
    put(ledger, "cycle/sim/0001", Row(kind="intended", key="freeze"), Row(kind="tried", key="freeze", data={"error": "x"}))
    put(ledger, "ingest/sim/abc", Row(kind="done", key="ingest"))
    assert [event_of(row) for stream in ledger.rows for row in ledger.read(stream)] == [None, None, None]


def test_end_of_a_rollout_names_the_end() -> None:
    ledger = MemoryLedger()
    put(ledger, "rollout/sim/0001", Row(kind="ended", key="rolled_back", data={"reason": "errors"}))
    event = event_of(ledger.read("rollout/sim/0001")[0])
    assert event is not None
    assert event["event"] == "ratchet.rollout.rolled_back"


def test_new_outbox_does_not_replay_the_past_and_sends_each_row_once(tmp_path: Path) -> None:
    ledger, home = MemoryLedger(), Home(tmp_path)
    put(ledger, "line/sim", Row(kind="adopted", key="v"))
    outbox = Outbox(lambda: FolderDocuments(home.prefect), ledger)
    assert outbox.pending(["line/sim"]) == ([], {})
    put(ledger, "line/sim", Row(kind="cycle_opened", key="cycle/sim/0001"), Row(kind="cancel_asked", key="cycle/sim/0001"))
    put(ledger, "cycle/sim/0001", Row(kind="opened"))
    events, cursor = outbox.pending(["line/sim", "cycle/sim/0001"])
    assert sorted(event["event"] for event in events) == ["ratchet.cycle.cancel_asked", "ratchet.cycle.opened"]
    again, _ = Outbox(lambda: FolderDocuments(home.prefect), ledger).pending(["line/sim", "cycle/sim/0001"])
    assert again == events, "events that Prefect has not accepted are sent again, with the same ids"
    outbox.sent(cursor)
    assert outbox.pending(["line/sim", "cycle/sim/0001"]) == ([], {})
    assert Outbox(lambda: FolderDocuments(home.prefect), ledger).pending(["line/sim", "cycle/sim/0001"]) == ([], {})


def test_ingest_is_an_event_with_its_counts() -> None:
    event = ingested_event("sim", IngestReport(), NOON)
    assert (event["event"], event["payload"]["traces"]) == (INGESTED, 0)
