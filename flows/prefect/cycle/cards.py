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

from ratchet.contracts.cycle import Step
from ratchet.contracts.errors import RatchetError
from ratchet.contracts.jobs.training import JobEvent
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.requests import ApprovalView
from ratchet.flows.core.steps import APPROVALS, CycleStep
from ratchet.flows.prefect.cycle.approval_form import table
from ratchet.flows.prefect.cycle.run_names import run_name
from ratchet.flows.prefect.report_pages import report_link
from ratchet.flows.prefect.server import is_external, known_url
from ratchet.flows.report.charts import Line, curves
from ratchet.flows.report.page import FIGURES
from ratchet.flows.report.story import GATE_COLUMNS, Section, report_of, tell

_TITLES: dict[CycleStep, tuple[str, ...]] = {
    CycleStep.FREEZE: ("Opened", "Data"),
    CycleStep.PROBE: ("Probe",),
    CycleStep.CHOOSE: ("Choice",),
    CycleStep.TRAIN: ("Search", "Training"),
    CycleStep.EVALUATE: ("Gate",),
    CycleStep.JUDGE: ("Verdict",),
    CycleStep.ROLL_OUT: ("Rollout",),
    CycleStep.PROMOTE: ("Ended",),
}
"""Step -> beginnings of the titles of the sections that its card shows."""
_STYLE = (
    "<style>svg{background:#fff}text{font:12px sans-serif;fill:#1b2430}.axis{fill:#5c6b7a}.grid{stroke:#dde3e9}.curve{fill:none;"
    "stroke:#7d8b99;stroke-width:1.5}.newest{stroke:#0b6bcb}.checkpoint{fill:#5c6b7a}.tick{stroke:#5c6b7a}</style>"
)
"""Colours of a chart outside the report's page."""


def summary(step: CycleStep, cycle: CycleView) -> str:
    """Return one sentence about the result of a step, for the state of its task run and for the log."""
    if cycle.ended and step not in (CycleStep.ROLL_OUT, CycleStep.PROMOTE):
        return f"{cycle.id} ended {cycle.state}: {cycle.reason}"
    done = cycle.done
    match step:
        case CycleStep.FREEZE:
            counts = done["freeze"]["snapshot"]["counts"]
            return "snapshot: " + ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items() if number)
        case CycleStep.PROBE:
            probe = done.get("probe")
            return f"{probe['answered']} answers, mean reward {probe['mean_reward'] or 0:.3f}" if probe else "the probe is disabled"
        case CycleStep.CHOOSE if cycle.choice is not None:
            return f"{cycle.choice.method}: {cycle.choice.reason}"
        case CycleStep.APPROVE_TRAINING | CycleStep.APPROVE_ROLLOUT:
            given = cycle.answers.get(APPROVALS[step])
            return f"approved by {given.actor} via {given.via}" if given else "approved"
        case CycleStep.TRAIN if cycle.incarnations:
            last = cycle.incarnations[-1]
            if cycle.chosen is not None:
                return f"the search chose trial {cycle.chosen.trial} ({cycle.chosen.variant}): {cycle.chosen.reason}"
            return f"attempt {last.attempt}, incarnation {last.number}: {last.outcome or 'running'}"
        case CycleStep.ACCEPT if cycle.candidate is not None and cycle.checkpoint is not None:
            return f"accepted step {cycle.checkpoint.step} as {cycle.candidate.tag}"
        case CycleStep.EVALUATE if (report := report_of(cycle)) is not None:
            overall = next((one for one in report.comparisons if one.name == "overall"), None)
            change = f", mean reward {overall.champion:.3f} → {overall.candidate:.3f}" if overall else ""
            stop = f"; {report.stop}" if report.stop else ""
            return f"{report.answered_by_both} of {report.asked} prompts answered by both{change}{stop}"
        case CycleStep.JUDGE if cycle.verdict is not None:
            return f"gate: {cycle.verdict.result}"
        case CycleStep.REGISTER if cycle.candidate is not None:
            return f"registered {cycle.candidate.tag}"
        case CycleStep.ROLL_OUT | CycleStep.PROMOTE if cycle.ended:
            return f"{cycle.state}: {cycle.reason}"
        case _:
            return f"{step} is done"


async def publish(installation: Installation, step: CycleStep, cycle: CycleView) -> None:
    """Write the card of a step as a Markdown artifact of the current task run."""
    try:
        titles = _TITLES.get(step, ())
        story = tell(installation.ledger.read(cycle.id), installation.rollout(cycle.id), {}, datetime.now(UTC)) if titles else []
        text = "\n\n".join(_markdown(section) for section in story if section.title.startswith(titles))
        if step is CycleStep.TRAIN and cycle.incarnations:
            text += _charts(installation.cycle_context(cycle).executor.events(cycle.incarnations[-1].job))
        if step is CycleStep.REGISTER and not cycle.ended:
            text = summary(step, cycle)
        if text:
            text += f"\n\n{links(installation, cycle)}"
            await acreate_markdown_artifact(key=_key(cycle.id, step), markdown=text, description=f"{cycle.id}: {step}")
    except (RatchetError, httpx.HTTPError, PrefectException, KeyError) as error:
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
    reference, store = cycle.done.get(str(Step.REGISTER), {}).get("reference"), installation.home.mlflow_url
    if reference and store.startswith("http"):
        _, name, version = str(reference).rsplit("/", 2)
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
