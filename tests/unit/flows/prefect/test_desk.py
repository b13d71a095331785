"""Tests of the desk with a Prefect server that refuses single requests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Running

from ratchet.contracts.cycle import Append, Row
from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.fakes import MemoryLedger
from ratchet.contracts.ids import cycle_stream
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.cycle import fold_cycle
from ratchet.flows.core.folds.line import fold_line
from ratchet.flows.prefect.cycle.host import Host
from ratchet.flows.prefect.cycle.run_names import cycle_tag
from ratchet.flows.prefect.desk import Desk, is_outage
from ratchet.flows.service.keeper import News

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def refusal(status: int) -> PrefectHTTPStatusError:
    """Return the error with which Prefect's client reports this HTTP status."""
    request = httpx.Request("POST", "http://prefect/api")
    return PrefectHTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))


class Server:
    """A Prefect client that knows no runs, and refuses to create runs of the deployments in `refused`."""

    def __init__(self, refused: dict[Any, int]) -> None:
        self.refused = refused
        self.created: list[Any] = []
        self.events: list[str] = []

    async def get_scheduled_flow_runs_for_deployments(self, *_: Any, **__: Any) -> list[Any]:
        """No runs."""
        return []

    async def read_flow_runs(self, **_: Any) -> list[Any]:
        """No runs."""
        return []

    async def read_deployments(self, deployment_filter: Any, **_: Any) -> list[Any]:
        """Deployments that are not paused."""
        return [SimpleNamespace(id=one, paused=False) for one in deployment_filter.id.any_]

    async def request(self, _method: str, _path: str, json: list[Any]) -> None:
        """Accept events."""
        self.events += [event["event"] for event in json]

    async def create_flow_run_from_deployment(self, deployment: Any, **_: Any) -> None:
        """Create a run, or refuse it."""
        if deployment in self.refused:
            raise refusal(self.refused[deployment])
        self.created.append(deployment)


@pytest.fixture
def said() -> list[str]:
    """What the desk says."""
    return []


def desk_of(tmp_path: Path, said: list[str]) -> Desk:
    """Return a desk for two lines whose next cycles are due."""
    ledger = MemoryLedger()
    for line in ("bad", "good"):
        ledger.append([Append(stream=f"line/{line}", after=0, rows=(Row(kind="frozen", data={"actor": "a", "reason": "b"}),))], None, NOON)
    installation: Any = SimpleNamespace(ledger=ledger, line=lambda name: fold_line(name, ledger.read(f"line/{name}")))
    loops: Any = {"bad": None, "good": None}
    desk = Desk(Home(tmp_path), Host(installation, {}), loops, said.append)
    desk._deployments = {"bad": uuid4(), "good": uuid4()}
    for line in ("bad", "good"):
        desk.on_news(News(installation.line(line), None, "10 new traces", IngestReport()))
    return desk


@pytest.mark.parametrize("status", [404, 409, 422, 500])
def test_request_that_is_refused_for_one_line_does_not_stop_the_others(tmp_path: Path, said: list[str], status: int) -> None:
    desk = desk_of(tmp_path, said)
    server: Any = Server({desk._deployments["bad"]: status})
    asyncio.run(desk.look(server))
    assert server.created == [desk._deployments["good"]]
    assert len(said) == 1
    assert "the next cycle of bad" in said[0]


def test_outage_ends_the_look(tmp_path: Path, said: list[str]) -> None:
    desk = desk_of(tmp_path, said)
    server: Any = Server({desk._deployments["bad"]: 503})
    with pytest.raises(PrefectHTTPStatusError):
        asyncio.run(desk.look(server))
    assert is_outage(refusal(503))
    assert not is_outage(refusal(422))


def test_line_whose_rows_cannot_be_read_does_not_stop_the_others(tmp_path: Path, said: list[str]) -> None:
    desk = desk_of(tmp_path, said)
    read = desk._ledger.read

    def damaged(stream: str, after: int = 0) -> Any:
        if stream == "line/bad":
            raise ValueError("damaged")
        return read(stream, after)

    desk._ledger.read = damaged  # type: ignore[method-assign]
    server: Any = Server({})
    asyncio.run(desk.look(server))
    assert desk._deployments["good"] in server.created
    assert any("the runs of bad" in text for text in said)
    said.clear()
    asyncio.run(desk.look(server))
    assert said == [], "a problem that lasts is said once"


def test_cycles_that_ended_while_nobody_served_the_line_are_told_once(tmp_path: Path, said: list[str]) -> None:
    desk, server = desk_of(tmp_path, said), Server({})
    client: Any = server
    asyncio.run(desk.look(client))
    ledger, line = desk._ledger, "line/good"
    for number in (1, 2, 3):
        cycle = cycle_stream("good", number)
        opened, ended = Row(kind="opened", data={"reason": "a test"}), Row(kind="ended", key="held", data={"reason": "text of a user"})
        ledger.append([Append(stream=cycle, after=0, rows=(opened, ended))], None, NOON)
        row = Row(kind="cycle_opened", key=cycle, data={"traces": 0, "reason": "a test"})
        ledger.append([Append(stream=line, after=len(ledger.read(line)), rows=(row,))], None, NOON)
    restarted = Desk(desk._home, desk._host, desk._loops, said.append)
    restarted._deployments = desk._deployments
    server.events.clear()
    for _ in range(2):
        restarted.on_news(News(fold_line("good", ledger.read(line)), None, None, IngestReport()))
        asyncio.run(restarted._take_news(client))
    assert sorted(server.events) == ["ratchet.cycle.ended"] * 3 + ["ratchet.cycle.opened"] * 3


def test_a_run_that_was_answered_while_it_was_suspended_goes_on_at_the_next_look(tmp_path: Path, said: list[str]) -> None:
    desk, server, cycle = desk_of(tmp_path, said), Server({}), cycle_stream("good", 1)
    opened = Row(kind="opened", data={"reason": "a test", "traces": 0})
    desk._ledger.append([Append(stream=cycle, after=0, rows=(opened,))], None, NOON)
    row = Row(kind="cycle_opened", key=cycle, data={"traces": 0, "reason": "a test"})
    desk._ledger.append([Append(stream="line/good", after=1, rows=(row,))], None, NOON)
    desk._host.installation.cycle = lambda *_: fold_cycle(desk._ledger.read(cycle))  # type: ignore[method-assign]
    desk._due.clear()
    asyncio.run(desk.look(server))  # type: ignore[arg-type]
    run, states = SimpleNamespace(id=uuid4(), name="good/0001", tags=[cycle_tag(cycle)], state=Running()), []

    async def runs(flow_run_filter: Any, **_: Any) -> list[Any]:
        return [run] if flow_run_filter.tags.all_[1:] == [cycle_tag(cycle)] else []

    async def set_state(_: Any, state: Any, **__: Any) -> None:
        states.append(state.name)

    server.read_flow_runs, server.set_flow_run_state = runs, set_state  # type: ignore[method-assign, attr-defined]
    asyncio.run(desk.look(server))  # type: ignore[arg-type]
    assert states == [], "only a run that has left this process needs another state"
    desk.carriers._suspended("good")
    asyncio.run(desk.look(server))  # type: ignore[arg-type]
    assert states == ["AwaitingRetry"]
