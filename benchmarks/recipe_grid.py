"""The cells of the recipe benchmark: the loop file, the recipes for tiny models, and two grids. Does not import torch."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

from ratchet.contracts.jobs.training import Method

LOOP = """
[line]
name = "bench"
served_model = "m"
seed = 11
[[sources]]
name = "app"
kind = "jsonl"
path = "traces"
[[rewards]]
name = "exact_match"
[[rewards]]
name = "user_feedback"
[holdout]
fraction = 0.2
golden = "golden.jsonl"
[snapshot]
pairs_per_prompt = 4
references_are_answers = true
[probe]
prompts = 240
samples = 4
max_tokens = 48
[gate]
max_tokens = 48
[training]
min_pairs = 60
"""
SMALL = {"warmup_steps": 5, "steps": 60, "gradient_checkpointing": False, "cpus": 1, "save_every": 60, "micro_batch": 16}
"""Settings for a model of 0.7 million weights. Every recipe and the oracle train for the same number of steps."""
RECIPES: dict[Method, dict[str, Any]] = {
    Method.SFT: {**SMALL, "learning_rate": 7e-4, "batch": 16, "max_length": 128},
    Method.DPO: {**SMALL, "learning_rate": 5e-4, "batch": 16, "max_length": 128, "losses": {"sigmoid": 0.2, "sft": 1.0}},
    Method.GRPO: {
        **SMALL,
        "learning_rate": 2e-4,
        "prompts_per_step": 8,
        "generations": 8,
        "micro_batch": 64,
        "max_completion": 48,
        "beta": 0.0,
    },
}


FIRST = 5
"""The first seed of the grid. The recipes' settings were chosen on seeds 0 to 4, so these seeds cannot be used to evaluate them."""
TESTS = 500
"""The number of test questions per kind of request in the main table."""
ASKED = 400
"""The number of distinct questions in the traffic of the main table."""
REHEARSALS = (0.0, 1.0)
"""The values of `rehearsal` that the DPO table compares."""


@dataclass(frozen=True)
class Cell:
    """The parameters of one run: they identify its row in the results."""

    task: str
    quality: float
    flips: float
    seed: int
    draw: int = 0
    """The number of the traffic sample on this base model; the main table uses 0."""
    methods: tuple[str, ...] = ()
    """The methods that the loop file allows; if empty, the product's default applies."""
    rehearsal: float | None = None
    """The value of `rehearsal` in the DPO recipe; None means the recipe's default."""
    asked: int = ASKED
    """The number of distinct questions that users ask."""
    tests: int = TESTS
    """The number of test questions per kind of request."""

    @property
    def name(self) -> str:
        """The unique name of the cell, built from all of its parameters."""
        drawn = [f"draw{self.draw}"] if self.draw else []
        drawn += [] if self.asked == ASKED else [f"asked{self.asked}"]
        drawn += [] if self.tests == TESTS else [f"tests{self.tests}"]
        by = [*self.methods, *([] if self.rehearsal is None else [f"rehearsal{self.rehearsal:g}"])]
        return "-".join([f"{self.task}-{self.quality:g}-{self.flips:g}-{self.seed}", *drawn, *by])

    @property
    def chance(self) -> int:
        """The seed of the cell's traffic and training."""
        return self.seed + 1000 * self.draw

    def loop(self) -> str:
        """Return the text of the cell's loop file."""
        return LOOP + (f"methods = {json.dumps(self.methods)}\n" if self.methods else "")

    def recipe(self, method: Method) -> dict[str, Any]:
        """Return the cell's changes to the defaults of the method's recipe."""
        own = {} if self.rehearsal is None or method is not Method.DPO else {"rehearsal": self.rehearsal}
        return RECIPES[method] | own

    @property
    def base(self) -> str:
        """The name of the base model. Cells with the same name share the model, its test results and the oracle's results."""
        return f"{self.task}-{self.quality:g}-{self.seed}" + ("" if self.tests == TESTS else f"-tests{self.tests}")


def grid(seeds: int) -> list[Cell]:
    """Return all cells of the main table for this many seeds.

    Each task has bases of three qualities; `sql` also has a base with nothing left to learn. The cells are ordered by seed, so that an
    interrupted run has covered every configuration at least once.
    """
    bases = [*itertools.product(("kubectl", "sql"), (0.3, 0.6, 0.9)), ("sql", 1.0)]
    return [Cell(*base, flips, seed) for seed, base, flips in itertools.product(range(FIRST, FIRST + seeds), bases, (0.0, 0.15, 0.3))]


def forced(method: str, seeds: int, draws: int) -> list[Cell]:
    """Return the cells in which only this method is allowed; all arms of the method use the same traffic samples."""
    arms = REHEARSALS if method == "dpo" else (None,)
    every = itertools.product(("kubectl", "sql"), range(1, draws + 1), range(FIRST, FIRST + seeds), (0.6, 0.9), arms)
    return [Cell(task, quality, 0.15, seed, draw, (method,), arm) for task, draw, seed, quality, arm in every]
