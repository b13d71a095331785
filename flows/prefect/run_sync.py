"""Keeps Prefect's flow runs consistent with the ledger, which Prefect does not do by itself.

Each pending approval request has exactly one run that can be answered, and a closed request has none. A run whose process is dead
is not left in state Running.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    DeploymentFilterTags,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import DeploymentSort, FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Completed, Crashed

from contracts.ports import Ledger
from flows.config.home import Home
from flows.core.folds import ApprovalView
from flows.engine.line import approvals
from flows.prefect import flow_handlers, run_pidfiles, wake

TAG = "ratchet"
_OPEN = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING, StateType.PAUSED)
_BUSY = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
_START_SECONDS = 120.0
"""If a run has no process record this many seconds after its last state change, its process is considered dead."""
_SCHEMA_SECONDS = 30.0
"""Seconds to wait for the form of a suspended run. Prefect suspends the run before it stores the form; a crash in between leaves a run
that cannot be answered."""


async def show_requests(client: PrefectClient, ledger: Ledger, line: str) -> list[str]:
    """Ensure that every pending approval request of the line has a run with a usable form. Returns the actions as messages.

    The idempotency key contains the number of existing runs, so two concurrent processes create only one run.
    """
    messages = []
    for view in approvals(ledger, line):
        if flow_handlers.closed_reason(view) is not None:
            continue
        known = await _runs_of(client, line, view)
        if not any([await _usable(client, run) for run in known]):
            for run in known:
                await _close(client, run, Cancelled(message="the form of this run was not usable; another run replaces it"))
            await wake.start_run(client, "approval", line, f"{view.id}#{len(known) + 1}", view.id)
            messages.append(f"opened a form for {view.id} in the Prefect UI")
    return messages


async def settle_requests(client: PrefectClient, ledger: Ledger, line: str) -> list[str]:
    """End the runs of closed approval requests. Returns the actions as messages.

    A run becomes Completed if the request was answered elsewhere, and Cancelled if the request expired. One Prefect query serves all
    requests of the line.
    """
    messages = []
    forms = await _runs(client, line, (StateType.PAUSED,), "approval")
    views = {view.id: view for view in approvals(ledger, line)} if forms else {}
    for run in forms:
        view = views.get(str(run.parameters.get("request")))
        closed = flow_handlers.closed_reason(view) if view is not None else None
        if view is not None and closed is not None:
            text = f"{view.id}: {closed}"
            await _close(client, run, Completed(message=text) if view.answer else Cancelled(message=text))
            messages.append(f"closed the form of {text}")
    return messages


async def bury_dead_runs(client: PrefectClient, home: Home, line: str, served_anew: bool = False) -> list[str]:
    """Mark runs without a process as Crashed or Cancelled, and release their concurrency slots. Returns the actions as messages.

    `served_anew` states that no process served the line until now; runs that have not started are then considered dead too.
    """
    messages = []
    for run in await _runs(client, line, _BUSY):
        if _dead(home, run, served_anew):
            cancelled = run.state is not None and run.state.type is StateType.CANCELLING
            state = Cancelled if cancelled else Crashed
            await _close(client, run, state(message="the process disappeared; the next run continues from the ledger"))
            run_pidfiles.forget(home, str(run.id))
            messages.append(f"marked {run.name} as {'cancelled' if cancelled else 'crashed'}: its process disappeared")
    await _free_slots(client, line)
    return messages


def _dead(home: Home, run: FlowRun, served_anew: bool) -> bool:
    lives = run_pidfiles.process_of(home, str(run.id))
    if lives is not None:
        return not lives
    since = run.state.timestamp if run.state is not None else run.created
    return served_anew or since is None or not _younger(since, _START_SECONDS)


def _younger(since: datetime, seconds: float) -> bool:
    return (datetime.now(UTC) - since).total_seconds() < seconds


async def _free_slots(client: PrefectClient, line: str) -> None:
    """Release slots without a run. A slot whose lease was lost with the server would stay occupied permanently."""
    busy = {run.deployment_id for run in await _runs(client, line, _BUSY)}
    for deployment in await client.read_deployments(deployment_filter=_ours(line), sort=DeploymentSort.NAME_ASC, limit=200):
        limit = deployment.global_concurrency_limit
        if limit is not None and limit.active_slots > 0 and deployment.id not in busy:
            await client.update_global_concurrency_limit(limit.name, GlobalConcurrencyLimitUpdate(active_slots=0))


async def drop_missed_ticks(client: PrefectClient, line: str) -> None:
    """Delete scheduled runs whose start time has passed. The next scheduled run covers their work."""
    now = datetime.now(UTC)
    for run in await _runs(client, line, (StateType.SCHEDULED,)):
        due = run.expected_start_time
        if run.auto_scheduled and run.run_count == 0 and due is not None and due < now:
            await client.delete_flow_run(run.id)


async def _usable(client: PrefectClient, run: FlowRun) -> bool:
    """Return whether the run can be answered now or after its form has been stored."""
    state = run.state
    if state is None or state.type not in _OPEN:
        return False
    if state.type is not StateType.PAUSED:
        return True
    keyset = state.state_details.run_input_keyset or {}
    try:
        await client.read_flow_run_input(run.id, keyset["schema"])
    except (ObjectNotFound, KeyError):
        return _younger(state.timestamp, _SCHEMA_SECONDS)
    except Exception as error:
        if getattr(getattr(error, "response", None), "status_code", None) != 404:
            raise
        return _younger(state.timestamp, _SCHEMA_SECONDS)
    return True


async def _close(client: PrefectClient, run: FlowRun, state: Any) -> None:
    if run.state is not None and not run.state.is_final():
        await client.set_flow_run_state(run.id, state, force=True)


async def _runs_of(client: PrefectClient, line: str, view: ApprovalView) -> list[FlowRun]:
    """Return the approval runs of one request."""
    return [run for run in await _runs(client, line, None, "approval") if run.parameters.get("request") == view.id]


async def _runs(client: PrefectClient, line: str, states: tuple[StateType, ...] | None, flow: str | None = None) -> list[FlowRun]:
    chosen = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states)))) if states else None
    named = FlowFilter(name=FlowFilterName(any_=[flow])) if flow else None
    latest, first = FlowRunSort.EXPECTED_START_TIME_DESC, FlowRunSort.EXPECTED_START_TIME_ASC
    order = first if states == (StateType.SCHEDULED,) else latest
    found = await client.read_flow_runs(flow_filter=named, flow_run_filter=chosen, deployment_filter=_ours(line), sort=order, limit=200)
    return list(found)


def _ours(line: str) -> DeploymentFilter:
    return DeploymentFilter(name=DeploymentFilterName(any_=[line]), tags=DeploymentFilterTags(all_=[TAG]))
