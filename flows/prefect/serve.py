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
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound
from prefect.logging.handlers import APILogWorker

from ratchet.contracts.errors import ConfigError, RatchetError
from ratchet.contracts.loop import Loop
from ratchet.contracts.ports import Progress
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.prefect import server
from ratchet.flows.prefect.cycle.host import Host, set_host
from ratchet.flows.prefect.desk import POLL_SECONDS, Desk, is_outage
from ratchet.flows.service.claims import RENEW_SECONDS, Claims
from ratchet.flows.service.keeper import Keeper, News
from ratchet.flows.service.keepers import Keepers
from ratchet.flows.service.process import Beat

_WATCH_SECONDS = 3.0
SEND_SECONDS = 2.0
"""Seconds for which a process that is about to end sends what Prefect has not received yet."""
STOP_SECONDS = 8.0
"""Seconds within which runs and lines leave after a stop signal. Work that takes longer is cut off, as by a crash, and repeated later."""


PULSE_SECONDS = 1.0
"""Seconds between two notes of the event loop that it runs."""
STALLED_SECONDS = 60.0
"""Seconds without such a note after which the event loop counts as hanging."""


@dataclass
class Pulse:
    """What the event loop notes about itself and Prefect. The thread that gives the signs of life reads it."""

    at: float = field(default_factory=time.monotonic)
    """Monotonic time of the newest note."""
    attending: str = ""
    """Why the runs in Prefect cannot be looked at; empty if they can."""
    server: str = ""
    """Why the installation's Prefect server cannot be started; empty if it can."""

    def beat(self, beat: Beat, trouble: str, now: float) -> None:
        """Give a sign of life with the trouble of the lines and that of the event loop. `now` is a monotonic time."""
        if now - self.at >= STALLED_SECONDS:
            trouble = f"{trouble}; {_STALLED}" if trouble else _STALLED
        beat(trouble, self.server or self.attending)


_STALLED = "its event loop hangs, so no cycle goes on and no approval is read"


@dataclass(frozen=True)
class Served:
    """A loop file that the service serves, with its parsed content."""

    path: Path
    loop: Loop

    @property
    def line(self) -> str:
        """The name of the model line."""
        return self.loop.line.name


async def serve(home: Home, lines: Sequence[Served], url: str, progress: Progress, beat: Beat, claims: Claims | None = None) -> None:
    """Serve the lines until SIGTERM or SIGINT. Work may still run in threads then, so the caller must end the process (`end_process`).

    If the Prefect server at `url` becomes unavailable, the service restarts it, unless it is external. `progress` receives what happens.
    `beat` is called as long as the lines are looked at. `claims` are renewed; the service ends if another installation takes one.
    """

    def say(text: str) -> None:
        progress(text, 0, 0)

    stop, due = asyncio.Event(), asyncio.Event()
    running = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        due.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, end)
    # The lines and the runs have separate contexts, so that they share no object that only one thread may use.
    host = Host(Installation(home), {served.line: served.path for served in lines})
    set_host(host)
    desk = Desk(home, host, {served.line: served.loop for served in lines}, say)
    own = Installation(home, progress)

    def on_news(news: News) -> None:
        desk.on_news(news)
        running.call_soon_threadsafe(due.set)  # called from a thread

    pulse = Pulse()
    signs = partial(_sign, beat, pulse)
    keepers = Keepers(own, [Keeper(own, served.path, say) for served in lines], on_news, say, signs)
    keepers.start()
    watch = asyncio.gather(_keep_pulse(pulse, stop), _keep_server(home, url, stop, say, pulse), _keep_claims(claims, stop, say))
    try:
        await _unless_stopped(_attend(desk, home, url, stop, due, say, pulse), stop)
    finally:
        host.stopping.set()
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        await asyncio.gather(asyncio.to_thread(keepers.stop, STOP_SECONDS), asyncio.to_thread(desk.carriers.stop, STOP_SECONDS))


async def _unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Do the work until it ends, or until the stop signal. A request that Prefect does not answer must not delay the stop."""
    task, signalled = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():  # the work ends by itself between two requests; otherwise it is cut off, as by a crash
            await asyncio.wait({task}, timeout=1.0)
    finally:
        signalled.cancel()
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _sign(beat: Beat, pulse: Pulse, trouble: str) -> None:
    pulse.beat(beat, trouble, time.monotonic())


async def _keep_pulse(pulse: Pulse, stop: asyncio.Event) -> None:
    """Note that the event loop runs, until the stop signal."""
    while not stop.is_set():
        pulse.at = time.monotonic()
        await asyncio.sleep(PULSE_SECONDS)


async def _attend(
    desk: Desk, home: Home, url: str, stop: asyncio.Event, due: asyncio.Event, say: Callable[[str], None], pulse: Pulse
) -> None:
    """Look at Prefect until the stop signal. While it is away, wait for it; when it comes back, begin anew.

    `due` is set when the next look should be at once: there is news about a line, or the service stops. `pulse` gets the trouble.

    Raises ConfigError if the first server that responds cannot be used. Later, the same is only said.
    """
    trouble, opened = "", False
    while not stop.is_set():
        try:
            async with get_client() as client:
                if server.is_external():
                    await asyncio.to_thread(server.check_login, home, url)
                await desk.open(client)
                opened = True
                if trouble:
                    say("the Prefect server is available again")
                    trouble = pulse.attending = ""
                while not stop.is_set():
                    due.clear()
                    await desk.look(client)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(due.wait(), desk.pause)
        except Exception as error:  # the lines go on, and so do their rollbacks and rollouts
            if isinstance(error, ConfigError) and not opened:
                raise
            text = _trouble(error, url)
            if text != trouble:
                say(text)
            trouble = pulse.attending = text
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_SECONDS)


def _trouble(error: Exception, url: str) -> str:
    """Return the text about a problem with Prefect."""
    if isinstance(error, ObjectNotFound):
        return "the deployments are gone from Prefect; registering them again"
    if is_outage(error):
        return f"the Prefect server at {url} does not respond; waiting for it"
    return str(error) if isinstance(error, RatchetError) else f"{type(error).__name__}: {error}"


async def _keep_server(home: Home, url: str, stop: asyncio.Event, say: Callable[[str], None], pulse: Pulse) -> None:
    """Restart the installation's Prefect server if its process dies. Does nothing for an external server."""
    trouble = ""
    while not stop.is_set() and not server.is_external():
        await asyncio.sleep(_WATCH_SECONDS)
        try:
            if await asyncio.to_thread(server.known_url, home) is None:
                say("the Prefect server has stopped; restarting it")
                await asyncio.to_thread(server.join_or_start, home, int(httpx.URL(url).port or 0))
                say(f"the Prefect server is available again at {url}")
            trouble = pulse.server = ""
        except Exception as error:  # the watch goes on; the next look tries again
            text = str(error) if isinstance(error, RatchetError) else f"{type(error).__name__}: {error}"
            pulse.server = f"cannot start the Prefect server: {text}"
            if text != trouble:
                say(pulse.server)
            trouble = text


async def _keep_claims(claims: Claims | None, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    """Renew the claims on the lines until the stop signal. Stops the service if another installation has taken one."""
    while claims is not None and not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), RENEW_SECONDS)
        try:
            if not stop.is_set():
                await asyncio.to_thread(claims.renew, datetime.now(UTC))
        except ConfigError as error:
            say(f"stopping: {error}")
            stop.set()
        except Exception as error:  # the ledger is away; the claim lasts longer than one renewal
            say(f"the claims on the lines were not renewed: {error}")


def end_process(last: Callable[[], None] = lambda: None) -> None:
    """End this process at once. If a thread still works on a step, the ledger continues the step as after a crash.

    `last` is called before, for at most SEND_SECONDS.

    Logs and states of task runs that Prefect has not received are sent first, for at most SEND_SECONDS each. A normal exit would wait much
    longer for a server that does not respond.
    """
    for worker in (APILogWorker, EventsWorker):
        with contextlib.suppress(Exception):
            worker.drain_all(timeout=SEND_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    ending = threading.Thread(target=last, daemon=True)
    ending.start()
    ending.join(SEND_SECONDS)
    os._exit(0)
