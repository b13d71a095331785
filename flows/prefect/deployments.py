"""Registers one deployment per line, `ratchet-retrain/LINE`, and keeps what people changed in Prefect: a paused deployment stays paused.

No code of a deployment is ever loaded: `ratchet serve` runs its own flow, whatever entrypoint or pull steps the server stores.
"""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound
from prefect.utilities.callables import parameter_schema

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop
from ratchet.flows.composition.identity import installation_id
from ratchet.flows.config.home import Home
from ratchet.flows.prefect.cycle.cycle_flow import retrain
from ratchet.flows.prefect.cycle.run_names import FLOW, LINE_TAG

TAG = "ratchet"
_OWNER = "ratchet-installation:"
_CRON = "cron"
_DESCRIPTION = """Retrains the model line `{line}`. One run is one cycle; its task runs are the steps.

**Run** opens a cycle now. The service opens one by itself {when}. Pause this deployment to stop that; a cycle that is open goes on.
Cancelling a run cancels its cycle. Approvals: a suspended run shows its form with **Resume**.
"""


def owner_tag(home: Home) -> str:
    """Return the tag of this installation's deployments, which their runs inherit."""
    return f"{_OWNER}{installation_id(home)}"


async def register(client: PrefectClient, home: Home, loop: Loop) -> UUID:
    """Create or update the deployment of a line and return its id.

    Parameters, text and the cron schedule follow the loop file. `paused`, and whether a schedule is active, stay as they are in Prefect.
    Raises ConfigError if another installation has a deployment of this name on the same server.
    """
    line, owner = loop.line.name, owner_tag(home)
    tags = [TAG, f"{LINE_TAG}{line}", owner]
    parameters = {"line": line, "when": "now", "reason": ""}
    when = f"when {loop.trigger.new_traces:,} new traces have arrived"
    when += f", and by the schedule `{loop.trigger.cron}` ({loop.trigger.timezone})" if loop.trigger.cron else ""
    text = _DESCRIPTION.format(line=line, when=when)
    try:
        found = await client.read_deployment_by_name(f"{FLOW}/{line}")
    except ObjectNotFound:
        flow = await client.create_flow_from_name(FLOW)
        schema = parameter_schema(retrain).model_dump(exclude_unset=True)
        schedules = [_schedule(loop)] if loop.trigger.cron else []
        created: UUID = await client.create_deployment(
            flow,
            line,
            schedules=schedules,
            parameters=parameters,
            description=text,
            tags=tags,
            parameter_openapi_schema=schema,
            enforce_parameter_schema=True,
            path=".",
            entrypoint="ratchet.flows.prefect.cycle.cycle_flow:retrain",
        )
        return created
    others = [tag for tag in found.tags if tag.startswith(_OWNER) and tag != owner]
    if others:
        raise ConfigError(
            f"the deployment {FLOW}/{line} on this Prefect server belongs to another installation of Ratchet; give this line another "
            f"name, or delete that deployment if its installation no longer exists"
        )
    await client.update_deployment(found.id, DeploymentUpdate(parameters=parameters, description=text, tags=tags))
    await _update_schedule(client, found, loop)
    known: UUID = found.id
    return known


def _schedule(loop: Loop) -> DeploymentScheduleCreate:
    cron = CronSchedule(cron=str(loop.trigger.cron), timezone=loop.trigger.timezone)
    return DeploymentScheduleCreate(schedule=cron, active=True, slug=_CRON, parameters={"when": "any new traces", "reason": "by schedule"})


async def _update_schedule(client: PrefectClient, found: DeploymentResponse, loop: Loop) -> None:
    """Let the schedule with our slug follow the loop file. Other schedules, and `active`, belong to the people who use Prefect."""
    ours = next((one for one in found.schedules if one.slug == _CRON), None)
    if loop.trigger.cron is None:
        if ours is not None:
            await client.delete_deployment_schedule(found.id, ours.id)
        return
    wanted = _schedule(loop)
    if ours is None:
        await client.create_deployment_schedules(found.id, [wanted])
    elif ours.schedule.model_dump(exclude={"day_or"}) != wanted.schedule.model_dump(exclude={"day_or"}):
        await client.update_deployment_schedule(found.id, ours.id, schedule=wanted.schedule)
