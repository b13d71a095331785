"""What a cycle would choose if it were opened now: data frozen, probed and judged as a cycle does it, under names of its own.

Nothing is written to the ledger, and no holdout edition that a gate will use is begun. It refuses to train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contracts.data import ProbeReport, TrainingSet
from contracts.errors import Rejected
from contracts.ids import digest
from contracts.model import count_parameters
from contracts.serving import ModelVersion
from contracts.training import Choice
from flows.engine.choosing import choose_plan, drafts
from flows.engine.house import House

EDITION = 0
"""Holdout editions of cycles begin at 1; this one only tells which prompts are training's."""


@dataclass(frozen=True)
class Preview:
    """The choice, and what it would run."""

    start: ModelVersion
    data: TrainingSet
    choice: Choice
    recipe: dict[str, Any] | None
    parameters: int
    probed: bool


def preview(house: House, probe: bool) -> Preview:
    """Rejected where no model is adopted yet. With `probe` the start model is served and asked, which takes its time."""
    line = house.line_view()
    start = line.champion if house.loop.line.start_from == "champion" else line.base
    if start is None:
        raise Rejected("not_adopted", f"line {line.line!r} has no model yet: run `ratchet adopt LOOP.toml MODEL_FOLDER`")
    seen = digest([house.datasets.cursor().model_dump(mode="json"), house.loop.model_dump(mode="json"), start.tag, probe])
    name = f"preview/{line.line}/{seen[:16]}"
    snapshot = house.datasets.freeze(f"{name}/freeze", house.clock.now(), house.datasets.edition(EDITION))
    report: ProbeReport | None = None
    if probe and house.loop.probe.prompts:
        client = house.client(house.server.ensure(start))
        report = house.datasets.probe(f"{name}/probe", snapshot, client, house.progress)
    data = house.datasets.assemble(f"{name}/plan", snapshot, report)
    draft = drafts(house, house.loop, f"{name}/plan", start.model, house.loop.line.seed, data)
    choice, plan = choose_plan(house, data.facts, house.loop.training, draft)
    folder = house.artifacts.fetch(start.model.files, house.scratch / "models" / start.model.files)
    return Preview(start, data, choice, plan.recipe if plan else None, count_parameters(folder), report is not None)
