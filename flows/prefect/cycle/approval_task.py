"""The task run of a step that waits for a person: paused while nobody has answered, and ended with the outcome of the step.

It carries no work. The request is in the ledger, and the form of the flow run takes the answer.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid4

from prefect import Task
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, TaskRunFilter, TaskRunFilterName
from prefect.client.schemas.objects import TaskRun
from prefect.states import Paused, Running, State

from ratchet.contracts.steps import Step


async def show_waiting(client: PrefectClient, run: UUID, step: Step, task: Task[..., State], until: datetime) -> None:
    """Give the flow run `run` a paused task run of `task`, the task of `step`, unless it has one. `until` is the request's expiry."""
    found = await _open(client, run, step)  # not paused: an earlier call was interrupted
    if found is not None and found.state is not None and found.state.is_paused():
        return
    shown = found or await client.create_task_run(task, run, dynamic_key=uuid4().hex, name=step.value)
    waits: State[None] = Paused(message=f"waits for a person until {until:%Y-%m-%d %H:%M} UTC; answer in the form of the run")
    for state in (Running(), waits):  # only a task run that has run has a start, which Prefect's timeline needs
        await client.set_task_run_state(shown.id, state, force=True)


async def show_outcome(client: PrefectClient, run: UUID, step: Step, outcome: State) -> bool:
    """End the open task run of `step` with the state `outcome`. Return whether there was one."""
    found = await _open(client, run, step)
    if found is not None:
        await client.set_task_run_state(found.id, outcome, force=True)
    return found is not None


async def _open(client: PrefectClient, run: UUID, step: Step) -> TaskRun | None:
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
    named = TaskRunFilter(name=TaskRunFilterName(any_=[step.value]))
    found = await client.read_task_runs(flow_run_filter=of_run, task_run_filter=named, limit=200)
    return next((one for one in found if one.state is None or not one.state.is_final()), None)
