"""The service: deployments of one or more lines, served from one process until it is told to stop.

One serving process per installation, by a lock on a file that dies with it. It keeps the Prefect server up and begins anew where
that was away. Model servers, routers, receivers and the Prefect server outlive it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.events import DeploymentEventTrigger
from prefect.flows import EntrypointType
from prefect.runner import Runner
from prefect.schedules import Cron, Interval, Schedule

from contracts.errors import RatchetError
from contracts.loop import Loop
from contracts.ports import Progress
from flows.config.home import Home
from flows.prefect import flows, server, views, wake

INGEST_SECONDS = 30
RECONCILE_SECONDS = 60
_WATCH_SECONDS = 3.0


@dataclass(frozen=True)
class Served:
    """One loop file that is served."""

    path: Path
    loop: Loop

    @property
    def line(self) -> str:
        return self.loop.line.name


async def deployments(served: Served) -> list[RunnerDeployment]:
    """The five deployments of a line, named after it."""
    line, path = served.line, str(served.path)
    trigger = served.loop.trigger
    cron = [Cron(trigger.cron, timezone=trigger.timezone, parameters={"scheduled": True}, slug="cron")] if trigger.cron else []
    arrival = DeploymentEventTrigger(
        name=f"{line}: new traces",
        expect={flows.INGESTED},
        match={"prefect.resource.id": flows.line_resource(line)},
        parameters={"loop": path, "scheduled": False},
    )
    every = [
        (flows.ingest, [_every(INGEST_SECONDS)], [], "Traces and feedback into the lake."),
        (flows.retrain, cron, [arrival], "Opens a cycle when one is due, and takes the open one as far as it goes."),
        (flows.rollout, [], [], "Ticks the open rollout; woken while there is one."),
        (flows.reconcile, [_every(RECONCILE_SECONDS)], [], "Copies follow the ledger, every minute."),
        (flows.approval, [], [], "One run per request: Resume shows the form."),
    ]
    return [await _deployment(flow, line, path, schedules, triggers, text) for flow, schedules, triggers, text in every]


def _every(seconds: int) -> Schedule:
    return Interval(timedelta(seconds=seconds), slug="interval")


async def _deployment(flow: Any, line: str, path: str, schedules: list[Any], triggers: list[Any], text: str) -> RunnerDeployment:
    """One at a time where two would only wait for each other. The reconciler has no limit, since it frees stuck slots; nor have
    approvals, of which two may wait."""
    alone = flow.name in ("ingest", "retrain", "rollout")
    limit = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW, grace_period_seconds=60)
    return await flow.ato_deployment(
        name=line,
        parameters={} if flow.name == "approval" else {"loop": path},
        schedules=schedules,
        triggers=triggers,
        description=text,
        tags=[views.TAG, f"line:{line}"],
        concurrency_limit=limit if alone else None,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


async def serve(home: Home, lines: Sequence[Served], url: str, progress: Progress) -> None:
    """Serves until SIGTERM or SIGINT. Where the Prefect server goes away, it is brought back (if it is ours) and served anew."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    watch = asyncio.create_task(_keep_server(home, url, stop, progress))
    first = True
    while not stop.is_set():
        try:
            await _serve_once(home, lines, stop, loop, first)
        except Exception as error:
            if not _is_outage(error):
                raise
            progress("the Prefect server does not answer; waiting for it", 0, 0)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stop.wait(), _WATCH_SECONDS)
        first = False
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch


def _is_outage(error: BaseException) -> bool:
    """Whether an error says that the Prefect server is away or ill, and not that we asked for something wrong."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_outage(part) for part in error.exceptions)
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, httpx.TransportError) or "exceeded error threshold" in str(error)


async def _serve_once(home: Home, lines: Sequence[Served], stop: asyncio.Event, loop: asyncio.AbstractEventLoop, first: bool) -> None:
    runner = Runner(name=f"ratchet-{os.getpid()}", pause_on_shutdown=False)
    runner.handle_sigterm = lambda *_: loop.call_soon_threadsafe(stop.set)
    async with get_client() as client:
        for served in lines:
            for deployment in await deployments(served):
                await runner.add_deployment(deployment)
            await views.bury_dead_runs(client, home, served.line, served_anew=first)
            await views.drop_missed_ticks(client, served.line)
            await wake.start(client, "reconcile", served.line, f"served anew at {datetime.now(UTC).isoformat()}")
    running = asyncio.create_task(runner.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not running.done() and not runner.started:  # told to end before it began; it could not be stopped
        running.cancel()
    elif not running.done():
        await runner.astop()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def _keep_server(home: Home, url: str, stop: asyncio.Event, progress: Progress) -> None:
    """Starts our Prefect server again where its process has died. One that is not ours is only waited for."""
    while not stop.is_set() and not server.is_external():
        await asyncio.sleep(_WATCH_SECONDS)
        try:
            if await asyncio.to_thread(server.known_url, home) is None:
                progress("the Prefect server is gone; starting it again", 0, 0)
                await asyncio.to_thread(server.join_or_start, home, int(httpx.URL(url).port or 0))
                progress(f"the Prefect server answers again at {url}", 0, 0)
        except RatchetError as error:
            progress(f"the Prefect server cannot be started: {error}", 0, 0)
