"""Tests when a cycle is due."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from contracts.data.datasets import Cursor
from contracts.fakes import fake_model
from contracts.ids import digest, version_tag
from contracts.loop import TriggerSettings
from contracts.serving import ModelVersion
from flows.core.folds import Freeze, LineView
from flows.core.triggers import cycle_is_due
from tests.unit.flows.cycles import NOON

BASE = ModelVersion(line="sim", number=0, tag=version_tag(digest("base")), model=fake_model("base"), cycle=None)
FROZEN = Freeze("hana", "the data is wrong", NOON)


def due(scheduled: bool = False, **changes: Any) -> tuple[bool, str]:
    """Return whether a cycle is due for a line with plenty of new traces, and the reason."""
    line = LineView(**({"line": "sim", "seq": 1, "champion": BASE} | changes))
    return cycle_is_due(line, Cursor(traces=5000, feedback=0, newest=NOON), TriggerSettings(), scheduled, NOON + timedelta(days=1))


def test_enough_new_traces_are_due() -> None:
    assert due() == (True, "5000 new traces")


@pytest.mark.parametrize("changes", [{}, {"scheduled": True}, {"plan_again": True}])
def test_nothing_is_due_while_the_line_is_frozen(changes: dict[str, Any]) -> None:
    assert due(**changes)[0]
    assert due(**changes, frozen=FROZEN) == (False, "frozen by hana since 2026-01-01 12:00 UTC: the data is wrong")


def test_the_open_cycle_is_the_reason_also_on_a_frozen_line() -> None:
    assert due(frozen=FROZEN, open_cycle="cycle/sim/0001") == (False, "cycle/sim/0001 is still open")
