"""Tests of parts of the flow: the pause between two looks at a step, and the steps that task runs show."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.flows.prefect.cycle import cycle_flow


class WokenHost:
    """A host whose waits all end after half a second, because the ledger has changed."""

    def __init__(self, cancel_after: float) -> None:
        self.now = 0.0
        self._cancel_after = cancel_after
        self.stopping = SimpleNamespace(is_set=lambda: False)
        self.installation = self

    async def wait(self, _cycle: str, _seconds: float) -> None:
        """Be woken."""
        self.now += 0.5

    def line(self, _name: str) -> Any:
        """A line that somebody cancels."""
        return SimpleNamespace(cancel_asked="ada" if self.now >= self._cancel_after else None, rollback_asked=None)


@pytest.mark.parametrize(("failed", "cancel_after", "lasts"), [(False, 1e9, 0.5), (True, 1e9, 60.0), (True, 3.0, 3.0)])
def test_rows_that_a_failed_step_writes_do_not_end_its_pause_but_a_cancellation_does(
    monkeypatch: pytest.MonkeyPatch, failed: bool, cancel_after: float, lasts: float
) -> None:
    host = WokenHost(cancel_after)
    monkeypatch.setattr(cycle_flow, "the_host", lambda: host)
    monkeypatch.setattr(cycle_flow, "time", SimpleNamespace(monotonic=lambda: host.now))
    asyncio.run(cycle_flow._pause("cycle/sim/0001", 60.0, failed))
    assert host.now == lasts


@pytest.mark.parametrize(
    ("name", "step"),
    [("train", "train"), ("train-6f9", "train"), ("approve_training-6f9", "approve_training"), ("training", None), ("my task", None)],
)
def test_task_run_is_recognised_before_prefect_has_given_it_its_name(name: str, step: str | None) -> None:
    assert cycle_flow._step_of(name) == step
