"""Tests of how answers that Prefect has stored come into the ledger."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from ratchet.contracts.cycle import Answer, Append, Identity, Row
from ratchet.contracts.errors import Rejected
from ratchet.contracts.fakes import MemoryLedger
from ratchet.flows.engine.line import answer
from ratchet.flows.prefect.cycle.forms import closed_reason, request_view, take_answer

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
REQUEST = "approval/sim/0001/training"
YES = {"decision": "approve", "approver": " Ada ", "note": "go"}
NO = {"decision": "reject", "approver": "eve", "note": ""}


class StoredInputs:
    """A Prefect client that has stored these inputs: (key, value, time)."""

    def __init__(self, *stored: tuple[str, Any, datetime]) -> None:
        self.stored = stored

    async def filter_flow_run_input(self, _run: Any, key_prefix: str, limit: int, exclude_keys: set[str]) -> list[Any]:
        """Return the inputs whose key begins with the prefix."""
        found = [
            SimpleNamespace(key=key, value=json.dumps(value), created=at)
            for key, value, at in self.stored
            if key.startswith(key_prefix) and key not in exclude_keys
        ]
        return found[:limit]


@pytest.fixture
def ledger() -> MemoryLedger:
    """A ledger with one request that expires at one o'clock."""
    ledger = MemoryLedger()
    data = {
        "cycle": "cycle/sim/0001",
        "kind": "training",
        "subject": "s",
        "evidence": "e",
        "expires": (NOON + timedelta(hours=1)).isoformat(),
    }
    ledger.append([Append(stream=REQUEST, after=0, rows=(Row(kind="asked", key="training", data=data),))], None, NOON)
    return ledger


def take(ledger: MemoryLedger, *stored: tuple[str, Any, datetime]) -> str | None:
    """Take the answer that these inputs contain."""
    client: Any = StoredInputs(*stored)
    return asyncio.run(take_answer(client, ledger, uuid4(), request_view(ledger, REQUEST)))


def test_without_an_answer_nothing_is_recorded(ledger: MemoryLedger) -> None:
    assert take(ledger, ("suspended-training-1-schema", {}, NOON), ("suspended-rollout-1-response", YES, NOON)) is None
    assert request_view(ledger, REQUEST).awaiting


def test_first_readable_answer_counts_whatever_form_it_was_given_in(ledger: MemoryLedger) -> None:
    stored = (
        ("suspended-training-2-response", NO, NOON + timedelta(minutes=2)),
        ("suspended-training-0-response", {"decision": "perhaps"}, NOON),
        ("suspended-training-1-response", YES, NOON + timedelta(minutes=1)),
    )
    assert take(ledger, *stored) == "Ada approved it via prefect"
    assert take(ledger, *stored) == "Ada approved it via prefect", "reading it again changes nothing"
    given = request_view(ledger, REQUEST).answer
    assert given == Answer(approve=True, actor="Ada", identity=Identity.CLAIMED, via="prefect", note="go")


def test_answer_is_read_after_any_number_of_forms(ledger: MemoryLedger) -> None:
    forms = [(f"suspended-training-{form}-{kind}", {}, NOON) for form in range(100) for kind in ("schema", "description")]
    assert take(ledger, *forms, ("suspended-training-99-response", YES, NOON)) == "Ada approved it via prefect"


def test_answer_that_was_submitted_in_time_counts_although_it_is_read_late(ledger: MemoryLedger) -> None:
    assert take(ledger, ("suspended-training-1-response", YES, NOON + timedelta(minutes=59))) == "Ada approved it via prefect"


def test_answer_after_the_expiry_does_not_count(ledger: MemoryLedger) -> None:
    assert take(ledger, ("suspended-training-1-response", YES, NOON + timedelta(minutes=61))) is None
    assert request_view(ledger, REQUEST).answer is None


def test_answer_on_the_command_line_that_was_first_stays(ledger: MemoryLedger) -> None:
    bob = Answer(approve=False, actor="bob", identity=Identity.CLAIMED, via="cli")
    answer(ledger, request_view(ledger, REQUEST), bob, NOON)
    assert take(ledger, ("suspended-training-1-response", YES, NOON)) == "bob rejected it via cli"


def test_request_is_closed_when_it_expires(ledger: MemoryLedger) -> None:
    view = request_view(ledger, REQUEST)
    assert closed_reason(view, view.expires - timedelta(seconds=1)) is None
    assert "closed without an answer" in str(closed_reason(view, view.expires))
    with pytest.raises(Rejected, match="no approval/sim/0009/training"):
        request_view(ledger, "approval/sim/0009/training")
