"""The service: keeps the lines warm and carries their cycles as Prefect runs, until it receives a stop signal.

A file lock allows one serving process per installation. The service restarts the Prefect server if it stops, and registers its deployments
again if they are gone. Ingest, reconcile, rollbacks and rollouts go on while Prefect is away. Model servers, routers, receivers and the
Prefect server continue after the service has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from contracts.errors import ConfigError, RatchetError
from contracts.loop import Loop
from contracts.ports import Progress
from flows.composition.installation import Installation
from flows.config.home import Home
from flows.prefect import server
from flows.prefect.desk import POLL_SECONDS, Desk
from flows.prefect.host import Host, set_host
from flows.service.keeper import Keeper
from flows.service.keepers import Keepers

_WATCH_SECONDS = 3.0
_NEWS_SECONDS = 0.25
"""Seconds after which news about a line are noticed."""
STOP_SECONDS = 8.0
"""Seconds within which runs and lines leave after a stop signal. Work that takes longer is cut off, as by a crash, and repeated later."""


@dataclass(frozen=True)
class Served:
    """A loop file that the service serves, with its parsed content."""

    path: Path
    loop: Loop

    @property
    def line(self) -> str:
        """The name of the model line."""
        return self.loop.line.name


async def serve(home: Home, lines: Sequence[Served], url: str, progress: Progress) -> bool:
    """Serve the lines until SIGTERM or SIGINT. Return whether all work has ended; if not, the caller must end the process.

    If the Prefect server at `url` becomes unavailable, the service restarts it, unless it is external. `progress` receives what happens.
    """

    def say(text: str) -> None:
        progress(text, 0, 0)

    stop = asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, stop.set)
    # The lines and the runs have separate contexts, so that they share no object that only one thread may use.
    host = Host(Installation(home, _run_progress), {served.line: served.path for served in lines})
    set_host(host)
    desk = Desk(home, host, {served.line: served.loop for served in lines}, say)
    own = Installation(home, progress)
    keepers = Keepers(own, [Keeper(own, served.path, say) for served in lines], desk.on_news, say)
    keepers.start()
    watch = asyncio.create_task(_keep_server(home, url, stop, say))
    try:
        await _attend(desk, stop, say)
    finally:
        host.stopping.set()
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        left = await asyncio.gather(asyncio.to_thread(keepers.stop, STOP_SECONDS), asyncio.to_thread(desk.carriers.stop, STOP_SECONDS))
    return all(left)


def _run_progress(_what: str, _done: int, _total: int) -> None:
    """Ignore progress that is not reported through a run's own log."""


async def _attend(desk: Desk, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    """Look at Prefect until the stop signal. While it is away, wait for it; when it comes back, begin anew."""
    trouble = ""
    while not stop.is_set():
        try:
            async with get_client() as client:
                await desk.open(client)
                if trouble:
                    say("the Prefect server is available again")
                    trouble = ""
                while not stop.is_set():
                    await desk.look(client)
                    until = asyncio.get_running_loop().time() + desk.pause
                    while not stop.is_set() and not desk.has_news and asyncio.get_running_loop().time() < until:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(stop.wait(), _NEWS_SECONDS)
        except ObjectNotFound:
            say("the deployments are gone from Prefect; registering them again")
        except ConfigError:
            raise
        except Exception as error:  # the lines go on, and so do their rollbacks and rollouts
            text = "the Prefect server does not respond; waiting for it" if _is_outage(error) else f"{type(error).__name__}: {error}"
            if text != trouble:
                say(text)
            trouble = text
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_SECONDS)


def _is_outage(error: BaseException) -> bool:
    """Return whether the Prefect server is unavailable or busy, so that a later attempt can succeed."""
    if isinstance(error, PrefectHTTPStatusError):
        return bool(error.response.status_code >= 500)
    return isinstance(error, httpx.TransportError) or (error.__cause__ is not None and _is_outage(error.__cause__))


async def _keep_server(home: Home, url: str, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    """Restart the installation's Prefect server if its process dies. Does nothing for an external server."""
    while not stop.is_set() and not server.is_external():
        await asyncio.sleep(_WATCH_SECONDS)
        try:
            if await asyncio.to_thread(server.known_url, home) is None:
                say("the Prefect server has stopped; restarting it")
                await asyncio.to_thread(server.join_or_start, home, int(httpx.URL(url).port or 0))
                say(f"the Prefect server is available again at {url}")
        except RatchetError as error:
            say(f"cannot start the Prefect server: {error}")


def end_process() -> None:
    """End this process at once, because a thread still works on a step. The ledger continues the step as after a crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
