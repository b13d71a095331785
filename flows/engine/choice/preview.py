"""Previews the choice of a cycle opened now. Data is frozen, probed and assembled as in a cycle, but under separate names.

A preview writes nothing to the ledger, starts no holdout edition that a gate will use, and trains nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ratchet.contracts.data.datasets import ProbeReport, Snapshot, TrainingSet
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.training import Choice, Method, Search
from ratchet.contracts.model import count_parameters, read_config
from ratchet.contracts.serving import ModelVersion
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.engine.choice.choosing import choose_plan, drafts, probed_champion, slice_cautions
from ratchet.flows.engine.choice.search import last_winner, with_search
from ratchet.flows.engine.context import LineContext, leased
from ratchet.flows.engine.line import not_adopted, start_of
from ratchet.flows.engine.reconcile import wanted_versions

EDITION = 0
"""Edition number for previews. Cycles use editions from 1 on; edition 0 only separates holdout prompts from training prompts."""
_PATIENCE = 60.0
"""Seconds to wait for the line's lease."""


@dataclass(frozen=True)
class Preview:
    """The choice that a cycle would make now, and the inputs of its training run."""

    start: ModelVersion
    snapshot: Snapshot
    data: TrainingSet
    choice: Choice
    recipe: dict[str, Any] | None
    """The complete recipe of the first training; None if nothing would be trained."""
    parameters: int
    """Number of weights of the start model."""
    config: dict[str, Any]
    """Its config.json."""
    probed: bool
    """Whether the start model was probed."""
    search: Search | None = None
    """The search that the cycle would run; None without a search."""

    @property
    def method(self) -> Method:
        """The method of the first training. A search may begin with another one than the rules prefer."""
        return self.search.variants[0].method if self.search else self.choice.method


def preview(context: LineContext, probe: bool) -> Preview:
    """Compute the choice that a cycle opened now would make.

    With `probe`, the start model is served and answers the probe's prompts, which can take minutes.
    Raises Rejected if no model is adopted yet, and ConfigError if a chosen method's recipe is invalid.
    """
    line = context.line_view()
    champion = line.clean_champion
    if champion is None:
        raise not_adopted(context)
    start = start_of(context, line, champion)
    seen = digest([context.datasets.cursor().model_dump(mode="json"), context.loop.model_dump(mode="json"), start.tag, champion.tag, probe])
    name = f"preview/{line.line}/{seen[:16]}"
    context.progress("freezing the data …", 0, 0)
    edition = context.datasets.edition(EDITION)
    snapshot = context.datasets.freeze(f"{name}/freeze", context.clock.now(), edition)
    report: ProbeReport | None = None
    if probe and context.loop.probe.prompts:
        context.progress(f"starting the server of {start.tag} …", 0, 0)
        with _server_stays(context, line, start):
            client = context.client(context.server.ensure(start))
            context.progress("probing the start model …", 0, 0)
            other = probed_champion(context, champion, start)
            report = context.datasets.probe(f"{name}/probe", snapshot, client, context.progress, other)
    context.progress("choosing the training method …", 0, 0)
    data = context.datasets.assemble(f"{name}/plan", snapshot, report)
    draft = drafts(context, context.loop, f"{name}/plan", start.model.whole, context.loop.line.seed, data)
    settings = context.loop.training
    choice, plan = choose_plan(context, data.facts, settings, draft, slice_cautions(context, context.loop, data, edition))
    if plan is not None and settings.search.budget:
        plan = with_search(context, plan, data, settings, draft, last_winner(context, line.line, line.cycles + 1))
    folder = context.artifacts.fetch(start.model.whole.files, context.scratch / "models" / start.model.whole.files)
    return Preview(
        start,
        snapshot,
        data,
        choice,
        plan.recipe if plan else None,
        count_parameters(folder),
        read_config(folder),
        report is not None,
        plan.search if plan else None,
    )


def _server_stays(context: LineContext, line: LineView, start: ModelVersion) -> AbstractContextManager[object]:
    """Return a block in which the service does not stop the server of the start model, which nothing else may need.

    The service stops servers only while it holds the line's lease. Raises Retryable if it, or a step of a cycle, holds it for too long.
    """
    needed = {version.tag for version in wanted_versions(line, None)}
    return nullcontext() if start.tag in needed else leased(context, "a preview that probes the base model", wait=_PATIENCE)
