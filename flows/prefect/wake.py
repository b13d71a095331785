"""Starts a run of another flow immediately.

Each start has an idempotency key derived from the ledger row that causes it, so repeated starts create one run. If a start is lost,
the delay is at most one reconcile interval.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from prefect.client.orchestration import PrefectClient
from prefect.exceptions import ObjectNotFound

from flows.prefect.flow_handlers import LineStatus


async def up(client: PrefectClient, line: str, status: LineStatus) -> None:
    """Start the flow that the line needs next, if any.

    The idempotency key allows one run per newest row of the cycle and per minute.
    """
    if status.next is not None:
        minute = datetime.now(UTC).strftime("%Y%m%dT%H%M")
        await start_run(client, status.next, line, f"{status.next}/{status.cycle}@{status.seq}/{minute}")


async def retrain(client: PrefectClient, line: str, reason: str) -> None:
    """Start `retrain` for the line so that its open cycle continues.

    `reason` is part of the idempotency key: each reason starts at most one run.
    """
    await start_run(client, "retrain", line, f"retrain after {reason}")


async def start_run(client: PrefectClient, flow: str, line: str, key: str, request: str | None = None) -> str | None:
    """Start a run of the deployment `flow`/`line` and return the run id.

    `key` is Prefect's idempotency key: if it was used before, Prefect returns the existing run. `request` is the id of an approval
    request; it becomes the run's parameter and name. Returns None if the deployment does not exist.
    """
    try:
        deployment = await client.read_deployment_by_name(f"{flow}/{line}")
    except ObjectNotFound:
        return None
    parameters: dict[str, Any] = {"request": request} if request else {}
    run = await client.create_flow_run_from_deployment(
        deployment.id,
        parameters={**deployment.parameters, **parameters},
        idempotency_key=key,
        tags=deployment.tags,
        name=request.replace("/", " ") if request else None,
    )
    return str(run.id)
