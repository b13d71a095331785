"""The service's side towards Prefect: picks up scheduled runs, reads answers, and keeps runs and ledger consistent.

The ledger is the truth, Prefect the view. The desk is the only process that changes the runs of this installation's deployments, and it
works in one thread, so a run is never entered twice at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    DeploymentFilterTags,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Pending, Scheduled

from contracts.cycle import ApprovalKind
from contracts.errors import Rejected
from contracts.ids import approval_stream, cycle_stream, line_stream, rollout_stream
from contracts.loop import Loop
from flows.config.home import Home
from flows.core.folds import CycleView
from flows.engine.line import ask_cancel
from flows.prefect import forms
from flows.prefect.carriers import Carriers
from flows.prefect.cycle_flow import final_state, run_name
from flows.prefect.deployments import TAG, installation_id, register, remove_former
from flows.prefect.events import Outbox, ingested_event
from flows.prefect.host import Host
from flows.service.keeper import News

POLL_SECONDS = 1.0
"""Seconds between two looks at Prefect."""
IDLE_POLL_SECONDS = 2.0
"""The same while no line has an open cycle."""
_READY_SECONDS = 20.0
"""Seconds between two signs of life. Prefect shows a deployment as ready for 60 s after one."""
_SWEEP_SECONDS = 10.0
"""Seconds between two comparisons of all open cycles with their runs."""
_OPEN = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING, StateType.PAUSED)


class Desk:
    """Looks at Prefect once a second. `loops` are the loop files of the served lines; `say` receives what happened."""

    def __init__(self, home: Home, host: Host, loops: Mapping[str, Loop], say: Callable[[str], None]) -> None:
        self._home = home
        self._host = host
        self._loops = loops
        self._say = say
        self._owner = installation_id(home)
        self._deployments: dict[str, UUID] = {}
        self._paused: set[str] = set()
        self._due: dict[str, str] = {}
        self._news: list[News] = []
        self._lines: dict[str, News] = {}
        self._changed: set[str] = set(loops)
        self._ready = self._swept = float("-inf")
        self._outbox = Outbox(home, host.installation.ledger)
        self._ledger = host.installation.ledger
        self.carriers = Carriers(host, say, lambda: None)

    def on_news(self, news: News) -> None:
        """Take the news about a line. Called from other threads."""
        self._news.append(news)
        if news.cycle is not None:
            self._host.wake(news.cycle.id)

    async def open(self, client: PrefectClient) -> None:
        """Register the deployments, and take over what an earlier process or release has left: first the answers, then the runs."""
        await self._take_former_answers(client)
        removed = await remove_former(client, list(self._loops))
        if removed:
            self._say(f"removed {len(removed)} Prefect deployments of an earlier release")
        for line, loop in self._loops.items():
            self._deployments[line] = await register(client, self._home, loop)
        await self._drop_missed(client)
        self._changed = set(self._loops)
        self._swept = self._ready = float("-inf")

    @property
    def has_news(self) -> bool:
        """Whether a line has news that the desk has not seen."""
        return bool(self._news)

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return POLL_SECONDS if any(news.cycle is not None for news in self._lines.values()) else IDLE_POLL_SECONDS

    async def look(self, client: PrefectClient) -> None:
        """Do everything that is due now. Raises what the client raises while the server is away."""
        now = time.monotonic()
        await self._take_news(client)
        await self._open_due(client)
        if now - self._ready >= _READY_SECONDS:
            await client.get_scheduled_flow_runs_for_deployments(
                list(self._deployments.values()), scheduled_before=datetime.now(UTC) - timedelta(days=1), limit=1
            )
            self._ready = now
        await self._take_answers(client)
        if now - self._swept >= _SWEEP_SECONDS:
            self._swept = now
            self._changed |= {line for line, news in self._lines.items() if news.cycle is not None}
            for line, deployment in self._deployments.items():
                self._note_paused(line, (await client.read_deployment(deployment)).paused)
            await self._continue_abandoned(client)
        await self._sweep(client)
        await self._pick_up(client)

    def _note_paused(self, line: str, paused: bool) -> None:
        if paused:
            self._paused.add(line)
        else:
            self._paused.discard(line)

    async def _take_news(self, client: PrefectClient) -> None:
        """Remember the news of the lines, and send the events of new ledger rows and of ingests."""
        news, self._news = self._news, []
        if not news:
            return
        events: list[dict[str, Any]] = []
        streams: set[str] = set()
        for one in news:
            line = one.line.line
            self._lines[line] = one
            self._changed.add(line)
            if one.due is not None:
                self._due[line] = one.due
            else:
                self._due.pop(line, None)
            streams.add(line_stream(line))
            for number in range(max(1, one.line.cycles - 1), one.line.cycles + 1):
                cycle = cycle_stream(line, number)
                streams |= {cycle, rollout_stream(cycle), *(approval_stream(cycle, kind) for kind in ApprovalKind)}
            if one.ingested.traces.kept or one.ingested.feedback.kept:
                events.append(ingested_event(line, one.ingested, datetime.now(UTC)))
        rows, cursor = await asyncio.to_thread(self._outbox.pending, streams)
        if events or rows:
            await client.request("POST", "/events", json=[*events, *rows])
        self._outbox.sent(cursor)

    async def _open_due(self, client: PrefectClient) -> None:
        """Create the run of a cycle that is due. A paused deployment opens none."""
        for line, reason in list(self._due.items()):
            if line in self._paused:
                continue
            del self._due[line]
            number = self._lines[line].line.cycles + 1
            minute = datetime.now(UTC).strftime("%Y%m%dT%H%M")
            await client.create_flow_run_from_deployment(
                self._deployments[line],
                parameters={"line": line, "when": "enough new traces", "reason": reason},
                idempotency_key=f"{self._owner}/{line}/{number}/{minute}",
            )

    async def _pick_up(self, client: PrefectClient) -> None:
        """Enter the runs that are scheduled for now: due cycles, the schedule, the Run button, and resumed ones."""
        chosen = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])))
        for run in await self._read(client, chosen, FlowRunSort.EXPECTED_START_TIME_ASC):
            begins = run.state.state_details.scheduled_time if run.state is not None else None
            if begins is None or begins <= datetime.now(UTC):
                await self._enter(client, run)

    async def _enter(self, client: PrefectClient, run: FlowRun) -> None:
        if self._host.stopping.is_set() or self.carriers.carries(run.id):
            return
        answer = await client.set_flow_run_state(run.id, Pending())
        if answer.status is SetStateStatus.ACCEPT:
            self.carriers.start(await client.read_flow_run(run.id))

    async def _take_answers(self, client: PrefectClient) -> None:
        """Record the answers that Prefect has stored for pending requests, and enter the runs whose request is closed."""
        for line, news in self._lines.items():
            cycle = news.cycle
            for kind in cycle.asked if cycle is not None else ():
                if cycle is None or kind in cycle.answers:
                    continue
                request = forms.request_view(self._ledger, approval_stream(cycle.id, kind))
                if request.answer is not None:
                    continue
                for run in await self._runs_of(client, line, cycle.id):
                    closed = await forms.take_answer(client, self._ledger, run.id, request)
                    if closed is not None:
                        self._say(f"{request.id}: {closed}")

    async def _sweep(self, client: PrefectClient) -> None:
        """Compare the newest cycles of the changed lines with their runs, and mend the runs."""
        while self._changed:
            line = self._changed.pop()
            view = self._host.installation.line(line)
            for number in range(max(1, view.cycles - 1), view.cycles + 1):
                cycle = self._host.installation.cycle(line, number)
                if cycle is not None:
                    await self._compare(client, line, cycle)

    async def _continue_abandoned(self, client: PrefectClient) -> None:
        """Schedule the runs again that a process carried which has ended. This process holds the installation's lock."""
        for run in await self._read(client, _in_states(StateType.PENDING, StateType.RUNNING)):
            await self._schedule(client, run, "Continuing", "the process that carried this run has ended; the run goes on")
        for run in await self._read(client, _in_states(StateType.CANCELLING)):
            if not self.carriers.carries(run.id) and not self._is_of_open_cycle(run):
                await client.set_flow_run_state(run.id, Cancelled(message="cancelled"), force=True)

    def _is_of_open_cycle(self, run: FlowRun) -> bool:
        return any(news.cycle is not None and run_name(news.cycle.id) == run.name for news in self._lines.values())

    async def _compare(self, client: PrefectClient, line: str, cycle: CycleView) -> None:
        runs = await self._runs_of(client, line, cycle.id)
        if any(self.carriers.carries(run.id) for run in runs):
            await self._cancel_if_asked(cycle, next(run for run in runs if self.carriers.carries(run.id)))
            return
        if cycle.ended:
            for run in runs:
                if run.state is not None and run.state.type in _OPEN:
                    await client.set_flow_run_state(run.id, final_state(cycle), force=True)
            return
        alive = next((run for run in runs if run.state is not None and run.state.type in _OPEN), None)
        if alive is None and not runs:
            await client.create_flow_run_from_deployment(
                self._deployments[line],
                parameters={"line": line, "when": "now", "reason": str(cycle.opened["reason"])},
                name=run_name(cycle.id),
                idempotency_key=f"{self._owner}/{cycle.id}/{datetime.now(UTC):%Y%m%dT%H%M}",
            )
        elif alive is None:
            await self._cancel_if_asked(cycle, runs[0])
            await self._schedule(client, runs[0], "Continuing", "the cycle is still open in the ledger; the run goes on")
        elif alive.state is not None and alive.state.type is StateType.PAUSED:
            await self._compare_suspended(client, cycle, alive)
        elif alive.state is not None and alive.state.type is StateType.CANCELLING:
            await self._cancel_if_asked(cycle, alive)
            await self._schedule(client, alive, "Continuing", "the cycle is cancelled; the run ends")

    async def _compare_suspended(self, client: PrefectClient, cycle: CycleView, run: FlowRun) -> None:
        """Enter a suspended run again if nothing is left to wait for, or if its form is missing.

        A run without our form was suspended by a person in Prefect; it waits for that person.
        """
        keys = (run.state.state_details.run_input_keyset or {}) if run.state is not None else {}
        line = self._host.installation.line(cycle.line)
        if not keys and not (line.cancel_asked or line.rollback_asked):
            return
        requests = [forms.request_view(self._ledger, approval_stream(cycle.id, kind)) for kind in cycle.asked if kind not in cycle.answers]
        pending = [one for one in requests if forms.closed_reason(one) is None]
        if not pending or line.cancel_asked or line.rollback_asked or not await _has_form(client, run.id, keys.get("schema", "")):
            await self._schedule(client, run, "Resuming", "the request is closed; the run goes on")

    async def _cancel_if_asked(self, cycle: CycleView, run: FlowRun) -> None:
        """Turn a cancellation in Prefect into a request to cancel the cycle."""
        fresh = run.state
        if fresh is None or fresh.type not in (StateType.CANCELLING, StateType.CANCELLED) or cycle.ended:
            return
        if self._host.installation.line(cycle.line).cancel_asked is None:
            try:
                ask_cancel(self._ledger, cycle.line, "a user of Prefect", "the run was cancelled in Prefect", datetime.now(UTC))
                self._say(f"{cycle.id}: cancelled in Prefect")
            except Rejected:
                pass
        self._host.wake(cycle.id)

    async def _schedule(self, client: PrefectClient, run: FlowRun, name: str, text: str) -> None:
        """Let a run that nobody carries be entered at the next look. Its state was read just now, in this thread."""
        if not self.carriers.carries(run.id):
            await client.set_flow_run_state(run.id, Scheduled(name=name, message=text), force=True)

    async def _drop_missed(self, client: PrefectClient) -> None:
        """Delete the runs that the schedule wanted while nobody served the line, except the newest: one cycle covers them all."""
        late = [
            run
            for run in await self._read(client, _in_states(StateType.SCHEDULED), FlowRunSort.EXPECTED_START_TIME_ASC)
            if run.auto_scheduled
            and run.run_count == 0
            and run.expected_start_time is not None
            and run.expected_start_time < datetime.now(UTC)
        ]
        for deployment in self._deployments.values():
            for run in [run for run in late if run.deployment_id == deployment][:-1]:
                await client.delete_flow_run(run.id)

    async def _take_former_answers(self, client: PrefectClient) -> None:
        """Record the answers in approval runs of earlier releases, and end those runs. The cycles' runs show the forms from now on."""
        tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
        flow = FlowFilter(name=FlowFilterName(any_=["approval"]))
        chosen = _in_states(*_OPEN)
        latest = FlowRunSort.START_TIME_DESC
        for run in await client.read_flow_runs(flow_filter=flow, flow_run_filter=chosen, deployment_filter=tagged, sort=latest, limit=200):
            request = str(run.parameters.get("request", ""))
            if request.split("/")[1:2] and request.split("/")[1] in self._loops and self._ledger.read(request):
                view = forms.request_view(self._ledger, request)
                closed = await forms.take_answer(client, self._ledger, run.id, view, "suspended-decision-")
                text = closed or "the form is now on the run of its cycle"
                await client.set_flow_run_state(run.id, Cancelled(message=text), force=True)

    async def _runs_of(self, client: PrefectClient, line: str, cycle: str) -> list[FlowRun]:
        """Return the runs of a cycle, newest first. A run is found by its name, which the flow gives it."""
        named = FlowRunFilter(name=FlowRunFilterName(any_=[run_name(cycle)]))
        return [run for run in await self._read(client, named) if run.deployment_id == self._deployments[line]]

    async def _read(self, client: PrefectClient, chosen: FlowRunFilter, order: FlowRunSort = FlowRunSort.START_TIME_DESC) -> list[FlowRun]:
        """Return the chosen runs of our deployments."""
        ours = DeploymentFilter(id=DeploymentFilterId(any_=list(self._deployments.values())))
        return list(await client.read_flow_runs(flow_run_filter=chosen, deployment_filter=ours, sort=order, limit=200))


def _in_states(*types: StateType) -> FlowRunFilter:
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types))))


async def _has_form(client: PrefectClient, run: UUID, key: str) -> bool:
    """Return whether Prefect has stored the form of a suspended run."""
    try:
        await client.read_flow_run_input(run, key)
    except ObjectNotFound:
        return False
    except Exception as error:
        if getattr(getattr(error, "response", None), "status_code", None) == 404:
            return False
        raise
    return True
