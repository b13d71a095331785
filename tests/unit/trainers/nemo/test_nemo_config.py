"""Tests of the rendered configuration: golden files, unknown keys, and numbers that are consistent for every accepted recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.jobs.training import Adjustment, Attempt, Method, TrainingPlan
from ratchet.trainers.backends.nemo.arithmetic import (
    ClusterShape,
    check_arithmetic,
    data_parallel,
    epochs,
    sampled_at_once,
    training_gpus,
    validate_every,
)
from ratchet.trainers.backends.nemo.backend import NemoGRPO
from ratchet.trainers.backends.nemo.config import RunCounts, render_config
from ratchet.trainers.backends.nemo.keys import OF_METHOD, refuse_unknown, shipped
from ratchet.trainers.backends.nemo.sections import elapsed, schedule
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.grpo import GRPORecipe
from tests.builders import START, make_plan
from tests.unit.trainers.nemo import variants

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_rendered_configurations_match_their_golden_files(name: str) -> None:
    expected = json.loads((GOLDEN / f"{re.sub('[^a-z0-9]+', '_', name)}.json").read_text())
    assert json.loads(json.dumps(variants.config(name))) == expected


@pytest.mark.parametrize("name", variants.VARIANTS)
@pytest.mark.parametrize("dialect", ["0.7", "0.8"])
def test_every_variant_is_consistent_and_has_only_known_keys(name: str, dialect: Any) -> None:
    check_arithmetic(variants.recipe(name), variants.VARIANTS[name][1], 500)
    refuse_unknown(variants.config(name, dialect), shipped(dialect), dialect)


def test_the_main_branch_of_the_release_knows_the_keys() -> None:
    refuse_unknown(variants.config("adapter"), shipped("main"), "main")


def test_each_dialect_has_keys_that_the_other_refuses() -> None:
    with pytest.raises(ConfigError, match=r"policy\.dtensor_cfg.*did you mean"):
        refuse_unknown(variants.config("colocated", "0.7"), shipped("0.8"), "0.8")
    with pytest.raises(ConfigError, match=r"policy\.automodel_cfg"):
        refuse_unknown(variants.config("colocated", "0.8"), shipped("0.7"), "0.7")


@pytest.mark.parametrize(
    ("path", "near"),
    [("loss_fn.clip_epsilon", "loss_fn"), ("grpo.num_promts_per_step", "grpo.num_prompts_per_step"), ("polisy", "policy")],
)
def test_a_key_that_the_release_would_ignore_is_refused(path: str, near: str) -> None:
    config = variants.config("colocated")
    *above, last = path.split(".")
    place = config
    for key in above:
        place = place[key]
    place[last] = 1
    with pytest.raises(ConfigError, match=re.escape(path)) as error:
        refuse_unknown(config, shipped(), "the release")
    assert near in str(error.value)


def test_no_deliberate_key_is_a_section_of_the_base_file() -> None:
    """A section of the base file needs no exception. A leaf may have one, because `data.validation` is null in the base file."""
    for path in OF_METHOD["grpo"]:
        keys: Any = shipped()
        for key in path.split("."):
            keys = (keys or {}).get(key, "absent")
            if keys == "absent":
                break
        assert keys in ("absent", None), path


def test_durations_have_the_format_of_the_release() -> None:
    assert [elapsed(value) for value in (0, 59.9, 3_600, 90_061)] == ["00:00:00:01", "00:00:00:59", "00:01:00:00", "01:01:01:01"]


def test_a_memory_adjustment_reaches_the_generation_engine() -> None:
    config = render_config(complete(GRPORecipe, {}), ClusterShape(1, 8), variants.PLACES, RunCounts(100, 10), 1, memory=0.5)
    assert config["policy"]["generation"]["vllm_cfg"]["gpu_memory_utilization"] == 0.3


REFUSED: list[tuple[dict[str, Any], ClusterShape, str]] = [
    ({}, ClusterShape(1, 0), "set training.gpus"),
    ({"loss": "dr_grpo"}, ClusterShape(1, 8), "loss = 'dapo' or 'grpo'"),
    ({"scale_rewards": "batch"}, ClusterShape(1, 8), "'group' or 'none'"),
    ({"lora": {"alpha": 8.5}}, ClusterShape(1, 8), "must be an integer"),
    ({"lora": {"targets": "attention"}}, ClusterShape(1, 8), "'all-linear' or a list"),
    ({"precision": "float32"}, ClusterShape(1, 8), "set nemo.packing = false"),
    ({"prompts_per_step": 3, "generations": 4}, ClusterShape(1, 8), "set prompts_per_step = 4"),
    ({"nemo": {"train_batch": 48}}, ClusterShape(1, 8), "set nemo.train_batch = 0"),
    ({"nemo": {"train_batch": 4}}, ClusterShape(1, 8), "multiple of 8"),
    ({"nemo": {"packing": False}, "prompts_per_step": 4, "micro_batch": 8}, ClusterShape(1, 8), "not a multiple of micro_batch"),
    ({"nemo": {"tensor_parallel": 3}}, ClusterShape(1, 8), "not a multiple of nemo.tensor_parallel"),
    ({"nemo": {"generation_tensor_parallel": 3}}, ClusterShape(1, 8), "not a multiple of nemo.generation_tensor_parallel"),
    ({"nemo": {"generation": "dedicated"}}, ClusterShape(1, 8), "0 < nemo.generation_gpus < 8"),
    ({"nemo": {"generation": "dedicated", "generation_nodes": 2}}, ClusterShape(2, 8), "0 < nemo.generation_nodes < 2"),
    ({"nemo": {"validate_every": 7}}, ClusterShape(1, 8), "not a multiple of nemo.validate_every"),
    ({"prompts_per_step": 64}, ClusterShape(1, 8), "no step would run; set prompts_per_step to 50 or less"),
]


@pytest.mark.parametrize(("changes", "cluster", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_an_inconsistent_recipe_is_refused_with_a_remedy(changes: dict[str, Any], cluster: ClusterShape, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_arithmetic(complete(GRPORecipe, changes), cluster, 50)


@st.composite
def cases(draw: st.DrawFn) -> tuple[GRPORecipe, ClusterShape, int]:
    """Draw a recipe, a cluster and a number of prompts."""
    small = st.integers(1, 12)
    prompts, generations = draw(small), draw(st.integers(2, 9))
    divisors = [n for n in range(1, prompts * generations + 1) if prompts * generations % n == 0]
    nemo = {
        "generation": draw(st.sampled_from(["colocated", "dedicated"])),
        "generation_gpus": draw(st.integers(0, 4)),
        "generation_nodes": draw(st.integers(0, 3)),
        "tensor_parallel": draw(st.integers(1, 3)),
        "train_batch": draw(st.sampled_from([0, 0, *divisors])),
        "packing": draw(st.booleans()),
        "dynamic_sampling": draw(st.booleans()),
        "dynamic_sampling_batches": draw(small),
        "batch_multiplier": draw(st.floats(1, 3)),
        "validate_every": draw(st.none() | st.integers(0, 6)),
    }
    shared = {"prompts_per_step": prompts, "generations": generations, "micro_batch": draw(st.sampled_from(divisors)), "nemo": nemo}
    recipe = complete(GRPORecipe, {**shared, "steps": draw(st.integers(1, 60)), "save_every": draw(small)})
    return recipe, ClusterShape(draw(st.integers(1, 4)), draw(st.integers(1, 8))), draw(st.integers(1, 60))


@given(cases())
def test_every_accepted_recipe_takes_all_its_steps_in_whole_batches(case: tuple[GRPORecipe, ClusterShape, int]) -> None:
    recipe, cluster, prompts = case
    try:
        check_arithmetic(recipe, cluster, prompts)
    except ConfigError:
        return
    config = render_config(recipe, cluster, variants.PLACES, RunCounts(prompts, 5), 1)
    grpo, policy = config["grpo"], config["policy"]
    total, batch = grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"], policy["train_global_batch_size"]
    ways = data_parallel(recipe, cluster)
    assert training_gpus(recipe, cluster) == ways * recipe.nemo.tensor_parallel >= 1
    assert total % batch == 0
    assert batch % ways == 0
    assert recipe.nemo.packing or batch // ways % policy["train_micro_batch_size"] == 0
    assert steps_of_the_release(grpo, prompts) == recipe.steps >= 1
    assert validate_every(recipe) == 0 or recipe.save_every % validate_every(recipe) == 0
    assert grpo["max_val_samples"] // grpo["val_batch_size"] * grpo["val_batch_size"] >= 5


def steps_of_the_release(grpo: dict[str, Any], prompts: int) -> int:
    """Return the steps of the release's loop over epochs and whole batches, if every group has a training signal."""
    steps = 0
    for _ in range(grpo["max_num_epochs"]):
        for _ in range(prompts // int(grpo["num_prompts_per_step"] * grpo["batch_multiplier"])):
            steps += 1
            if steps >= grpo["max_num_steps"]:
                return steps
    return steps


def test_dynamic_sampling_has_enough_epochs_for_its_worst_case() -> None:
    recipe = complete(GRPORecipe, {"steps": 10, "nemo": {"dynamic_sampling": True, "dynamic_sampling_batches": 3}})
    assert sampled_at_once(recipe) == 8
    assert epochs(recipe, 16) * 2 >= 10 * 4, "an epoch has two batches, and a step needs up to four"
    assert epochs(recipe, 80) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cosine", "linear", "constant", "constant_with_warmup"])
def test_the_learning_rate_follows_the_recipe(name: str) -> None:
    import torch

    recipe = complete(GRPORecipe, {"schedule": name, "warmup_steps": 4, "steps": 20, "learning_rate": 1e-3})
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=recipe.learning_rate)
    *parts, last = schedule(recipe)
    made = [getattr(torch.optim.lr_scheduler, part["name"].rsplit(".", 1)[1])(optimizer, **part["kwargs"]) for part in parts]
    course = torch.optim.lr_scheduler.SequentialLR(optimizer, made, last["milestones"])
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"] / recipe.learning_rate)
        optimizer.step()
        course.step()
    if name == "constant":
        assert rates == pytest.approx([1.0] * 20)
        return
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(1.0) if name == "constant_with_warmup" else rates[-1] < 0.1


def plan(**changes: Any) -> TrainingPlan:
    """Return a plan with `changes` to its recipe."""
    return make_plan(Method.GRPO, NemoGRPO().recipe(changes))


def test_a_job_is_a_function_of_plan_and_attempt() -> None:
    one, trainer = plan(), NemoGRPO()
    attempt = Attempt(number=2, timeout=60.0, nodes=2, gpus=8)
    job = trainer.job(one, attempt)
    assert job == trainer.job(one, attempt)
    assert (job.nodes, job.gpus, job.environment["RATCHET_BACKEND"]) == (2, 8, "nemo-rl")
    assert job.inputs == {"model": START.files, "prompts.parquet": one.prompts}
    assert job.name != trainer.job(one, attempt.model_copy(update={"adjustment": Adjustment(memory=0.5)})).name


def test_a_plan_that_cannot_run_is_refused_before_a_machine_is_requested() -> None:
    with pytest.raises(ConfigError, match=r"set training\.gpus"):
        NemoGRPO().job(plan(), Attempt(number=1, timeout=60.0))
    with pytest.raises(Permanent, match="use the trainer for that method"):
        NemoGRPO().job(plan().model_copy(update={"method": Method.DPO}), Attempt(number=1, timeout=60.0, gpus=8))
    with pytest.raises(ConfigError, match="did you mean 'dynamic_sampling'"):
        NemoGRPO().recipe({"nemo": {"dynamic_samplin": True}})


@pytest.mark.parametrize(("nemo", "period"), [({}, 10), ({"validate_every": 0}, 10), ({"validate_every": 4}, 12)])
def test_an_automatic_checkpoint_interval_begins_with_a_number_that_validation_divides(nemo: dict[str, int], period: int) -> None:
    recipe = complete(GRPORecipe, {"save_every": "auto", "nemo": nemo})
    config = render_config(recipe, ClusterShape(1, 8), variants.PLACES, RunCounts(train=1, validation=1), 1)
    assert config["checkpointing"]["save_period"] == period
