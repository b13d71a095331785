"""The flow of a cycle: one run is one cycle, and its task runs are the steps.

The ledger decides what a step does. Each task is a thin call of the engine, so a step that the ledger has returns at once. The run leaves
the process while a person decides, and after a restart of the service: it is then entered again from the top. Steps that Prefect already
shows as completed are not shown again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
from prefect import flow, runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.sorting import TaskRunSort
from prefect.exceptions import Pause, PrefectHTTPStatusError
from prefect.logging import get_run_logger
from prefect.states import AwaitingRetry, Cancelled, Completed, Crashed, Failed, State

from ratchet.contracts.cycle import ApprovalKind
from ratchet.contracts.errors import Rejected, Retryable
from ratchet.contracts.ids import approval_stream, cycle_stream
from ratchet.contracts.ports import Progress
from ratchet.contracts.steps import STEPS, Step, StepDeclaration
from ratchet.contracts.steps import State as CycleState
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.steps import outcome_text
from ratchet.flows.engine.line import open_cycle, open_if_due
from ratchet.flows.prefect.cycle import approval_task, cards, forms
from ratchet.flows.prefect.cycle.host import the_host
from ratchet.flows.prefect.cycle.run_names import FLOW, LINE_TAG, NOT_OPENED, OUTCOME_TAG, When, cycle_tag, run_name
from ratchet.flows.service.carry import Position, carry, look, position

POLL = 2.0
"""Seconds between two looks at a step that waits, unless the ledger changes before."""
_LONGEST_PAUSE = 60.0
"""Seconds between two tries of a step that fails again and again. The first pause is twice POLL, and each further one is twice as long."""
_LOOKS = 5
"""Every fifth look takes the line's lease and lets the executor work; the others only read."""
_COUNT = 10.0
"""Seconds between two log lines about a count."""
_TELL = 30.0
"""Seconds after which a log line that differs only in its numbers is written again."""


@asynccontextmanager
async def prefect() -> AsyncIterator[PrefectClient]:
    """Give a client of the Prefect API. While the API is away, raises Pause: the run is left as it is, and entered again later."""
    try:
        async with get_client() as client:
            yield client
    except (httpx.TransportError, PrefectHTTPStatusError) as error:
        if isinstance(error, PrefectHTTPStatusError) and error.response.status_code < 500:
            raise
        raise Pause("the Prefect API is away") from error


@flow(name=FLOW)
async def retrain(line: str, when: When = "now", reason: str = "") -> State:
    """Retrain a model line. One run is one cycle.

    Args:
        line: The model line to retrain.
        when: "now" opens a cycle in any case, unless a schedule has created the run; "any new traces" only if a trace has arrived since
            the last cycle, as every schedule does;
            "enough new traces" only if the conditions in the loop file's section [trigger] hold.
        reason: Why the cycle is opened. The ledger records it.
    """
    cycle = await enter(line, when, reason)
    for step in Step:
        await cycle.take(step)
    return await cycle.result()


class CarriedCycle:
    """The cycle of a run, or the reason why the run has none. After the end of the cycle, all further steps do nothing."""

    def __init__(self, run: UUID, cycle: str | None, why: str, shown: frozenset[str]) -> None:
        self._run = run
        self._cycle = cycle
        self._why = why
        self._shown = shown

    async def take(self, step: Step) -> None:
        """Carry the cycle through one step, as a task run. A step that is over does nothing."""
        kind = STEPS[step].approval
        if kind is not None:
            await self._wait_for_answer(step, kind)
        now = self._position()
        if now is None or (now.step is not step and (step in self._shown or not now.cycle.has(step))):
            return
        await TASKS[step](now.cycle.id, return_state=True)
        await self._leave_if_stopping()

    async def _wait_for_answer(self, step: Step, kind: ApprovalKind) -> None:
        """Wait until a request for approval is closed. While nobody has answered, the run is suspended with the form."""
        host = the_host()
        while (now := self._position()) is not None and now.step is step:
            async with prefect() as client:
                view = _request(now.cycle, kind)
                if view is not None:
                    await forms.take_answer(client, host.installation.ledger, self._run, view)
                now = await asyncio.to_thread(carry, host.installation, now.cycle.id, step, _log_progress())
                view = _request(now.cycle, kind)
                if now.step is step and view is not None and forms.closed_reason(view) is None:
                    links = cards.links(host.installation, now.cycle)
                    text, page = await asyncio.to_thread(forms.texts_of, host.installation, view, links)
                    await cards.publish_request(view, page)
                    until = f"{view.expires:%Y-%m-%d %H:%M} UTC"
                    get_run_logger().info("waiting for the approval of the %s; the run's form is open until %s", kind, until)
                    await approval_task.show_waiting(client, self._run, step, TASKS[step], view.expires)
                    await forms.show_form(client, self._run, view, text)
                    await self._leave_unless_cancelled(client)
            await self._leave_if_stopping()
            if now.step is step:
                await host.wait(now.cycle.id, POLL)
        await self._show_answered(step)

    async def _show_answered(self, step: Step) -> None:
        """End the task run that has shown that `step` waited for a person, if there is one and the step is over."""
        if self._cycle is None:
            return
        installation = the_host().installation
        cycle = position(installation, self._cycle).cycle
        if cycle.has(step) or cycle.ended:
            async with prefect() as client:
                if await approval_task.show_outcome(client, self._run, step, step_outcome(cycle, step)):
                    self._shown |= {step}
                    await cards.publish(installation, step, cycle)

    async def result(self) -> State:
        """Show how the cycle ended in the run's name and tags, and return the final state of the run."""
        if self._cycle is None:
            await self._tell(NOT_OPENED)
            return Completed(message=self._why)
        cycle = position(the_host().installation, self._cycle).cycle
        await self._tell(str(cycle.state), run_name(cycle.id))
        return final_state(cycle)

    async def _tell(self, outcome: str, name: str = "") -> None:
        """Give the run the tag of its outcome, and append the outcome to its name unless a person has given it another one."""
        async with prefect() as client:
            run = await client.read_flow_run(self._run)
            others = [tag for tag in run.tags if not tag.startswith(OUTCOME_TAG)]
            named = {"name": f"{name} {outcome}"} if run.name == name else {}
            await client.update_flow_run(self._run, tags=[f"{OUTCOME_TAG}{outcome}", *others], **named)

    def _position(self) -> Position | None:
        if self._cycle is None:
            return None
        now = position(the_host().installation, self._cycle)
        return now if now.step is not None or self._shows_more(now.cycle) else None

    def _shows_more(self, cycle: CycleView) -> bool:
        """Return whether Prefect lacks a step that an ended cycle has taken, because its database was deleted."""
        return any(cycle.has(step) and step not in self._shown for step in Step)

    async def _leave_unless_cancelled(self, client: PrefectClient) -> None:
        """Leave a run that did not take its form, because a person has given it another state. The desk enters it again.

        A cancelled run stays: its cycle ends at the next look.
        """
        state = (await client.read_flow_run(self._run)).state
        if state is not None and not (state.is_cancelling() or state.is_cancelled()):
            raise Pause("the run does not show its form", state=state)

    async def _leave_if_stopping(self) -> None:
        """Leave the run for the next process if this one stops."""
        if the_host().stopping.is_set():
            async with prefect() as client:
                state: State[None] = AwaitingRetry(message="the service was stopped; the run continues when the line is served again")
                result = await client.set_flow_run_state(self._run, state, force=True)
                raise Pause(state=result.state or state)


_FAILED = frozenset({CycleState.FAILED, CycleState.ROLLED_BACK})
_COMPLETED = frozenset({CycleState.PROMOTED, CycleState.NOT_TRAINED, CycleState.REJECTED})


def final_state(cycle: CycleView) -> State:
    """Return the final state of the run of an ended cycle, with Prefect's own name, by which its pages and automations choose runs.

    Failed: the cycle failed or was rolled back. Completed: there is a decision. Cancelled: the cycle ended without one.
    """
    text = f"{cycle.state}: {cycle.reason}"
    if cycle.state in _FAILED:
        return Failed(message=text)
    return Completed(message=text) if cycle.state in _COMPLETED else Cancelled(message=text)


def step_outcome(cycle: CycleView, step: Step) -> State:
    """Return the final state of the task run of a step that is over. A step without a result ended with its cycle."""
    text = outcome_text(cycle, step)
    if cycle.ended and not cycle.has(step):
        return Failed(message=text) if cycle.state in _FAILED else Cancelled(message=text)
    return Completed(message=text)


async def enter(line: str, when: When, reason: str) -> CarriedCycle:
    """Return the cycle that the current run carries. Opens one if the run has none yet."""
    host, run = the_host(), UUID(str(runtime.flow_run.id))
    when = "any new traces" if when == "now" and await _is_scheduled(run) else when
    tags = [str(tag) for tag in runtime.flow_run.tags]
    view = host.installation.line(line)
    numbers = {cycle_tag(cycle_stream(line, number)): number for number in range(1, view.cycles + 1)}
    async with prefect() as client:
        number = next((numbers[tag] for tag in tags if tag in numbers), None)
        if number is not None:
            cycle = cycle_stream(line, number)
            carrier = host.carried.setdefault(cycle, str(run))
            if carrier != str(run):
                return CarriedCycle(run, None, f"{cycle} is carried by another run, {carrier}", frozenset())
            at = position(host.installation, cycle).cycle
            shown = await _shown(client, run, at, position(host.installation, cycle).step)
            if not shown:
                await cards.publish_report(host.installation, at)
            return CarriedCycle(run, cycle, "", shown)
        others = [tag.removeprefix(LINE_TAG) for tag in tags if tag.startswith(LINE_TAG) and tag != LINE_TAG + line]
        if others:
            return CarriedCycle(run, None, f"no cycle opened: the deployment is of line {others[0]}, not of {line}", frozenset())
        # The tag comes before the cycle. Otherwise the desk, or the next process after a crash, would give the cycle a second run.
        await client.update_flow_run(run, tags=[*tags, cycle_tag(cycle_stream(line, view.cycles + 1))])
        opened, why = await asyncio.to_thread(_open, line, when, reason)
        if opened is None:
            await client.update_flow_run(run, tags=tags)
            get_run_logger().info("no cycle opened: %s", why)
            return CarriedCycle(run, None, f"no cycle opened: {why}", frozenset())
        host.carried[opened] = str(run)
        await client.update_flow_run(run, name=run_name(opened), tags=[*tags, cycle_tag(opened)])
        get_run_logger().info("opened %s: %s", opened, why)
        await cards.publish_report(host.installation, position(host.installation, opened).cycle)
        return CarriedCycle(run, opened, why, frozenset())


async def _is_scheduled(run: UUID) -> bool:
    """Return whether a schedule has created the run. A schedule that was made in the UI has the deployment's parameter `when`."""
    async with prefect() as client:
        return bool((await client.read_flow_run(run)).auto_scheduled)


def _open(line: str, when: When, reason: str) -> tuple[str | None, str]:
    """Open a cycle as `when` says. Return the opened cycle or None, and the reason in either case."""
    host = the_host()
    context = host.installation.context(host.loop_of(line))
    try:
        if when == "now":
            why = reason or "started in Prefect"
            return open_cycle(context, why), why
        return open_if_due(context, when == "any new traces")
    except (Rejected, Retryable) as error:
        return None, str(error)


async def _shown(client: PrefectClient, run: UUID, cycle: CycleView, current: Step | None) -> frozenset[str]:
    """Return the names of the steps that Prefect shows as completed, and end the task runs that a dead process has left.

    The ledger says whether the step of such a task run was completed. A training and a rollout have a result as soon as they have begun,
    so the step that the cycle is at, `current`, is never completed.
    """
    shown = set()
    chosen = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
    for step in await client.read_task_runs(flow_run_filter=chosen, sort=TaskRunSort.EXPECTED_START_TIME_ASC, limit=200):
        at = _step_of(step.name)
        if at is None or step.state is None:
            continue
        if step.state.is_completed():
            shown.add(str(at))
        elif not step.state.is_final() and STEPS[at].approval is None:  # `approval_task` ends those that wait for a person
            left: State[None] = Crashed(message="the service stopped during this step; the step continues in a new task run")
            if at is not Step.TRAIN and at is not current and cycle.has(at):
                left = Completed(message="the step was completed; its task run was interrupted afterwards")
                shown.add(str(at))
            await client.set_task_run_state(step.id, left, force=True)
    return frozenset(shown)


def _step_of(name: str) -> Step | None:
    """Return the step that a task run shows. Until it has begun, Prefect appends a dash and a part of its key to the task's name."""
    return next((step for step in Step if name == step or name.startswith(f"{step}-")), None)


def _request(cycle: CycleView, kind: ApprovalKind) -> Any:
    """Return the cycle's request of this kind, or None if it is not open yet."""
    return forms.request_view(the_host().installation.ledger, approval_stream(cycle.id, kind)) if kind in cycle.asked else None


def _log_progress() -> Progress:
    """Return a progress callback that writes to the log of the current run: each text once, and counts sometimes."""
    logger, last, at = get_run_logger(), "", 0.0

    def report(what: str, done: int, total: int) -> None:
        nonlocal last, at
        text = what if total == 0 else f"{what}: {done} of {total}"
        if text != last and (total == 0 or done == total or time.monotonic() - at > _COUNT):
            last, at = text, time.monotonic()
            logger.info(text)

    return report


async def _carry(cycle: str, step: Step) -> State:
    """Carry a cycle through a step; called by its task. Returns the final state of the task run."""
    host, log = the_host(), get_run_logger()
    progress, told, at = _log_progress(), "", 0.0
    card = cards.LiveTraining()
    turns, pause = 0, POLL
    while True:
        now = await asyncio.to_thread(look, host.installation, cycle, step) if turns % _LOOKS else None
        if now is None:
            now = await asyncio.to_thread(carry, host.installation, cycle, step, progress)
        turns += 1
        pause = min(2 * pause, _LONGEST_PAUSE) if now.failed else POLL
        if now.step is not step:
            break
        kind = re.sub(r"\d+", "#", now.waits)
        if kind != told or time.monotonic() - at > _TELL:
            log.info("waiting: %s", "another process works on this line" if " is leased by " in now.waits else now.waits)
            told, at = kind, time.monotonic()
        if step is Step.TRAIN:
            await card.show(host.installation, now.cycle)
        if host.stopping.is_set():
            return Cancelled(message="the service was stopped during this step; the step continues in a new task run")
        await _pause(cycle, pause, now.failed)
    await cards.publish(host.installation, step, now.cycle)
    return step_outcome(now.cycle, step)


async def _pause(cycle: str, seconds: float, failed: bool) -> None:
    """Wait for `seconds`, or until the ledger changes. After a failure only a request to stop the cycle, or the service, ends the pause.

    A failed step writes a row itself; without this, its own row would be the reason to try it again at once.
    """
    host, until = the_host(), time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        await host.wait(cycle, left)
        line = host.installation.line(cycle.split("/")[1])
        if not failed or host.stopping.is_set() or line.cancel_asked or line.rollback_asked:
            return


def _task_of(declared: StepDeclaration) -> Any:
    """Return the task of a step. Its parameter is the cycle."""

    async def carry_through(cycle: str) -> State:
        return await _carry(cycle, declared.step)

    carry_through.__name__ = carry_through.__qualname__ = declared.step.value
    name = declared.step.value
    return task(name=name, description=declared.purpose, task_run_name=name, cache_policy=NO_CACHE, persist_result=False)(carry_through)


TASKS = {step: _task_of(declared) for step, declared in STEPS.items()}
"""Step -> its task in Prefect."""
