"""The artifacts of a cycle's run: a card per step, with the same sentences and tables as `ratchet explain`, and live training progress.

A card that cannot be written never fails a step; the ledger and the report have its content.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
from prefect.artifacts import acreate_link_artifact, acreate_markdown_artifact, acreate_progress_artifact, aupdate_progress_artifact
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.jobs.training import JobEvent
from ratchet.contracts.steps import RegisterResult, Step
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.requests import ApprovalView
from ratchet.flows.prefect.cycle.approval_form import table
from ratchet.flows.prefect.cycle.run_names import run_name
from ratchet.flows.prefect.report_pages import report_link
from ratchet.flows.prefect.server import is_external, known_url
from ratchet.flows.report.charts import Line, curves
from ratchet.flows.report.page import FIGURES
from ratchet.flows.report.story import GATE_COLUMNS, Section, tell

_STYLE = (
    "<style>svg{background:#fff}text{font:12px sans-serif;fill:#1b2430}.axis{fill:#5c6b7a}.grid{stroke:#dde3e9}.curve{fill:none;"
    "stroke:#7d8b99;stroke-width:1.5}.newest{stroke:#0b6bcb}.checkpoint{fill:#5c6b7a}.tick{stroke:#5c6b7a}</style>"
)
"""Colours of a chart outside the report's page."""


async def publish(installation: Installation, step: Step, cycle: CycleView) -> None:
    """Write the card of a step as a Markdown artifact of the current task run."""
    try:
        story = tell(installation.ledger.read(cycle.id), installation.rollout(cycle.id), {}, datetime.now(UTC))
        text = "\n\n".join(_markdown(section) for section in story if section.step is step)
        if step is Step.TRAIN and cycle.incarnations:
            text += _charts(installation.cycle_context(cycle).executor.events(cycle.incarnations[-1].job))
        if text:
            text += f"\n\n{links(installation, cycle)}"
            await acreate_markdown_artifact(key=_key(cycle.id, step), markdown=text, description=f"{cycle.id}: {step}")
    except (RatchetError, httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("the card of this step was not written: %s", error)


async def publish_report(installation: Installation, cycle: CycleView) -> None:
    """Write the link to the report of a cycle as an artifact of the current run, if the report is served."""
    link = _report(installation, cycle)
    if link is None:
        return
    try:
        await acreate_link_artifact(link, link_text="Report", key=_key(cycle.id, "report"), description=f"{cycle.id}: report")
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("the link to the report was not written as an artifact: %s", error)


def links(installation: Installation, cycle: CycleView) -> str:
    """Return the places of a cycle's report and of its registered version, as Markdown."""
    report = _report(installation, cycle)
    parts = [f"[Report]({report})" if report else f"Report: `ratchet open {run_name(cycle.id)}`"]
    registered, store = cycle.get(RegisterResult), installation.home.mlflow_url
    reference = registered.reference if registered else ""
    if reference and store.startswith("http"):
        _, name, version = reference.rsplit("/", 2)
        parts.append(f"[{reference} in MLflow]({store.rstrip('/')}/#/models/{quote(name)}/versions/{quote(version)})")
    elif reference:
        parts.append(f"`{reference}` in MLflow: `mlflow ui --backend-store-uri {_without_password(store)}`")
    return " · ".join(parts)


def _report(installation: Installation, cycle: CycleView) -> str | None:
    """Return the address of the report of a cycle. An external Prefect server serves none."""
    url = None if is_external() else known_url(installation.home)
    return report_link(url.removesuffix("/api"), cycle.id) if url else None


def _without_password(store: str) -> str:
    return re.sub(r"://([^:/@]*):[^@]*@", r"://\1:***@", store)


async def publish_request(view: ApprovalView, page: str) -> None:
    """Write the page of an approval request as a Markdown artifact of the current run."""
    try:
        await acreate_markdown_artifact(key=_key(view.cycle, f"approve {view.kind}"), markdown=page, description=f"Evidence for {view.id}")
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("the page of %s was not written as an artifact: %s", view.id, error)


class LiveTraining:
    """The progress bar of a training job, as an artifact of its task run."""

    def __init__(self) -> None:
        self._artifact: UUID | None = None
        self._shown = -1.0

    async def show(self, installation: Installation, cycle: CycleView) -> None:
        """Update the progress bar to the newest step of the job."""
        if not cycle.incarnations:
            return
        try:
            status = installation.cycle_context(cycle).executor.observe(cycle.incarnations[-1].job)
            share = 100.0 * status.step / status.total if status.total else 0.0
            if self._artifact is None:
                self._artifact = await acreate_progress_artifact(
                    progress=share, key=_key(cycle.id, "progress"), description=f"{cycle.id}: training"
                )
            elif share != self._shown:
                await aupdate_progress_artifact(self._artifact, progress=share)
            self._shown = share
        except (RatchetError, httpx.HTTPError, PrefectException) as error:
            get_run_logger().debug("the progress bar was not updated: %s", error)


def _key(cycle: str, name: str) -> str:
    """Return an artifact key; Prefect allows lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{cycle.removeprefix('cycle/')}-{name}".lower()).strip("-")


def _markdown(section: Section) -> str:
    parts = [f"### {section.title}", *(_plain(text) for text in section.text)]
    if section.table is not None and section.table.rows:
        columns, rows = list(section.table.columns), [list(row) for row in section.table.rows]
        if section.table.columns == GATE_COLUMNS:  # a fifth column would be cut off on a phone
            columns = ["prompts", "n", "champion → candidate", "difference"]
            rows = [[name, n, f"{champion} → {candidate}", difference] for name, n, champion, candidate, difference in rows]
        parts.append(table(columns, rows))
    return "\n\n".join(parts)


def _plain(text: str) -> str:
    """Return text in which no character has a meaning in Markdown or HTML, because models and people wrote parts of it."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)


def _charts(events: Any) -> str:
    """Return the training curves as images: one per metric that the job reported."""
    steps: list[JobEvent] = [event for event in events if event.kind == "progress"]
    images = []
    for name, caption in FIGURES.items():
        points = [(float(e.step), float(e.data[name])) for e in steps if isinstance(e.data.get(name), int | float)]
        if points:
            svg = str(curves([Line("training", points, True)], [], caption))
            svg = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" width="720" ', 1).replace(">", f">{_STYLE}", 1)
            images.append(f"**{caption}, by step**\n\n![{caption}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})")
    return "\n\n" + "\n\n".join(images) if images else ""
