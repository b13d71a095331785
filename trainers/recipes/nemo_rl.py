"""Settings of a training on NVIDIA NeMo RL beyond the shared recipe: the assignment of GPUs, and options of the release.

The module contains data only. The key names of the release are in `ratchet.trainers.backends.nemo.config`; the attempt defines the cluster.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ratchet.contracts.model import Frozen

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]


LOADING = (
    "policy.tokenizer",
    "policy.draft",
    "policy.hf_config_overrides",
    "policy.dtensor_cfg.automodel_kwargs",
    "policy.dtensor_cfg.custom_parallel_plan",
    "policy.generation.vllm_kwargs",
    "logger.mlflow",
    "logger.swanlab",
)
"""Keys of the release that no override may set: they load other models or code past Ratchet's checks, or send figures elsewhere."""


def checked_overrides(overrides: dict[str, Any]) -> dict[str, Any]:
    """Return overrides of the release's configuration without values that its loader would interpret.

    Raises ValueError for an interpolation (`${...}`), which could put a secret of the environment or of a file into the configuration, for
    an empty table, which would be dropped in silence, and for a key of LOADING. The job checks this again.
    """
    _refuse_read(overrides, "")
    return overrides


def _refuse_read(value: Any, key: str) -> None:
    if any(key == one or key.startswith((f"{one}.", f"{one}_")) for one in LOADING):
        raise ValueError(f"overrides: {key} could load other code, or send figures elsewhere; it cannot be changed")
    if isinstance(value, dict):
        if not value and key:
            raise ValueError(f"overrides: {key} is an empty table; remove it, or name a key in it")
        for name, inner in value.items():
            if "${" in name or not name or name != name.strip():
                raise ValueError(f"overrides: {name!r} is not the name of a key")
            _refuse_read(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            _refuse_read(inner, key)
    elif isinstance(value, str) and "${" in value:
        raise ValueError(
            f"overrides: {key} has an interpolation, which the release would replace, for example by a secret; write the value"
        )


class NemoSharding(Frozen, allow_inf_nan=False):
    """Settings of any training on NeMo RL."""

    tensor_parallel: Positive = 1
    """Tensor-parallel size in training: the number of GPUs that share each layer."""


class NemoRL(NemoSharding):
    """Settings of GRPO on NeMo RL. The TRL trainer uses only `max_prompt`."""

    max_prompt: Positive = 1024
    """Maximum tokens of a prompt including its chat template, without the answer. Longer prompts are excluded from the run."""
    generation: Literal["colocated", "dedicated"] = "colocated"
    """colocated: the same GPUs train and generate in alternation; dedicated: some GPUs only generate."""
    generation_gpus: NotNegative = 0
    """Number of GPUs for generation in dedicated mode on one node. The other GPUs train."""
    generation_nodes: NotNegative = 0
    """Number of nodes for generation in dedicated mode on several nodes. The other nodes train."""
    generation_memory: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Share of a GPU's memory for the generation engine. The memory adjustment of an attempt scales it."""
    generation_tensor_parallel: Positive = 1
    """Tensor-parallel size in generation. The GPUs that share a layer are on one node."""
    train_batch: NotNegative = 0
    """Answers per optimiser update. 0: all answers of a step, so that every update is on-policy."""
    packing: bool = True
    """Packs answers of different lengths into one row. false: pads them; then micro_batch must divide each GPU's share."""
    leave_one_out: bool = True
    """Baseline of an answer: the mean reward of the other answers in its group (arXiv:2402.14740). false: of all answers in it."""
    kl_type: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL divergence to the start model: http://joschu.net/blog/kl-approx.html."""
    dynamic_sampling: bool = False
    """Discards groups with identical rewards and samples further prompts instead (DAPO, arXiv:2503.14476)."""
    dynamic_sampling_batches: Positive = 10
    """Maximum number of batches that a step samples with dynamic_sampling. The run fails if even these contain too few mixed groups."""
    batch_multiplier: Annotated[float, Field(ge=1)] = 1.0
    """Prompts per sampled batch with dynamic_sampling, as a multiple of prompts_per_step."""
    overlong_filtering: bool = False
    """Excludes answers that were truncated at max_completion from the loss. false: they count with their reward."""
    validate_every: NotNegative | None = None
    """Steps between validations. None: save_every, so that every checkpoint has a validation reward; 0: no validation."""
    validation_prompts: Positive = 64
    """Number of training prompts set aside for validation, at most a tenth of them, if the line has no development prompts."""
    overrides: Annotated[dict[str, Any], AfterValidator(checked_overrides)] = Field(default_factory=dict)
    """Settings of the release that no other key names, by their dotted keys or as tables, for example
    `"policy.generation.vllm_cfg.precision" = "fp8"`. Keys and types are checked against the pinned release. None of them was proven with
    Ratchet, which plan, explanation and approval say."""
