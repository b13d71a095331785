"""Tests that Prefect's forms agree with the ledger, and that the number of queries does not grow with the line's history."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.objects import StateType

from flows.prefect import run_sync


class Api:
    """A stub of Prefect's client with the calls that are used. It counts queries and records closed runs."""

    def __init__(self, runs: list[Any]) -> None:
        self.runs, self.queries, self.closed = runs, 0, {}

    async def read_flow_runs(self, *, flow_run_filter: Any, **_: Any) -> list[Any]:
        self.queries += 1
        wanted = flow_run_filter.state.type.any_ if flow_run_filter else None
        return [run for run in self.runs if wanted is None or run.state.type in wanted]

    async def set_flow_run_state(self, run: str, state: Any, force: bool) -> None:
        self.closed[run] = state.type


def _run(n: int, kind: StateType = StateType.PAUSED) -> Any:
    state = SimpleNamespace(type=kind, is_final=lambda: kind is StateType.COMPLETED)
    return SimpleNamespace(id=f"run {n}", parameters={"request": f"approval/sim/{n:04d}/training"}, state=state)


def _request(n: int, answered: bool = False, expired: bool = False) -> Any:
    given = SimpleNamespace(actor="ada", approve=True, via="cli") if answered else None
    later = datetime.now(UTC) + timedelta(hours=1)
    return SimpleNamespace(id=f"approval/sim/{n:04d}/training", answer=given, expired=expired, expires=later)


def test_forms_of_settled_requests_are_closed_with_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [_request(n, answered=True) for n in range(1, 400)] + [_request(400, expired=True), _request(401)]
    monkeypatch.setattr(run_sync, "approvals", lambda _ledger, _line: requests)
    api = Api([_run(1, StateType.COMPLETED), _run(399), _run(400), _run(401), _run(999)])
    said = asyncio.run(run_sync.settle_requests(api, None, "sim"))  # type: ignore[arg-type]
    assert api.queries == 1
    assert api.closed == {"run 399": StateType.COMPLETED, "run 400": StateType.CANCELLED}
    assert len(said) == 2
