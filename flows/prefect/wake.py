"""Starts a run of another flow now. A wake-up is named after the row that calls for it, so that two of them are one run; a lost
one costs no more than the reconciler's interval."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from prefect.client.orchestration import PrefectClient
from prefect.exceptions import ObjectNotFound

from flows.prefect.duties import Progress


async def up(client: PrefectClient, line: str, standing: Progress) -> None:
    """The flow that the line needs next, once per row of the cycle and minute."""
    if standing.next is not None:
        minute = datetime.now(UTC).strftime("%Y%m%dT%H%M")
        await start(client, standing.next, line, f"{standing.next}/{standing.cycle}@{standing.seq}/{minute}")


async def retrain(client: PrefectClient, line: str, reason: str) -> None:
    """Goes on with the open cycle."""
    await start(client, "retrain", line, f"retrain after {reason}")


async def start(client: PrefectClient, flow: str, line: str, key: str, request: str | None = None) -> str | None:
    """A run of a line's deployment, its id; the one that exists where `key` was used before; None where nothing is served.

    `request`: of an approval, which the run is named after.
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
