"""The service: serves the Prefect deployments of one or more lines from one process until it receives a stop signal.

A file lock allows one serving process per installation. The service restarts the Prefect server if it stops, and then registers its
deployments again. Model servers, routers, receivers and the Prefect server continue after the service has ended.
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
from prefect.events import DeploymentEventTrigger
from prefect.flows import EntrypointType
from prefect.runner import Runner
from prefect.schedules import Cron, Interval, Schedule

from contracts.errors import RatchetError
from contracts.loop import Loop
from contracts.ports import Progress
from flows.config.home import Home
from flows.prefect import flows, run_sync, server, wake

INGEST_SECONDS = 30
RECONCILE_SECONDS = 60
_WATCH_SECONDS = 3.0


@dataclass(frozen=True)
class Served:
    """A loop file that the service serves, with its parsed content."""

    path: Path
    loop: Loop

    @property
    def line(self) -> str:
        """The name of the model line."""
        return self.loop.line.name


async def add_deployments(runner: Runner, served: Served) -> None:
    """Register the five deployments of a line, one per flow. Each has the name of the line.

    The runner runs the flow object of this process. It never loads the code that the deployment in Prefect's database names, so a
    changed entrypoint or added pull steps have no effect.
    """
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
        (flows.ingest, [_every(INGEST_SECONDS)], [], "Ingests traces and feedback into the lake."),
        (flows.retrain, cron, [arrival], "Opens a cycle when one is due, and advances the open cycle as far as possible."),
        (flows.rollout, [], [], "Evaluates and advances the open rollout; started only while there is one."),
        (flows.reconcile, [_every(RECONCILE_SECONDS)], [], "Reconciles derived copies and Prefect runs with the ledger every minute."),
        (flows.approval, [], [], "One run per approval request; select Resume to open the form."),
    ]
    for flow, schedules, triggers, text in every:
        await _add_deployment(runner, flow, line, path, schedules, triggers, text)


def _every(seconds: int) -> Schedule:
    return Interval(timedelta(seconds=seconds), slug="interval")


async def _add_deployment(runner: Runner, flow: Any, line: str, path: str, schedules: list[Any], triggers: list[Any], text: str) -> None:
    """Register one deployment.

    Only one run of `ingest`, `retrain` and `rollout` is allowed at a time, because a second run would only wait for the first.
    `reconcile` has no limit, because it releases stuck slots. `approval` has no limit, because several requests can be pending.
    """
    alone = flow.name in ("ingest", "retrain", "rollout")
    limit = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW, grace_period_seconds=60)
    await runner.aadd_flow(
        flow,
        name=line,
        parameters={} if flow.name == "approval" else {"loop": path},
        schedules=schedules,
        triggers=triggers,
        description=text,
        tags=[run_sync.TAG, f"line:{line}"],
        concurrency_limit=limit if alone else None,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


async def serve(home: Home, lines: Sequence[Served], url: str, progress: Progress) -> None:
    """Serve the lines until SIGTERM or SIGINT.

    If the Prefect server at `url` becomes unavailable, the service restarts it, unless it is external, and registers the deployments
    again. `progress` receives messages about the server's availability.
    """
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
            progress("the Prefect server does not respond; waiting for it", 0, 0)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stop.wait(), _WATCH_SECONDS)
        first = False
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch


def _is_outage(error: BaseException) -> bool:
    """Return whether an error means that the Prefect server is unavailable or failing, as opposed to an invalid request."""
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
            await add_deployments(runner, served)
            await run_sync.bury_dead_runs(client, home, served.line, served_anew=first)
            await run_sync.drop_missed_ticks(client, served.line)
            await wake.start_run(client, "reconcile", served.line, f"service start at {datetime.now(UTC).isoformat()}")
    running = asyncio.create_task(runner.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not running.done() and not runner.started:  # a runner that has not started cannot be stopped, only cancelled
        running.cancel()
    elif not running.done():
        await runner.astop()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def _keep_server(home: Home, url: str, stop: asyncio.Event, progress: Progress) -> None:
    """Restart the installation's Prefect server if its process dies. Does nothing for an external server."""
    while not stop.is_set() and not server.is_external():
        await asyncio.sleep(_WATCH_SECONDS)
        try:
            if await asyncio.to_thread(server.known_url, home) is None:
                progress("the Prefect server has stopped; restarting it", 0, 0)
                await asyncio.to_thread(server.join_or_start, home, int(httpx.URL(url).port or 0))
                progress(f"the Prefect server is available again at {url}", 0, 0)
        except RatchetError as error:
            progress(f"cannot start the Prefect server: {error}", 0, 0)
