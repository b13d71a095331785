"""The service's side towards Prefect: picks up scheduled runs, reads answers, and keeps runs and ledger consistent.

The ledger is the truth, Prefect the view. The desk is the only process that changes the runs of this installation's deployments, and it
works in one thread, so a run is never entered twice at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled, Pending, Running, Scheduled

from ratchet.contracts.cycle import ApprovalKind
from ratchet.contracts.errors import ConfigError, Rejected
from ratchet.contracts.ids import approval_stream, cycle_stream, line_stream, rollout_stream
from ratchet.contracts.loop import Loop
from ratchet.contracts.steps import STEPS
from ratchet.flows.composition.identity import installation_id
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.engine.line import ask_cancel
from ratchet.flows.prefect.cycle import forms
from ratchet.flows.prefect.cycle.carriers import Carriers
from ratchet.flows.prefect.cycle.cycle_flow import final_state
from ratchet.flows.prefect.cycle.host import Host
from ratchet.flows.prefect.cycle.run_names import LINE_TAG, cycle_tag, run_name
from ratchet.flows.prefect.deployments import owner_tag, register
from ratchet.flows.prefect.events import CURSOR, Outbox, ingested_event, with_deployment
from ratchet.flows.service.carry import look, position
from ratchet.flows.service.keeper import News
from ratchet.runtime.documents import Documents, FolderDocuments, copy_documents, open_documents
from ratchet.runtime.serving.exchange import is_in_pods

POLL_SECONDS = 1.0
"""Seconds between two looks at Prefect."""
IDLE_POLL_SECONDS = 2.0
"""The same while no line has an open cycle, and seconds between two readings of all scheduled runs."""
_READY_SECONDS = 20.0
"""Seconds between two signs of life. Prefect shows a deployment as ready for 60 s after one."""
_BUSY = (429, 502, 503, 504)
"""HTTP status codes with which the server, or a proxy before it, says that it cannot answer now."""
_INPUT_SECONDS = 5.0
"""Seconds between two readings of the inputs of a run whose state has not changed."""
_CYCLES = 50
"""Number of cycles whose runs are read with one request."""
_PAGE = 200
"""Number of objects that Prefect's API returns at most."""
_SWEEP_SECONDS = 10.0
"""Seconds between two comparisons of all open cycles with their runs."""
_NOT_AT_WORK = (StateType.SCHEDULED, StateType.COMPLETED, StateType.FAILED, StateType.CRASHED)
"""States that only a person gives to a run that is carried and whose cycle is open."""
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
        self._unsent: dict[str, list[dict[str, Any]]] = {}
        """Line with ledger rows that may be new to Prefect -> its events that are not in the ledger."""
        self._changed: set[str] = set(loops)
        self._failed: set[str] = set()
        self._troubles: dict[str, str] = {}
        self._is_open = False
        self._told: set[str] = set()
        self._inputs_read: dict[UUID, tuple[UUID | None, float]] = {}
        """Run -> its state when its inputs were read, and when that was."""
        self._ready = self._swept = self._picked_up = float("-inf")
        self._has_scheduled = False
        """Whether a run is known to be scheduled, so that the next look need not wait for the next reading of all scheduled runs."""
        self._outbox = Outbox(lambda: _event_documents(home), host.installation.ledger)
        self._ledger = host.installation.ledger
        self._suspended: list[str] = []
        """Lines whose run has left since the last look, to wait for a person."""
        self.carriers = Carriers(host, say, self._suspended.append)

    def on_news(self, news: News) -> None:
        """Take the news about a line. Called from other threads."""
        self._news.append(news)
        if news.cycle is not None:
            self._host.wake(news.cycle.id)

    async def open(self, client: PrefectClient) -> None:
        """Register the deployments, and take over the runs that an earlier process has left.

        Raises ConfigError at the first call if a deployment belongs to another installation. Later, only that line has no deployment.
        """
        for line, loop in self._loops.items():
            try:
                self._deployments[line] = await register(client, self._home, loop)
            except ConfigError as error:
                if not self._is_open:
                    raise
                self._deployments.pop(line, None)
                self._say(f"{line}: {error}")
        self._is_open = True
        await self._drop_missed(client)
        await self._close_ended(client)
        self._changed = set(self._loops)
        self._swept = self._ready = self._picked_up = float("-inf")

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
            self._changed |= self._failed | {line for line, news in self._lines.items() if news.cycle is not None}
            self._failed = set()
            await self._note_paused(client)
            await self._continue_abandoned(client)
        await self._sweep(client)
        if self._has_scheduled or now - self._picked_up >= IDLE_POLL_SECONDS:
            self._has_scheduled, self._picked_up = False, now
            await self._pick_up(client)

    async def _note_paused(self, client: PrefectClient) -> None:
        """Read which deployments are paused. Raises ObjectNotFound if one is gone."""
        wanted = {deployment: line for line, deployment in self._deployments.items()}
        found = {}
        for first in range(0, len(wanted), _PAGE):
            chosen = DeploymentFilter(id=DeploymentFilterId(any_=list(wanted)[first : first + _PAGE]))
            found.update({one.id: one.paused for one in await client.read_deployments(deployment_filter=chosen, limit=_PAGE)})
        if missing := set(wanted) - set(found):
            raise ObjectNotFound(http_exc=KeyError(wanted[missing.pop()]))
        self._paused = {wanted[deployment] for deployment, paused in found.items() if paused}

    async def _take_news(self, client: PrefectClient) -> None:
        """Remember the news of the lines, and send the events of new ledger rows and of ingests."""
        news, self._news = self._news, []
        for one in news:
            line = one.line.line
            self._lines[line] = one
            self._changed.add(line)
            if one.due is not None:
                self._due[line] = one.due
            else:
                self._due.pop(line, None)
            events = self._unsent.setdefault(line, [])
            if one.ingested.traces.kept or one.ingested.feedback.kept:
                events.append(ingested_event(line, one.ingested, datetime.now(UTC)))
        for line, events in list(self._unsent.items()):
            with self._apart(f"the events of {line}"):
                streams = _streams(self._lines[line].line, all_cycles=line not in self._told)
                rows, cursor = await asyncio.to_thread(self._outbox.pending, streams)
                if events or rows:
                    named = [with_deployment(event, self._deployments.get(line)) for event in (*events, *rows)]
                    await client.request("POST", "/events", json=named)
                self._outbox.sent(cursor)
                self._told.add(line)
                del self._unsent[line]

    @contextmanager
    def _apart(self, what: str) -> Iterator[None]:
        """Keep a problem with one line or one run from the others. Says it once while it lasts. Raises what an outage raises."""
        try:
            yield
        except Exception as error:
            if is_outage(error):
                raise
            text = f"{what}: {type(error).__name__}: {error}"
            if self._troubles.get(what) != text:
                self._say(text)
            self._troubles[what] = text
        else:
            self._troubles.pop(what, None)

    async def _open_due(self, client: PrefectClient) -> None:
        """Create the run of a cycle that is due. A paused deployment opens none."""
        for line, reason in list(self._due.items()):
            if line in self._paused or line not in self._deployments:
                continue
            del self._due[line]
            number = self._lines[line].line.cycles + 1
            minute = datetime.now(UTC).strftime("%Y%m%dT%H%M")
            with self._apart(f"the next cycle of {line}"):
                self._has_scheduled = True
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
                with self._apart(f"the run {run.name}"):
                    await self._enter(client, run)

    async def _enter(self, client: PrefectClient, run: FlowRun) -> None:
        if self._host.stopping.is_set() or self.carriers.carries(run.id):
            return
        orphan = run.deployment_id not in self._deployments.values()  # Prefect lets no run begin whose deployment was deleted
        answer = await client.set_flow_run_state(run.id, Pending(), force=orphan)
        if answer.status is SetStateStatus.ACCEPT:
            self.carriers.start(await client.read_flow_run(run.id))

    async def _take_answers(self, client: PrefectClient) -> None:
        """Record the answers that Prefect has stored for pending requests.

        One request reads the runs of all waiting cycles. The inputs of a run are read when its state has changed, and every few seconds,
        because a crash of Prefect's server can leave an answer without a change of the state.
        """
        open_cycles = [news.cycle for news in self._lines.values() if news.cycle is not None]
        waiting = {cycle_tag(cycle.id): cycle for cycle in open_cycles if set(cycle.asked) - set(cycle.answers)}
        tags, now = list(waiting), time.monotonic()
        for first in range(0, len(tags), _CYCLES):
            for run in await self._read(client, FlowRunFilter(), some=tags[first : first + _CYCLES]):
                state = run.state.id if run.state is not None else None
                if run.state is not None and run.state.is_scheduled():  # its form was answered
                    self._has_scheduled = True
                before, at = self._inputs_read.get(run.id, (None, float("-inf")))
                if state == before and now - at < _INPUT_SECONDS:
                    continue
                cycle = next(waiting[tag] for tag in run.tags if tag in waiting)
                with self._apart(f"the answers of {cycle.line}"):
                    await self._take_answers_of(client, cycle, run)
                    self._inputs_read[run.id] = (state, now)
        self._inputs_read = {run: seen for run, seen in self._inputs_read.items() if now - seen[1] < 10 * _INPUT_SECONDS}

    async def _take_answers_of(self, client: PrefectClient, cycle: CycleView, run: FlowRun) -> None:
        for kind in cycle.asked:
            if kind not in cycle.answers:
                request = forms.request_view(self._ledger, approval_stream(cycle.id, kind))
                closed = await forms.take_answer(client, self._ledger, run.id, request) if request.answer is None else None
                if closed is not None:
                    self._say(f"{request.id}: {closed}")

    async def _sweep(self, client: PrefectClient) -> None:
        """Compare the newest cycles of the changed lines with their runs, and mend the runs.

        A line whose run was just suspended is one of them: a person may have answered before the run had left this process.
        """
        while self._suspended:
            self._changed.add(self._suspended.pop())
        while self._changed:
            line = self._changed.pop()
            self._failed.add(line)
            with self._apart(f"the runs of {line}"):
                view = self._host.installation.line(line)
                for number in range(max(1, view.cycles - 1), view.cycles + 1):
                    cycle = self._host.installation.cycle(line, number)
                    if cycle is not None:
                        await self._compare(client, line, cycle)
                self._failed.discard(line)

    async def _close_ended(self, client: PrefectClient) -> None:
        """End the suspended runs of cycles that have ended without them, for example by `ratchet run` while nobody served the line."""
        for run in await self._read(client, _in_states(StateType.PAUSED)):
            with self._apart(f"the run {run.name}"):
                stream = next((tag.removeprefix(cycle_tag("")) for tag in run.tags if tag.startswith(cycle_tag("cycle/"))), "")
                rows = self._ledger.read(stream) if stream else []
                if rows and (cycle := fold_cycle(rows)).ended:
                    await client.set_flow_run_state(run.id, final_state(cycle), force=True)

    async def _continue_abandoned(self, client: PrefectClient) -> None:
        """Schedule the runs again that a process carried which has ended. This process holds the installation's lock."""
        for run in await self._read(client, _in_states(StateType.PENDING, StateType.RUNNING)):
            with self._apart(f"the run {run.name}"):
                await self._schedule(client, run, "AwaitingRetry", "the process that carried this run has ended; the run goes on")
        for run in await self._read(client, _in_states(StateType.CANCELLING)):
            with self._apart(f"the run {run.name}"):
                if not self.carriers.carries(run.id) and not self._is_of_open_cycle(run):
                    await client.set_flow_run_state(run.id, Cancelled(message="cancelled"), force=True)

    def _is_of_open_cycle(self, run: FlowRun) -> bool:
        return any(news.cycle is not None and cycle_tag(news.cycle.id) in run.tags for news in self._lines.values())

    async def _compare(self, client: PrefectClient, line: str, cycle: CycleView) -> None:
        runs = await self._runs_of(client, cycle.id)
        carried = next((run for run in runs if self.carriers.carries(run.id)), None)
        if carried is not None:
            await self._cancel_if_asked(cycle, carried)
            await self._show_running(client, line, cycle, carried)
            return
        if cycle.ended:
            for run in runs:
                if run.state is not None and run.state.type in _OPEN:
                    await client.set_flow_run_state(run.id, final_state(cycle), force=True)
            return
        alive = next((run for run in runs if run.state is not None and run.state.type in _OPEN), None)
        if alive is None and not runs and line in self._deployments:
            self._has_scheduled = True
            await client.create_flow_run_from_deployment(
                self._deployments[line],
                parameters={"line": line, "when": "now", "reason": cycle.opened.reason},
                name=run_name(cycle.id),
                tags=[cycle_tag(cycle.id)],
                idempotency_key=f"{self._owner}/{cycle.id}/{datetime.now(UTC):%Y%m%dT%H%M}",
            )
        elif alive is None and runs:
            await self._cancel_if_asked(cycle, runs[0])
            await self._schedule(client, runs[0], "AwaitingRetry", "the cycle is still open in the ledger; the run goes on")
        elif alive is not None and alive.state is not None and alive.state.type is StateType.PAUSED:
            await self._compare_suspended(client, cycle, alive)
        elif alive is not None and alive.state is not None and alive.state.type is StateType.RUNNING:
            await self._schedule(client, alive, "AwaitingRetry", "this process does not carry the run any more; the run goes on")
        elif alive is not None and alive.state is not None and alive.state.type is StateType.CANCELLING:
            await self._cancel_if_asked(cycle, alive)
            await self._schedule(client, alive, "AwaitingRetry", "the cycle is cancelled; the run ends")

    async def _show_running(self, client: PrefectClient, line: str, cycle: CycleView, run: FlowRun) -> None:
        """Show a run that is at work as Running again, if a person has given it another state. A form needs a run in this state."""
        if run.state is None or run.state.type not in _NOT_AT_WORK or self._host.stopping.is_set():
            return
        now = self._host.installation.cycle(line, cycle.number)
        if now is not None and not now.ended and self.carriers.carries(run.id):
            await client.set_flow_run_state(run.id, Running(message="the cycle is still open in the ledger"), force=True)

    async def _compare_suspended(self, client: PrefectClient, cycle: CycleView, run: FlowRun) -> None:
        """Enter a suspended run again if its cycle can go on or end, or if its form is missing.

        A run without our form was suspended by a person in Prefect; it waits for that person, at most until its request is closed.
        """
        keys = (run.state.state_details.run_input_keyset or {}) if run.state is not None else {}
        line, step = self._host.installation.line(cycle.line), position(self._host.installation, cycle.id).step
        if step is None:
            return
        waits = await asyncio.to_thread(look, self._host.installation, cycle.id, step) is not None
        if not keys and STEPS[step].approval is None and not (line.cancel_asked or line.rollback_asked):
            return
        if not waits or (keys and not await _has_form(client, run.id, keys.get("schema", ""))):
            await self._schedule(client, run, "Resuming", "there is nothing to wait for; the run goes on")

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
            self._has_scheduled = True
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

    async def _runs_of(self, client: PrefectClient, cycle: str) -> list[FlowRun]:
        """Return the runs of a cycle, newest first. They have a tag that the flow sets, so a run that somebody renamed is found too."""
        return await self._read(client, FlowRunFilter(), tags=(cycle_tag(cycle),))

    async def _read(
        self,
        client: PrefectClient,
        chosen: FlowRunFilter,
        order: FlowRunSort = FlowRunSort.START_TIME_DESC,
        tags: Sequence[str] = (),
        some: Sequence[str] = (),
    ) -> list[FlowRun]:
        """Return the chosen runs of this installation, also those whose deployment was deleted, at most 200.

        They have all of `tags`, and at least one of `some` (default: those of the served lines).
        """
        lines = [f"{LINE_TAG}{line}" for line in self._loops]
        chosen.tags = FlowRunFilterTags(all_=[owner_tag(self._home), *tags], any_=list(some) or lines)
        return list(await client.read_flow_runs(flow_run_filter=chosen, sort=order, limit=200))


def is_outage(error: BaseException) -> bool:
    """Return whether the Prefect server is unavailable or busy, so that a later attempt can succeed."""
    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code in _BUSY
    return isinstance(error, httpx.TransportError) or (error.__cause__ is not None and is_outage(error.__cause__))


def _streams(line: LineView, all_cycles: bool) -> set[str]:
    """Return the streams of a line whose rows can be new: its own and those of its newest two cycles.

    With `all_cycles` those of all cycles, because commands can have ended several while nobody served the line.
    """
    streams = {line_stream(line.line)}
    for number in range(1 if all_cycles else max(1, line.cycles - 1), line.cycles + 1):
        cycle = cycle_stream(line.line, number)
        streams |= {cycle, rollout_stream(cycle), *(approval_stream(cycle, kind) for kind in ApprovalKind)}
    return streams


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


def _event_documents(home: Home) -> Documents:
    """Return the documents with the cursor of the events. In pods, they are in the database, so that another pod goes on from there."""
    if not is_in_pods():
        return FolderDocuments(home.prefect)
    documents = open_documents(home.prefect, home.database(installation_id(home)), "prefect")
    copy_documents(FolderDocuments(home.prefect), documents, [CURSOR])
    return documents
