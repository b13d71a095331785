"""What a training run will cost at most, before it runs: tokens, arithmetic and time, from the recipe and the model's size. Pure.

Arithmetic is counted as 2 operations per weight and token forward and 4 backward (Kaplan et al. 2020, arXiv:2001.08361, section
2.1); attention is left out. Speeds are stated assumptions, not promises: a bill is metered, an estimate says its basis.
"""

from __future__ import annotations

from contracts.errors import Permanent
from contracts.model import Frozen
from trainers.recipes import DPORecipe, GRPORecipe, Recipe, SFTRecipe

CPU_SPEED = 1e10
"""Operations a second and thread that small models reach in float32."""
GPU_SPEED = 1.5e14
"""Operations a second and GPU in bf16: an H100 or H200 at about 15 % of its peak, as short rows and small batches leave it."""
GENERATION_SHARE = 0.1
"""Share of that speed at which answers are written token by token: generation waits for memory."""
START_SECONDS = 30.0
"""Loading libraries, model and data."""


Known = DPORecipe | GRPORecipe | SFTRecipe


class Estimate(Frozen):
    """The cost of one attempt, at most."""

    parameters: int
    tokens: int
    """Trained on, over all steps; every row counted at its full length."""
    operations: float
    seconds: float
    gpu_hours: float
    """Of all GPUs together; 0 on a CPU."""
    basis: str
    """The assumptions, in words."""


def estimate(recipe: Recipe, parameters: int, nodes: int, gpus: int) -> Estimate:
    """`gpus`: per node; 0 trains on the recipe's threads of one CPU."""
    if not isinstance(recipe, Known):
        raise Permanent(f"{type(recipe).__name__} has no estimate; add it to trainers/estimate.py")
    rows, length = _rows(recipe), _length(recipe)
    tokens = recipe.steps * rows * length
    operations = float(tokens) * parameters * (8 if recipe.gradient_checkpointing else 6)
    written = 0.0
    if isinstance(recipe, DPORecipe):
        operations += 2.0 * recipe.steps * 2 * recipe.batch * length * parameters  # the reference, once; of pairs alone
    if isinstance(recipe, GRPORecipe):
        written = 2.0 * recipe.steps * rows * recipe.max_completion * parameters
    devices = nodes * gpus
    speed = GPU_SPEED * devices if devices else CPU_SPEED * recipe.cpus
    seconds = START_SECONDS + operations / speed + written / (speed * GENERATION_SHARE)
    where = f"{devices} GPUs at {GPU_SPEED:.0e} operations/s" if devices else f"{recipe.cpus} threads at {CPU_SPEED:.0e} operations/s"
    return Estimate(
        parameters=parameters,
        tokens=tokens,
        operations=operations + written,
        seconds=seconds,
        gpu_hours=seconds * devices / 3600,
        basis=f"at most: {recipe.steps} steps of {rows} rows of {length} tokens, {where}",
    )


def _rows(recipe: Known) -> int:
    """Rows of a step, at most; a pair has two, what is rehearsed has one."""
    if isinstance(recipe, GRPORecipe):
        return recipe.answers
    return 2 * recipe.batch + recipe.rehearsed if isinstance(recipe, DPORecipe) else recipe.batch


def _length(recipe: Known) -> int:
    """Tokens of a row, at most; a GRPO prompt is taken to be as long as its answer."""
    if isinstance(recipe, GRPORecipe):
        return 2 * recipe.max_completion
    return recipe.max_length
