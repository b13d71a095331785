"""Settings of the health rules: limits with their defaults, and actions. trainers/health.py applies the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from ratchet.trainers.recipes.numbers import Numbers, Positive, Rate

Action = Literal["off", "note", "adjust", "stop"]
"""Action of a health rule.

off: the rule is not evaluated. note: one warning. adjust: the attempt ends, and the next attempt resumes from the last good step with
the remedy of the rule, once per rule and plan. stop: the attempt ends, and a further attempt starts from the beginning."""


class Limit(Numbers):
    """Limit of a health rule, and the action beyond it."""

    limit: float
    """Limit in the unit of the rule."""
    patience: Positive
    """Number of consecutive steps beyond the limit before the action is taken."""
    action: Action
    """Action after `patience` steps."""


LIMITS = {
    "kl": Limit(limit=0.5, patience=5, action="adjust"),
    "grad_norm": Limit(limit=10.0, patience=10, action="adjust"),
    "chosen_fall": Limit(limit=100.0, patience=5, action="adjust"),
    "loss_spike": Limit(limit=8.0, patience=3, action="adjust"),
    "generation_mismatch": Limit(limit=1.05, patience=3, action="stop"),
    "reward_falls": Limit(limit=0.1, patience=5, action="adjust"),
    "reward_flat": Limit(limit=0.005, patience=50, action="note"),
    "entropy_collapse": Limit(limit=0.1, patience=10, action="note"),
    "length_grows": Limit(limit=3.0, patience=10, action="adjust"),
    "generation_slow": Limit(limit=3.0, patience=20, action="note"),
}
"""Default limits for models with billions of weights. Tiny models need wider limits because their learning rates are larger."""


class Health(Numbers):
    """Limits of the health rules in trainers/health.py. If only a part of a rule is given, the rest keeps its default."""

    not_finite: Action = "adjust"
    """Loss or gradient norm is NaN or infinite; applies immediately. Adjusts: half the learning rate."""
    kl: Limit = LIMITS["kl"]
    """Mean KL divergence to the start model, in nats per token (only GRPO with beta > 0). Adjusts: twice the KL penalty (beta)."""
    grad_norm: Limit = LIMITS["grad_norm"]
    """Gradient norm before clipping. Adjusts: half the learning rate. After one adjustment, it is only noted."""
    chosen_fall: Limit = LIMITS["chosen_fall"]
    """Decrease of the chosen answers' log-probability relative to the start model, in nats per answer (DPO). Adjusts: twice beta."""
    loss_spike: Limit = LIMITS["loss_spike"]
    """Loss above the median of the 20 preceding steps, in robust standard deviations. Adjusts: half the learning rate."""
    generation_mismatch: Limit = LIMITS["generation_mismatch"]
    """Factor by which the trained model and the generation engine disagree on the probability of a sampled token, on average (GRPO on NeMo
    RL); 1 is agreement. Beyond the limit, the run trains on wrong probabilities, and no setting of the recipe changes that: compare the
    tensor parallelism, the precision and the versions of both. With `adjust`, the next attempt resumes without changes."""
    reward_falls: Limit = LIMITS["reward_falls"]
    """Decrease of the mean reward of 10 steps from the best such mean (GRPO; rewards are in [0, 1]). The effective limit is at least the
    decrease expected by chance from the variation between steps, which is larger for steps with few prompts.
    Adjusts: half the learning rate."""
    reward_flat: Limit = LIMITS["reward_flat"]
    """Increase of the mean reward of 10 steps over that of the first 10 steps is below the limit (GRPO). Adjusts: twice beta."""
    entropy_collapse: Limit = LIMITS["entropy_collapse"]
    """Token entropy of the answers, as a share of that of the first steps, is below the limit. The default action is `note`, because a
    model that has learnt a unique correct answer shows the same figures. Adjusts: twice beta."""
    length_grows: Limit = LIMITS["length_grows"]
    """Mean tokens per answer, relative to the first steps. The gate rejects candidates with much longer answers. Adjusts: twice beta."""
    generation_slow: Limit = LIMITS["generation_slow"]
    """Time of generation (or of a whole step), relative to the first steps. Changes no setting: resumes from the last good step."""
    memory: Action = "adjust"
    """Out of memory. Adjusts: half the rows in memory and half the GPU memory for generation. With `note` and `off`, the attempt fails."""
    stall: Action = "adjust"
    """No event for too long. Changes no setting: resumes from the last good step. With `note` and `off`, stalls are not detected."""
    stall_seconds: Rate = 1800.0
    """Maximum time in seconds without an event (step or checkpoint). It includes loading the model. Saving has its own limit."""
    stall_times: Rate = 30.0
    """Once the times of three steps are known, the maximum time is also limited to this multiple of the median step time."""
    stall_least_seconds: Rate = 300.0
    """Lower limit, in seconds, of the time derived from `stall_times`."""
    save_seconds: Rate = 7200.0
    """Maximum time, in seconds, to write the first checkpoint or the finished model, or to measure the model. No step is expected then.
    A later checkpoint may take `stall_times` times the longest earlier one, at least `stall_least_seconds` and at most this value."""

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {
            name: {**LIMITS[name].model_dump(), **value} if name in LIMITS and isinstance(value, Mapping) else value
            for name, value in given.items()
        }
