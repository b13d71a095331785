"""Which cells the recipe benchmark runs: a loop file, recipes for tiny models, two grids. It knows neither torch nor how a cell runs."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

from contracts.training import Method

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
"""A model of 0.7 million weights; the same number of steps for every recipe and for the oracle."""
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
"""The first seed of the grid: on seeds 0 to 4 the recipes' settings were chosen, so they prove nothing about them."""
REHEARSALS = (0.0, 1.0)
"""What the DPO table compares."""


@dataclass(frozen=True)
class Cell:
    """Where a result belongs."""

    task: str
    quality: float
    flips: float
    seed: int
    draw: int = 0
    """Which traffic on this base; 0 is the table's own."""
    methods: tuple[str, ...] = ()
    """All that the loop file allows; none: what it allows by itself."""
    rehearsal: float | None = None
    """DPO's; None: the recipe's default."""

    @property
    def name(self) -> str:
        drawn = [f"draw{self.draw}"] if self.draw else []
        by = [*self.methods, *([] if self.rehearsal is None else [f"rehearsal{self.rehearsal:g}"])]
        return "-".join([f"{self.task}-{self.quality:g}-{self.flips:g}-{self.seed}", *drawn, *by])

    @property
    def chance(self) -> int:
        """Seed of traffic and training."""
        return self.seed + 1000 * self.draw

    def loop(self) -> str:
        """The loop file."""
        return LOOP + (f"methods = {json.dumps(self.methods)}\n" if self.methods else "")

    def recipe(self, method: Method) -> dict[str, Any]:
        """Changes to the method's defaults."""
        own = {} if self.rehearsal is None or method is not Method.DPO else {"rehearsal": self.rehearsal}
        return RECIPES[method] | own

    @property
    def base(self) -> str:
        """Cells that differ in label noise only share their base model, its test and the oracle."""
        return f"{self.task}-{self.quality:g}-{self.seed}"


def grid(seeds: int) -> list[Cell]:
    """All cells, seed by seed, so that a run that is cut short has seen everything once. Beside the three qualities of either task stands a
    base with nothing left to learn."""
    bases = [*itertools.product(("kubectl", "sql"), (0.3, 0.6, 0.9)), ("sql", 1.0)]
    return [Cell(*base, flips, seed) for seed, base, flips in itertools.product(range(FIRST, FIRST + seeds), bases, (0.0, 0.15, 0.3))]


def forced(method: str, seeds: int, draws: int) -> list[Cell]:
    """Cells in which only this method may be taken, each of its arms on the same traffics."""
    arms = REHEARSALS if method == "dpo" else (None,)
    every = itertools.product(("kubectl", "sql"), range(1, draws + 1), range(FIRST, FIRST + seeds), (0.6, 0.9), arms)
    return [Cell(task, quality, 0.15, seed, draw, (method,), arm) for task, draw, seed, quality, arm in every]
