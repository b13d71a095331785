"""Tests of how the service waits for the Prefect server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.flows.config.home import Home
from ratchet.flows.prefect import serve, server

URL = "http://prefect.example/api"


class Desk:
    """A desk that stops the service at its first look."""

    pause = 0.0

    def __init__(self, happened: list[str], stop: asyncio.Event) -> None:
        self._happened = happened
        self._stop = stop

    async def open(self, _client: Any) -> None:
        """Record the call."""
        self._happened.append("open")

    async def look(self, _client: Any) -> None:
        """End the test."""
        self._stop.set()


def attend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logins: list[Exception | None], away: int, troubles: list[str] | None = None
) -> tuple[list[str], list[str]]:
    """Attend an external server that is away `away` times, and whose logins then are checked with these results.

    Returns what happened, and what was said. `troubles` gets what the signs of life say before each look and at the end.
    """
    happened: list[str] = []
    said: list[str] = []
    pulse = serve.Pulse()
    attempts = iter(range(away))

    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        if troubles is not None:
            pulse.beat(lambda trouble, prefect="": troubles.append(trouble + prefect), "", pulse.at)
        if next(attempts, None) is not None:
            raise httpx.ConnectError("refused")
        yield

    def check(_home: Home, _url: str) -> None:
        happened.append("check")
        if (error := logins.pop(0)) is not None:
            raise error

    monkeypatch.setattr(serve, "get_client", client)
    monkeypatch.setattr(serve, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(server, "is_external", lambda: True)
    monkeypatch.setattr(server, "check_login", check)

    async def run() -> None:
        stop = asyncio.Event()
        desk: Any = Desk(happened, stop)
        await serve._attend(desk, Home(tmp_path), URL, stop, asyncio.Event(), said.append, pulse)

    asyncio.run(run())
    if troubles is not None:
        troubles.append(pulse.attending)
    return happened, said


def test_external_server_that_is_away_at_start_is_awaited_and_its_login_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    happened, said = attend(monkeypatch, tmp_path, [None], away=3)
    assert happened == ["check", "open"]
    assert said == [f"the Prefect server at {URL} does not respond; waiting for it", "the Prefect server is available again"]


def test_signs_of_life_tell_that_prefect_is_away_until_it_is_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    troubles: list[str] = []
    attend(monkeypatch, tmp_path, [None], away=1, troubles=troubles)
    assert troubles == ["", f"the Prefect server at {URL} does not respond; waiting for it", ""]


def test_signs_of_life_tell_that_the_event_loop_hangs() -> None:
    signs: list[tuple[str, str]] = []
    pulse = serve.Pulse(at=100.0, attending="it is away", server="cannot start it")
    for now in (159.0, 161.0):
        pulse.beat(lambda trouble, prefect="": signs.append((trouble, prefect)), "the ledger is away", now)
    assert signs[0] == ("the ledger is away", "cannot start it")
    assert signs[1][0].startswith("the ledger is away; its event loop hangs")


def test_server_that_answers_without_a_login_is_refused_when_it_comes_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without a login"):
        attend(monkeypatch, tmp_path, [ConfigError("it answers without a login")], away=1)


@pytest.mark.slow
def test_request_that_is_never_answered_does_not_delay_the_stop() -> None:
    async def run() -> None:
        stop = asyncio.Event()
        stop.set()
        await asyncio.wait_for(serve._unless_stopped(asyncio.sleep(3600), stop), 30)

    asyncio.run(run())


def test_error_of_the_work_is_raised() -> None:
    async def broken() -> None:
        raise ConfigError("a reason")

    async def run() -> None:
        await serve._unless_stopped(broken(), asyncio.Event())

    with pytest.raises(ConfigError, match="a reason"):
        asyncio.run(run())


def test_process_that_ends_at_once_sends_its_logs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    for worker in (serve.APILogWorker, serve.EventsWorker):
        monkeypatch.setattr(worker, "drain_all", lambda timeout: happened.append(f"at most {timeout:g} s"))
    monkeypatch.setattr(serve.os, "_exit", lambda code: happened.append(f"exit {code}"))
    serve.end_process()
    assert happened == ["at most 2 s", "at most 2 s", "exit 0"]
