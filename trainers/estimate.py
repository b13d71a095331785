"""Upper estimate of the cost of a training run: tokens, operations and time, from the recipe and the size of the model.

The forward pass counts 2 operations per weight and token, the backward pass 4 (Kaplan et al. 2020, arXiv:2001.08361, section
2.1). Attention is not counted. The speeds are assumptions, and each estimate states them. The actual cost is metered elsewhere.
The module is pure.
"""

from __future__ import annotations

from ratchet.contracts.errors import Permanent
from ratchet.contracts.model import Frozen
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.recipe import Recipe
from ratchet.trainers.recipes.sft import SFTRecipe

CPU_SPEED = 1e10
"""Operations per second and thread that small models reach in float32."""
GPU_SPEED = 1e14
"""Operations per second and GPU in bf16, about a tenth of the peak of an H100 or H200. A model of 1.2 billion weights reached 1.1e14 with
SFT and 1.7e14 with DPO on an H200 (benchmarks/results/gpu.json), with rows of about a thousand tokens. The estimate is an upper one."""
GENERATION_SHARE = 0.1
"""Speed of token-by-token generation as a share of the training speed. Generation is bound by memory bandwidth."""
START_SECONDS = 30.0
"""Time to load the libraries, the model and the data, in seconds."""


Known = DPORecipe | GRPORecipe | SFTRecipe


class Estimate(Frozen):
    """Upper estimate of the cost of one attempt."""

    parameters: int
    """Number of weights of the model."""
    tokens: int
    """Training tokens over all steps, with every row at its full length."""
    operations: float
    """Arithmetic operations of training and generation."""
    seconds: float
    """Wall-clock time."""
    gpu_hours: float
    """GPU-hours of all GPUs together; 0 on a CPU."""
    basis: str
    """The assumptions as text."""


def estimate(recipe: Recipe, parameters: int, nodes: int, gpus: int, folds: int = 0) -> Estimate:
    """Return the upper estimate for a run of `recipe` on a model with `parameters` weights.

    `gpus` is the number of GPUs per node. With 0, the run uses the CPU with the recipe's number of threads. `folds` is the number of folds
    of a cross-validation before the run, each of which counts as a run.
    Raises Permanent for a kind of recipe that has no estimate.
    """
    if not isinstance(recipe, Known):
        raise Permanent(f"{type(recipe).__name__} has no estimate; add it to trainers/estimate.py")
    rows, length, steps = _rows(recipe), _length(recipe), (1 + folds) * recipe.last_step
    tokens = steps * rows * length
    operations = float(tokens) * parameters * (8 if recipe.gradient_checkpointing else 6)
    written = 0.0
    if isinstance(recipe, DPORecipe):
        operations += 2.0 * steps * 2 * recipe.batch * length * parameters  # reference log-probabilities, once per pair
    if isinstance(recipe, GRPORecipe):
        written = 2.0 * steps * rows * recipe.max_completion * parameters
    devices = nodes * gpus
    speed = GPU_SPEED * devices if devices else CPU_SPEED * recipe.cpus
    seconds = (1 + folds) * START_SECONDS + operations / speed + written / (speed * GENERATION_SHARE)
    where = f"{devices} GPUs at {GPU_SPEED:.0e} operations/s" if devices else f"{recipe.cpus} threads at {CPU_SPEED:.0e} operations/s"
    return Estimate(
        parameters=parameters,
        tokens=tokens,
        operations=operations + written,
        seconds=seconds,
        gpu_hours=seconds * devices / 3600,
        basis=f"at most: {f'{1 + folds} runs of ' if folds else ''}{recipe.last_step} steps of {rows} rows of {length} tokens, {where}",
    )


def _rows(recipe: Known) -> int:
    """Maximum number of rows per step: two per pair, one per rehearsed demonstration."""
    if isinstance(recipe, GRPORecipe):
        return recipe.answers
    return 2 * recipe.batch + recipe.rehearsed if isinstance(recipe, DPORecipe) else recipe.batch


def _length(recipe: Known) -> int:
    """Maximum number of tokens per row. A GRPO prompt is assumed to be as long as its answer."""
    if isinstance(recipe, GRPORecipe):
        return 2 * recipe.max_completion
    return recipe.max_length
