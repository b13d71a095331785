"""The flows that Prefect schedules: short, asynchronous, one process per run. The work is in flow_handlers.py; the state is in the ledger.

Parameters are simple values, so a run can be started manually in the Prefect UI. A flow may be killed at any point, run twice, or not
be started at all: the next `reconcile` run continues from the ledger.
"""

from __future__ import annotations

import asyncio
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
from contracts.schema import unstamped
from flows.composition.installation import Installation
from flows.composition.ports import open_artifacts, open_ledger
from flows.config.home import Home
from flows.config.load import load_loop
from flows.core.folds import ApprovalView
from flows.prefect import flow_handlers, run_sync, wake
from flows.prefect.approval_form import evidence_page
from flows.prefect.run_pidfiles import present

INGESTED = "ratchet.traces.ingested"
"""Event emitted after new traces or feedback; its resource is the line. It only starts `retrain`; the lake's counts decide."""
TIMEOUT = 45.0
"""Seconds that one flow run follows a training job or a rollout. Less than the reconcile interval of 60 s."""


class ApprovalForm(RunInput):
    """The approval form. Prefect checks only its JSON schema before it resumes the run."""

    decision: Literal["approve", "reject"] = Field(description="Approve continues the cycle; reject ends it.")
    approver: str = Field(
        min_length=1,
        max_length=100,
        pattern=r"\S",
        description="Your name. The ledger records it as a claim, because this form does not verify your identity.",
    )
    note: str = Field(default="", max_length=2000, description="The reason for your decision, stored in the ledger.")


def line_resource(line: str) -> str:
    """Return the Prefect resource id for the events of a line."""
    return f"ratchet.line.{line}"


def _installation() -> Installation:
    return Installation(Home.from_environment())


@flow(name="ingest")
async def ingest(loop: str) -> Any:
    """Ingest traces and feedback into the lake, each record once. New records trigger `retrain`."""
    with present(Home.from_environment(), str(runtime.flow_run.id)):
        try:
            report = await asyncio.to_thread(flow_handlers.run_ingest, _installation(), Path(loop))
        except Retryable as error:
            return Completed(message=f"waiting: {error}")
        counts = report.model_dump()
        if report.traces.kept or report.feedback.kept:
            name = load_loop(Path(loop)).line.name
            payload = {"traces": report.traces.kept, "feedback": report.feedback.kept, "quarantined": report.traces.quarantined}
            emit_event(INGESTED, resource={"prefect.resource.id": line_resource(name)}, payload=payload)
        get_run_logger().info("ingested %s", counts)
        t, f = report.traces, report.feedback
        said = f"traces: {t.kept} of {t.read} kept, {t.quarantined} quarantined; feedback: {f.kept} of {f.read} kept"
        return Completed(message=said + (f"; {report.consent_changed} changes of consent" if report.consent_changed else ""))


@flow(name="retrain")
async def retrain(loop: str, scheduled: bool = False) -> Any:
    """Open the next cycle if one is due, advance the open cycle as far as possible, and request approvals where required."""
    home = Home.from_environment()
    with present(home, str(runtime.flow_run.id)):
        status = await asyncio.to_thread(flow_handlers.run_retrain, _installation(), Path(loop), scheduled, TIMEOUT)
        line = load_loop(Path(loop)).line.name
        async with get_client() as client:
            await run_sync.show_requests(client, open_ledger(home), line)
            await wake.up(client, line, status)
        return Completed(message=status.summary)


@flow(name="rollout")
async def rollout(loop: str) -> Any:
    """Evaluate and advance the open rollout for about 45 seconds."""
    with present(Home.from_environment(), str(runtime.flow_run.id)):
        status = await asyncio.to_thread(flow_handlers.run_rollout, _installation(), Path(loop), TIMEOUT)
        return Completed(message=status.summary)


@flow(name="reconcile")
async def reconcile(loop: str) -> Any:
    """Reconcile derived copies and Prefect runs with the ledger every minute, and start the flow that the open cycle needs."""
    home = Home.from_environment()
    with present(home, str(runtime.flow_run.id)):
        repairs, status = await asyncio.to_thread(flow_handlers.run_reconcile, _installation(), Path(loop))
        repairs += await asyncio.to_thread(flow_handlers.export_heads, _installation())
        line = load_loop(Path(loop)).line.name
        async with get_client() as client:
            repairs += await run_sync.bury_dead_runs(client, home, line)
            repairs += await run_sync.settle_requests(client, open_ledger(home), line)
            repairs += await run_sync.show_requests(client, open_ledger(home), line)
            await wake.up(client, line, status)
        for text in repairs:
            get_run_logger().info(text)
        return Completed(message="; ".join([*repairs, status.summary]))


@flow(name="approval")
async def approval(request: str) -> Any:
    """Show the evidence of one approval request, wait for the form, and write the answer to the ledger."""
    home = Home.from_environment()
    ledger = open_ledger(home)
    with present(home, str(runtime.flow_run.id)):
        view = flow_handlers.request_view(ledger, request)
        closed = flow_handlers.closed_reason(view)
        if closed is None:
            given = await _ask(home, view)
            closed = flow_handlers.record_answer(ledger, request, given)
        async with get_client() as client:
            line = request.split("/")[1]
            await wake.retrain(client, line, f"{request} was settled")
        return Completed(message=f"{request}: {closed}")


async def _ask(home: Home, view: ApprovalView) -> Answer:
    """Suspend the run until the form is submitted.

    After the submission, Prefect executes the run again in a new process. There the suspension returns the submitted values immediately.
    """
    evidence = unstamped(open_artifacts(home).get(view.evidence), "evidence")
    page = evidence_page(view.id, evidence, view.expires)
    if (runtime.flow_run.run_count or 0) <= 1:
        await acreate_markdown_artifact(key=view.id.replace("/", "-"), markdown=page, description="Evidence for the approval request")
    left = max(1, int((view.expires - datetime.now(UTC)).total_seconds()))
    typed = await suspend_flow_run(wait_for_input=ApprovalForm.with_initial_data(description=page), timeout=left, key="decision")
    return Answer(
        approve=typed.decision == "approve",
        actor=typed.approver.strip(),
        identity=Identity.CLAIMED,
        via="prefect",
        note=typed.note,
    )
