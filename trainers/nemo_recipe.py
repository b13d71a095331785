"""What GRPO on NVIDIA NeMo RL needs beyond the shared recipe: how a cluster's GPUs are shared out, and the release's own switches.

Data only. It refuses to know how the release spells these things (`trainers.nemo_config`) and what a cluster has (the attempt).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from contracts.model import Frozen

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]


class NemoRL(Frozen, allow_inf_nan=False):
    """Settings of GRPO that only the cluster's trainer knows; a run on one machine ignores them."""

    max_prompt: Positive = 1024
    """Tokens of a prompt with its chat template; longer prompts are left out of the run. Answers come on top."""
    generation: Literal["colocated", "dedicated"] = "colocated"
    """colocated: the GPUs that train also generate, in turns; dedicated: some only generate."""
    generation_gpus: NotNegative = 0
    """dedicated, on one node: GPUs that generate; the rest trains."""
    generation_nodes: NotNegative = 0
    """dedicated, on several nodes: nodes that generate; the rest trains."""
    generation_memory: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Share of a GPU's memory that the generation engine takes; an attempt's adjustment of memory scales it."""
    tensor_parallel: Positive = 1
    """GPUs that share each layer in training."""
    generation_tensor_parallel: Positive = 1
    """GPUs that share each layer in generation; within one node."""
    train_batch: NotNegative = 0
    """Answers per optimiser update; 0: all of a step, which keeps every update on-policy."""
    packing: bool = True
    """Packs answers of different lengths into one row; false: pads them, and micro_batch must divide each GPU's share."""
    leave_one_out: bool = True
    """An answer's baseline is the mean reward of the others in its group (arXiv:2402.14740); false: of all."""
    kl_type: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL to the start model: http://joschu.net/blog/kl-approx.html."""
    dynamic_sampling: bool = False
    """Leaves out groups whose answers all score alike and samples further prompts instead (DAPO, arXiv:2503.14476)."""
    dynamic_sampling_batches: Positive = 10
    """Batches that a step may sample at most before the run fails, because too few groups carry a signal."""
    batch_multiplier: Annotated[float, Field(ge=1)] = 1.0
    """dynamic_sampling: prompts sampled at once, as a multiple of prompts_per_step."""
    overlong_filtering: bool = False
    """Answers that were cut at max_completion teach nothing; false: they count as they are scored."""
    validate_every: NotNegative | None = None
    """Steps between validations; none: save_every, so that every checkpoint has its figure; 0: never."""
    validation_prompts: Positive = 64
    """Prompts set aside for validation, at most a tenth of all; from the training prompts, never from the holdout."""
