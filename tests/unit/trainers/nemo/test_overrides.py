"""Tests of settings of NeMo RL that are passed on to the release."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.training import Attempt, Method, TrainingPlan
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.backend import ANYWHERE, NemoGRPO
from ratchet.trainers.backends.nemo.config import RunCounts, render_config
from ratchet.trainers.backends.nemo.keys import refuse_unknown, shipped
from ratchet.trainers.backends.nemo.overrides import flat, refuse_overrides, unproven, value_types, with_overrides
from ratchet.trainers.backends.trl import GRPO
from ratchet.trainers.recipes.grpo import GRPORecipe

FP8 = {"policy.generation.vllm_cfg.precision": "fp8", "policy": {"dtensor_cfg": {"context_parallel_size": 2, "cpu_offload": True}}}


def rendered() -> dict[str, Any]:
    """Return the configuration of a recipe without overrides."""
    recipe = GRPORecipe(prompts_per_step=16, generations=8)
    return render_config(recipe, ClusterShape(2, 8), ANYWHERE, RunCounts(train=1, validation=1), 0)


def test_overrides_reach_the_configuration_and_change_nothing_else() -> None:
    config = rendered()
    refuse_overrides(FP8, config)
    found = with_overrides(config, FP8)
    refuse_unknown(found, shipped(), "NeMo RL")
    assert found["policy"]["generation"]["vllm_cfg"].pop("precision") == "fp8"
    assert found["policy"]["dtensor_cfg"].pop("context_parallel_size") == 2
    assert found["policy"]["dtensor_cfg"].pop("cpu_offload") is True
    assert found == config


def test_tensorboard_and_wandb_are_reached_by_overrides() -> None:
    seen = {"logger.tensorboard_enabled": True, "logger.wandb_enabled": True, "logger.wandb": {"project": "retraining", "name": "support"}}
    config = rendered()
    refuse_overrides(seen, config)
    assert with_overrides(config, seen)["logger"]["tensorboard_enabled"] is True
    assert with_overrides(config, seen)["logger"]["log_dir"] == config["logger"]["log_dir"]


def test_dotted_keys_and_tables_are_the_same() -> None:
    assert dict(flat(FP8)) == {
        "policy.generation.vllm_cfg.precision": "fp8",
        "policy.dtensor_cfg.context_parallel_size": 2,
        "policy.dtensor_cfg.cpu_offload": True,
    }


def test_the_table_of_a_key_that_is_one_in_the_release_is_its_value() -> None:
    found = dict(flat({"policy": {"dtensor_cfg": {"automodel_kwargs": {"force_hf": True}}}}))
    assert found == {"policy.dtensor_cfg.automodel_kwargs": {"force_hf": True}}


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"policy.dtensor_cfg.cpu_ofload": True}, r"is no key of the pinned release; did you mean 'policy\.dtensor_cfg\.cpu_offload'"),
        ({"policy.dtensor_cfg.cpu_offload": "yes"}, 'must be true or false, not "yes"'),
        ({"policy.dtensor_cfg.context_parallel_size": True}, "must be a whole number, not true"),
        ({"grpo.num_prompts_per_step": 8}, r"is set by Ratchet; set it by its name in the recipe"),
        ({"policy.optimizer.kwargs.lr": 1.0}, "is set by Ratchet"),
        ({"policy.megatron_cfg.enabled": True}, "a run on Megatron would end without a model"),
        ({"grpo.async_grpo.enabled": True}, "need whole groups at once"),
        ({"checkpointing.save_period": 1}, "Ratchet follows, verifies and resumes the checkpoints"),
        ({"env.math.num_workers": 1}, "the rewards are the line's scorers"),
        ({"grpo.adv_estimator.name": "gdpo"}, "it needs several rewards for each answer"),
        ({"grpo.adv_estimator.name": "opd"}, "it needs a teacher model"),
        ({"grpo.adv_estimator": {"name": "gae"}}, r'needs a value model.*; set it to "grpo" or "reinforce_plus_plus"'),
        ({"grpo.adv_estimator.name": "rloo"}, "GRPO of the release has no estimator of this name"),
    ],
)
def test_what_cannot_be_passed_on_is_refused_with_the_reason(overrides: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        refuse_overrides(overrides, rendered())


def test_an_advantage_estimator_that_needs_one_reward_is_passed_on() -> None:
    chosen = {"grpo.adv_estimator.name": "reinforce_plus_plus", "grpo.adv_estimator.minus_baseline": False}
    config = rendered()
    refuse_overrides(chosen, config)
    assert with_overrides(config, chosen)["grpo"]["adv_estimator"] == {"name": "reinforce_plus_plus", "minus_baseline": False}


def test_every_recorded_type_belongs_to_a_key_of_the_release() -> None:
    keys = shipped()

    def has(path: list[str], tree: Any) -> bool:
        return not path or tree in ({}, None) or (path[0] in tree and has(path[1:], tree[path[0]]))

    assert [name for name in value_types() if not has(name.split("."), keys)] == []
    assert len(value_types()) > 250


def test_a_plan_with_overrides_says_that_they_were_never_proven(workshop: Any) -> None:
    trainer, plain = NemoGRPO(), workshop.plan(Method.GRPO, prompts_per_step=16, generations=8)

    def plan(**nemo: Any) -> TrainingPlan:
        changes = {"prompts_per_step": 16, "generations": 8, "nemo": {"max_prompt": 64, **nemo}}
        return plain.model_copy(update={"recipe": trainer.recipe(changes)})

    [said] = trainer.cautions(plan(overrides=FP8))
    assert said.startswith("settings of NeMo RL that were never proven with Ratchet: policy.generation.vllm_cfg.precision = ")
    assert trainer.cautions(plan()) == ()
    assert unproven({}) == ""
    wrong = plan(overrides={"cluster.num_nodes": 9})
    with pytest.raises(ConfigError, match=r"training\.nodes and training\.gpus"):
        trainer.job(wrong, Attempt(number=1, timeout=10, nodes=2, gpus=8))


def test_trl_does_not_drop_them_in_silence() -> None:
    with pytest.raises(ConfigError, match="grpo_on"):
        GRPO().recipe({"nemo": {"overrides": FP8}})


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"logger.wandb.name": "${oc.env:AWS_SECRET_ACCESS_KEY}"}, "has an interpolation"),
        ({"logger": {"wandb": {"name": ["a", "${env:HOME}"]}}}, "has an interpolation"),
        ({"logger.${x}": 1}, "is not the name of a key"),
        ({"policy": {}}, "is an empty table"),
        ({"checkpointing": {"enabled": {}}}, "is an empty table"),
        ({"policy.hf_config_overrides": {"auto_map": {"AutoModelForCausalLM": "evil/repo--modeling.Evil"}}}, "could load other code"),
        ({"policy": {"generation": {"vllm_kwargs": {"trust_remote_code": True}}}}, "could load other code"),
        ({"policy.dtensor_cfg.automodel_kwargs": {"trust_remote_code": True}}, "could load other code"),
        ({"policy.tokenizer.name": "evil/repo"}, "could load other code"),
        ({"logger.mlflow_enabled": True}, "could load other code, or send figures elsewhere"),
    ],
)
def test_a_recipe_takes_no_override_that_could_load_code_or_read_a_secret(overrides: dict[str, Any], problem: str) -> None:
    """The recipe is validated when the plan is made and again in the job."""
    with pytest.raises(ConfigError, match=problem):
        NemoGRPO().recipe({"nemo": {"overrides": overrides}})
