"""The flows that Prefect schedules and shows: short, async, a process each. What they do is in duties.py; what holds is in the ledger.

Parameters are plain, so that a run can be started by hand in the Prefect UI. A flow may die anywhere, run twice, or never be
woken: the next `reconcile` goes on from the ledger.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from prefect import flow, runtime
from prefect.artifacts import acreate_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.logging import get_run_logger
from prefect.states import Completed
from pydantic import Field

from contracts.cycle import Answer, Identity
from contracts.errors import Retryable
from flows.config.home import Home
from flows.config.load import load_loop
from flows.core.views import ApprovalView
from flows.engine.installation import Installation
from flows.engine.wiring import open_artifacts, open_ledger
from flows.prefect import duties, views, wake
from flows.prefect.form import evidence_page
from flows.prefect.runs import present

INGESTED = "ratchet.traces.ingested"
"""The event after new traces; its resource is the line. Only a wake-up: the lake's cursor decides."""
PATIENCE = 45.0
"""Seconds that a flow stays with a training job or a rollout: less than a minute, the reconciler's interval."""


class Decision(RunInput):
    """The form. Its JSON schema is all that Prefect checks before it resumes the run."""

    decision: Literal["approve", "reject"] = Field(description="Approve lets the cycle go on; reject ends it.")
    approver: str = Field(
        min_length=1,
        max_length=100,
        pattern=r"\S",
        description="Your name. It is kept in the ledger as a claim: this form does not prove who you are.",
    )
    note: str = Field(default="", max_length=2000, description="Why, for those who read the ledger later.")


def line_resource(line: str) -> str:
    """The resource of a line's events."""
    return f"ratchet.line.{line}"


def _shop() -> Installation:
    return Installation(Home.from_environment())


@flow(name="ingest")
async def ingest(loop: str) -> Any:
    """Traces and feedback into the lake, each record once; wakes `retrain` where something new came."""
    with present(Home.from_environment(), str(runtime.flow_run.id)):
        try:
            report = await asyncio.to_thread(duties.bring_in, _shop(), Path(loop))
        except Retryable as error:
            return Completed(message=f"waits: {error}")
        counts = report.model_dump()
        if report.traces.kept or report.feedback.kept:
            name = load_loop(Path(loop)).line.name
            payload = {"traces": report.traces.kept, "feedback": report.feedback.kept, "quarantined": report.traces.quarantined}
            emit_event(INGESTED, resource={"prefect.resource.id": line_resource(name)}, payload=payload)
        get_run_logger().info("ingested %s", counts)
        t, f = report.traces, report.feedback
        return Completed(message=f"traces: {t.kept} kept of {t.read}, {t.quarantined} quarantined; feedback: {f.kept} kept of {f.read}")


@flow(name="retrain")
async def retrain(loop: str, scheduled: bool = False) -> Any:
    """Opens the next cycle if one is due, takes the open one as far as it goes, and asks people where it must."""
    home = Home.from_environment()
    with present(home, str(runtime.flow_run.id)):
        standing = await asyncio.to_thread(duties.work_on, _shop(), Path(loop), scheduled, PATIENCE)
        line = load_loop(Path(loop)).line.name
        async with get_client() as client:
            await views.show_requests(client, open_ledger(home), line)
            await wake.up(client, line, standing)
        return Completed(message=standing.said)


@flow(name="rollout")
async def rollout(loop: str) -> Any:
    """Ticks the open rollout for the better part of a minute."""
    with present(Home.from_environment(), str(runtime.flow_run.id)):
        standing = await asyncio.to_thread(duties.roll_on, _shop(), Path(loop), PATIENCE)
        return Completed(message=standing.said)


@flow(name="reconcile")
async def reconcile(loop: str) -> Any:
    """Every minute: copies follow the ledger, Prefect's views too, and what the open cycle needs is woken."""
    home = Home.from_environment()
    with present(home, str(runtime.flow_run.id)):
        mended, standing = await asyncio.to_thread(duties.mend, _shop(), Path(loop))
        line = load_loop(Path(loop)).line.name
        async with get_client() as client:
            mended += await views.bury_dead_runs(client, home, line)
            mended += await views.settle_requests(client, open_ledger(home), line)
            mended += await views.show_requests(client, open_ledger(home), line)
            await wake.up(client, line, standing)
        for text in mended:
            get_run_logger().info(text)
        return Completed(message="; ".join([*mended, standing.said]))


@flow(name="approval")
async def approval(request: str) -> Any:
    """The view of one request for approval: shows the evidence, waits for the form, hands the answer to the ledger."""
    home = Home.from_environment()
    ledger = open_ledger(home)
    with present(home, str(runtime.flow_run.id)):
        view = duties.request_view(ledger, request)
        closed = duties.settled(view)
        if closed is None:
            given = await _ask(home, view)
            closed = duties.record_answer(ledger, request, given)
        async with get_client() as client:
            line = request.split("/")[1]
            await wake.retrain(client, line, f"{request} was settled")
        return Completed(message=f"{request}: {closed}")


async def _ask(home: Home, view: ApprovalView) -> Answer:
    """Suspends the run until the form is filled in. In the run's second process it returns at once with what was typed."""
    evidence = json.loads(open_artifacts(home).get(view.evidence))
    page = evidence_page(view.id, evidence, view.expires)
    if (runtime.flow_run.run_count or 0) <= 1:
        await acreate_markdown_artifact(key=view.id.replace("/", "-"), markdown=page, description="What is to be approved")
    left = max(1, int((view.expires - datetime.now(UTC)).total_seconds()))
    typed = await suspend_flow_run(wait_for_input=Decision.with_initial_data(description=page), timeout=left, key="decision")
    return Answer(
        approve=typed.decision == "approve",
        actor=typed.approver.strip(),
        identity=Identity.CLAIMED,
        via="prefect",
        note=typed.note,
    )
