"""Settings of the training: allowed methods, recipes, trainers, requirements, resources, and the search."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ratchet.contracts.loop.field_types import Positive, Seconds, Share
from ratchet.contracts.model import Frozen
from ratchet.contracts.time_window import checked_window

NEMO_RL = "nemo-rl"
"""Value of `dpo_on`, `grpo_on` and `sft_on` for the trainers on NVIDIA NeMo RL."""


class SearchSettings(Frozen):
    """Search over recipes: suitable methods and learning rates, compared on the line's development prompts."""

    budget: Annotated[float, Field(ge=0)] = 0
    """Seconds of job time that a cycle may spend on further recipes after the plan's own one, lost and preempted time included. 0: no
    search."""


class TrainingSettings(Frozen):
    """Settings for the choice of the training method, its requirements and its resources."""

    methods: tuple[Literal["dpo", "grpo", "sft"], ...] = ("sft", "grpo", "dpo")
    """Allowed methods, in order of preference if several are suitable. Even after GRPO, SFT is chosen first if it is suitable, and more of
    the probed prompts are never answered right than have mixed rewards."""
    dpo: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the DPO recipe (trainers/recipes/dpo.py)."""
    grpo: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the GRPO recipe (trainers/recipes/grpo.py)."""
    sft: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the SFT recipe (trainers/recipes/sft.py)."""
    dpo_on: str = "trl"
    """Entry point name of an installed trainer (group `ratchet.trainers`) for DPO. trl: the built-in one, on one machine or
    several. nemo-rl: NeMo RL on a cluster with its own container image, for models that TRL cannot hold."""
    grpo_on: str = "trl"
    """Entry point name of an installed trainer (group `ratchet.trainers`) for GRPO. trl: the built-in one, on one machine. nemo-rl: NeMo RL
    on a cluster with its own container image."""
    sft_on: str = "trl"
    """Entry point name of an installed trainer (group `ratchet.trainers`) for SFT. trl: the built-in one, on one machine or
    several. nemo-rl: NeMo RL on a cluster with its own container image, for models that TRL cannot hold."""
    min_pairs: Positive = 50
    """Minimum number of pairs for DPO."""
    min_group_coverage: Share = 0.15
    """Minimum share of probed prompts with mixed rewards for GRPO."""
    min_prompts: Positive = 32
    """Minimum number of prompts with scorable answers for GRPO. GRPO also needs at least the recipe's prompts_per_step."""
    min_demonstrations: Positive = 50
    """Minimum number of demonstrations for SFT."""
    min_teachable: Positive = 20
    """Minimum number of demonstrations for SFT on prompts that the model answers wrong more often than right."""
    max_attempts: Positive = 2
    """Maximum number of failed attempts of one plan."""
    max_restarts: int = Field(default=10, ge=0)
    """Maximum number of restarts within one attempt after preemption or loss."""
    timeout: Seconds = 86_400
    """Maximum duration of one attempt in seconds, over all its incarnations."""
    search: SearchSettings = SearchSettings()
    """Search over recipes."""
    window: Annotated[str | None, AfterValidator(checked_window)] = None
    """Daily time in which jobs may begin, in trigger.timezone, for example "22:00-06:00". A further trial of a search begins only if it
    is likely to end in it. For a GPU that also serves. None: at any time."""
    nodes: Positive = 1
    """Number of nodes that train together."""
    gpus: int = Field(default=0, ge=0)
    """Number of GPUs per node. 0: train on the CPU."""

    def recipe(self, method: str) -> dict[str, Any]:
        """Return the recipe overrides for `method` (`dpo`, `grpo` or `sft`)."""
        return {"dpo": self.dpo, "grpo": self.grpo, "sft": self.sft}[method]

    def trainer(self, method: str) -> str:
        """Return the entry point name of the trainer for `method` (`dpo`, `grpo` or `sft`)."""
        on = self._on(method)
        return {"trl": method, NEMO_RL: f"{NEMO_RL}-{method}"}.get(on, on)

    def on_nemo(self, method: str) -> bool:
        """Return whether NeMo RL trains `method` (`dpo`, `grpo` or `sft`)."""
        return self._on(method) == NEMO_RL

    def built_in(self, method: str) -> bool:
        """Return whether a trainer of Ratchet trains `method` (`dpo`, `grpo` or `sft`), with a recipe of trainers/recipes."""
        return self._on(method) in ("trl", NEMO_RL)

    def _on(self, method: str) -> str:
        on = {"dpo": self.dpo_on, "grpo": self.grpo_on, "sft": self.sft_on}[method]
        return {method: "trl", f"{NEMO_RL}-{method}": NEMO_RL}.get(on, on)  # the entry points themselves are valid names, too
