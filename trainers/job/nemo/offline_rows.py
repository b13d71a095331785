"""The rows of a run of SFT or DPO, as tokens, in the order in which it trains on them: those of the TRL job.

The release would render conversations in its own way, cut long rows to four tokens, drop the last incomplete batch, and draw all rows
alike. So the job renders the rows, leaves out those that do not fit, and draws the whole run from their weights
(`trainers/job/trl/sampler.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.contracts.jobs.training import LeftOut
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.jobs.job_protocol import RunFile
from ratchet.trainers.backends.nemo.offline_checks import Offline
from ratchet.trainers.job.model_fit import row_limit
from ratchet.trainers.job.trl import dpo, sft
from ratchet.trainers.job.trl.micro_batches import PairSize
from ratchet.trainers.job.trl.sampler import draw
from ratchet.trainers.recipes.dpo import DPORecipe

TASK = "ratchet"
"""Task name of all rows, by which the release finds their processor."""
ORDER = "order.json"
"""File beside the rows with the number of each row that the run trains on, in order."""


class Rows(NamedTuple):
    """The rows that can be trained on."""

    tokens: list[PairSize]
    """Their tokens. An answer without a rejected one has an empty one."""
    weights: list[float]
    """The weight of each in the sampling."""
    left_out: LeftOut
    """The counts of the others."""


def read(run: Path, tokenizer: Any, recipe: Offline) -> Rows:
    """Return the rows of a run folder. Raises Permanent without a row, or for an invalid one."""
    if isinstance(recipe, DPORecipe):
        kept, left = dpo.pairs(run, tokenizer, recipe)
        return Rows([tokens for _, tokens in kept], [example.weight for example, _ in kept], left)
    answers, left = sft.fitting(tokenizer, sft.rows(run, recipe), row_limit(run / RunFile.MODEL, recipe.max_length))
    return Rows([tokens for tokens, _ in answers], [weight for _, weight in answers], left)


def write(folder: Path, rows: Rows, recipe: Offline, seed: int) -> Path:
    """Write the rows that the run trains on, and their order, to `folder`, and return the path of the rows.

    Raises Permanent if no row has a positive weight.
    """
    drawn = draw(rows.weights, recipe.last_step * recipe.batch, seed)
    used = {number: place for place, number in enumerate(sorted(set(drawn)))}
    write_atomic(folder / ORDER, json.dumps([used[number] for number in drawn]).encode())
    path = folder / "train.jsonl"
    with path.open("w", encoding="utf-8") as file:  # row by row: together they may be larger than the memory
        for number in used:
            one = rows.tokens[number]
            file.write(json.dumps({"prompt": one.prompt, "chosen": one.chosen, "rejected": one.rejected, "task_name": TASK}) + "\n")
    return path
