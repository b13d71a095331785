"""The flow `ratchet-request`, which a worker of a process work pool runs: it asks the service for a cycle, and exits.

For teams that start everything through work pools. The worker process needs Prefect's API and this package; it reads no home folder and
no ledger, and the cycle itself runs in the service.
"""

from __future__ import annotations

import asyncio
import time

from prefect import flow, runtime
from prefect.artifacts import acreate_link_artifact
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.settings import get_current_settings
from prefect.states import Completed, Failed, State

from ratchet.flows.prefect.cycle.run_names import FLOW, When

REQUEST = "ratchet-request"
"""Name of the flow."""
WAIT_SECONDS = 30.0
"""Seconds to wait until the service has taken the request. Later, it is taken without this process."""
_POLL = 0.5


@flow(name=REQUEST)
async def request(line: str, when: When = "now", reason: str = "") -> State:
    """Ask the service to open a cycle of a model line, and exit. The cycle is a run of the deployment `ratchet-retrain/LINE`.

    Args:
        line: The model line to retrain.
        when: "now" opens a cycle in any case; "any new traces" only if a trace has arrived since the last cycle; "enough new traces" only
            if the conditions in the loop file's section [trigger] hold.
        reason: Why the cycle is opened. The ledger records it.
    """
    own = runtime.flow_run.id
    async with get_client() as client:
        try:
            deployment = await client.read_deployment_by_name(f"{FLOW}/{line}")
        except ObjectNotFound:
            return Failed(message=f"there is no deployment {FLOW}/{line}; start `ratchet serve` with the loop file of this line")
        asked = await client.create_flow_run_from_deployment(
            deployment.id,
            parameters={"line": line, "when": when, "reason": reason or f"asked by the run {runtime.flow_run.name}"},
            idempotency_key=f"{REQUEST}/{own}",
        )
        taken = await _taken(client, asked)
    ui = get_current_settings().ui_url
    if ui:
        await acreate_link_artifact(f"{ui.rstrip('/')}/runs/flow-run/{asked.id}", link_text=taken.name, description="The run of the cycle")
    if taken.state is not None and taken.state.is_failed():
        return Failed(message=f"{taken.name}: {taken.state.message}")
    get_run_logger().info("asked for a cycle of %s: run %s", line, taken.name)
    if taken.state is not None and taken.state.is_final():
        return Completed(message=taken.state.message)
    if not _is_carried(taken, line):
        return Completed(message="asked: the service has not taken the run yet; it does when it runs and Prefect can be reached")
    return Completed(message=f"opened: {taken.name}; see its run")


async def _taken(client: PrefectClient, asked: FlowRun) -> FlowRun:
    """Return the run when the service has opened its cycle or has ended it, or as it is after WAIT_SECONDS."""
    until, line = time.monotonic() + WAIT_SECONDS, str(asked.parameters.get("line"))
    while True:
        now = await client.read_flow_run(asked.id)
        if (now.state is not None and now.state.is_final()) or _is_carried(now, line) or time.monotonic() > until:
            return now
        await asyncio.sleep(_POLL)


def _is_carried(run: FlowRun, line: str) -> bool:
    """Return whether the service has opened a cycle for the run. It then names the run LINE/NUMBER."""
    return bool(run.name.startswith(f"{line}/"))
