"""Builds a sample job for each method of a loop file, with the line's own trainers and placeholder digests for model and data.

The requirements on a cluster can thus be shown and checked before a plan exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.training import Attempt, JobSpec, Method, TrainingPlan
from ratchet.contracts.loop import Loop
from ratchet.contracts.model import ModelRef
from ratchet.contracts.ports import Trainer


class Sample(NamedTuple):
    """The sample job of one method, or the reason why the loop file's settings allow none."""

    method: str
    job: JobSpec | None
    problem: str = ""


def samples(loop: Loop, trainers: Mapping[str, Trainer]) -> list[Sample]:
    """Build one sample per method, in the loop file's order. The same loop file always gives the same samples."""
    return [_sample(loop, method, trainers[method]) for method in loop.training.methods]


def _sample(loop: Loop, method: str, trainer: Trainer) -> Sample:
    settings = loop.training
    attempt = Attempt(number=1, timeout=settings.timeout, nodes=settings.nodes, gpus=settings.gpus)
    try:
        recipe = trainer.recipe(settings.recipe(method))
        if recipe.get("label_smoothing") == "measured":  # a plan has the measured value
            recipe = {**recipe, "label_smoothing": 0.2}
        return Sample(method, trainer.job(_plan(loop, method, recipe), attempt))
    except RatchetError as error:
        return Sample(method, None, str(error))


def _plan(loop: Loop, method: str, recipe: dict[str, object]) -> TrainingPlan:
    nothing = digest("a sample")
    return TrainingPlan(
        line=loop.line.name,
        cycle=f"cycle/{loop.line.name}/sample",
        start=ModelRef(weights=nothing, tokenizer=nothing, chat_template=nothing, generation_config=nothing, others=nothing, files=nothing),
        dataset=nothing,
        pairs=nothing,
        prompts=nothing,
        demonstrations=nothing,
        method=Method(method),
        recipe=recipe,
        seed=loop.line.seed,
        scorers=(),
        code=nothing,
    )
