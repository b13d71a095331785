"""Tests of the batches that a loop file does not name: every shape of machines divides them, and what the loop file names stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.training import Attempt, Method
from ratchet.contracts.loop import TrainingSettings
from ratchet.trainers.backends.nemo.backend import NemoGRPO
from ratchet.trainers.backends.trl import DPO, SFT
from ratchet.trainers.batches import divisible
from tests.builders import make_plan

NEMO = {"grpo_on": "nemo-rl"}


def of(changes: dict[str, Any]) -> TrainingSettings:
    return divisible(TrainingSettings.model_validate(changes))


@pytest.mark.parametrize(
    ("changes", "sft", "grpo"),
    [
        ({"nodes": 3, "gpus": 8} | NEMO, {"batch": 48}, {"prompts_per_step": 9}),
        ({"nodes": 2, "gpus": 8} | NEMO, {}, {}),
        ({}, {}, {}),
        ({"nodes": 3}, {"batch": 36}, {}),  # 3 processes, and a multiple of micro_batch 4
        ({"nodes": 3, "gpus": 8}, {"batch": 48}, {}),  # GRPO on TRL uses one GPU at most, which the trainer says
        ({"nodes": 3, "gpus": 8, "sft": {"batch": 32}, "grpo": {"prompts_per_step": 8}} | NEMO, {"batch": 32}, {"prompts_per_step": 8}),
        ({"gpus": 3, "grpo": {"generations": 6}} | NEMO, {"batch": 36}, {"generations": 6}),  # 48 answers
        ({"gpus": 5, "grpo": {"generations": 6}} | NEMO, {"batch": 40}, {"generations": 6, "prompts_per_step": 10}),
        ({"gpus": 24, "grpo": {"nemo": {"tensor_parallel": 8}}} | NEMO, {"batch": 48}, {"prompts_per_step": 9}),
        ({"gpus": 3, "grpo": {"nemo": {"train_batch": 36}}} | NEMO, {"batch": 36}, {"prompts_per_step": 9}),
        ({"gpus": 6, "grpo": {"nemo": {"packing": False}}} | NEMO, {"batch": 36}, {"prompts_per_step": 9}),
        ({"nodes": 4, "gpus": 8, "grpo": {"nemo": {"generation": "dedicated", "generation_nodes": 1}}} | NEMO, {}, {"prompts_per_step": 9}),
        ({"gpus": 0} | NEMO, {}, {}),
        ({"gpus": 3, "sft_on": "nemo-rl"}, {"batch": 36}, {}),
        ({"gpus": 6, "sft_on": "nemo-rl", "sft": {"nemo": {"tensor_parallel": 2}}}, {"batch": 36, "nemo": {"tensor_parallel": 2}}, {}),
        ({"gpus": 2, "sft_on": "nemo-rl", "sft": {"nemo": {"tensor_parallel": 4}}}, {"nemo": {"tensor_parallel": 4}}, {}),
        ({"gpus": 3, "sft_on": "mine", "grpo_on": "mine", "sft": {"any": 1}}, {"any": 1}, {}),
    ],
)
def test_a_batch_that_is_not_set_is_the_next_multiple_of_the_ranks(
    changes: dict[str, Any], sft: dict[str, Any], grpo: dict[str, Any]
) -> None:
    settings = of(changes)
    nemo = {"nemo": changes["grpo"]["nemo"]} if "nemo" in changes.get("grpo", {}) else {}
    assert (settings.sft, settings.grpo) == (sft, grpo | nemo)
    assert settings.dpo == {}


def test_dpo_has_a_divisible_batch_on_nemo_rl_only() -> None:
    assert of({"gpus": 3, "dpo_on": "nemo-rl"}).dpo == {"batch": 36}
    assert of({"gpus": 3, "dpo_on": "nemo-rl", "dpo": {"batch": 32}}).dpo == {"batch": 32}
    assert of({"gpus": 3}).dpo == {}


@pytest.mark.slow
@given(
    nodes=st.integers(1, 6),
    gpus=st.integers(1, 8),
    micro=st.sampled_from([1, 2, 4, 8]),
    generations=st.sampled_from([4, 8, 16]),
    packing=st.booleans(),
)
def test_every_shape_gets_jobs_without_a_batch_in_the_loop_file(nodes: int, gpus: int, micro: int, generations: int, packing: bool) -> None:
    grpo = {"micro_batch": micro, "generations": generations, "nemo": {"packing": packing}}
    settings = of({"nodes": nodes, "gpus": gpus, "sft": {"micro_batch": micro}, "grpo": grpo} | NEMO)
    attempt = Attempt(number=1, timeout=60, nodes=nodes, gpus=gpus)
    for trainer, method in ((SFT(), Method.SFT), (DPO(), Method.DPO), (NemoGRPO(), Method.GRPO)):
        assert trainer.job(make_plan(method, trainer.recipe(settings.recipe(method))), attempt).nodes == nodes


def test_an_invalid_recipe_is_named() -> None:
    with pytest.raises(ConfigError, match="SFT recipe: unknown key 'bach'"):
        of({"gpus": 3, "sft": {"bach": 4}})
