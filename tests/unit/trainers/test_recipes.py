"""Tests of recipes and plans as data: they are complete and checked, and the same plan gives the same job."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from importlib.metadata import requires, version
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from ratchet.contracts.data.datasets import Facts
from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.jobs.training import Attempt, Method, TrainingPlan
from ratchet.contracts.model import ModelRef
from ratchet.trainers.backends.nemo.backend import NemoGRPO
from ratchet.trainers.backends.trl import DPO, GRPO, SFT
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.job.trl import grpo
from ratchet.trainers.job.trl.grpo import sampling
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.derived import typical_rate
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.health_limits import Health
from ratchet.trainers.recipes.recipe import Lora, Recipe
from ratchet.trainers.recipes.sft import SFTRecipe
from tests.builders import START, make_facts, make_plan
from tests.command import ROOT

FIRST = Attempt(number=1, timeout=60)


def plan(method: Method, start: ModelRef = START, **changes: Any) -> TrainingPlan:
    """Return a plan for a method, with `changes` to its recipe."""
    trainer = {Method.DPO: DPO(), Method.GRPO: GRPO(), Method.SFT: SFT()}[method]
    return make_plan(method, trainer.recipe(changes), start=start, code=code_digest())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learnign_rate": 1e-4}, "did you mean 'learning_rate'"),
        ({"lora": {"rnak": 8}}, "did you mean 'rank'"),
        ({"health": {"grad_nrm": 1}}, "did you mean 'grad_norm'"),
        ({"xyzzy": 1}, "known keys: "),
        ({"batch": 3, "micro_batch": 2}, "not a multiple"),
        ({"losses": {"sigmoid": 0.0}}, "at least one weight"),
        ({"losses": {"robust": 1.0}}, "weigh_pairs"),
        ({"losses": {"robust": 1.0}, "weigh_pairs": False, "label_smoothing": 0.0}, "label_smoothing"),
        ({"losses": {"sigmoyd": 1.0}}, "losses"),
        ({"steps": 0}, "steps"),
        ({"steps": "many"}, "steps"),
    ],
)
def test_the_error_for_an_invalid_recipe_names_the_fault(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DPO().recipe(changes)


def test_groups_must_fill_whole_micro_batches() -> None:
    with pytest.raises(ConfigError, match="prompts_per_step"):
        GRPO().recipe({"prompts_per_step": 3, "generations": 3, "micro_batch": 4})


@pytest.mark.parametrize("trainer", [DPO(), GRPO()])
def test_a_recipe_is_complete_and_completing_it_again_changes_nothing(trainer: Any) -> None:
    recipe = trainer.recipe({"steps": 7, "lora": {"rank": 4}})
    assert set(recipe) == set(trainer.kind.model_fields)
    assert recipe["lora"]["alpha"] == 32.0
    assert trainer.recipe(recipe) == recipe


@pytest.mark.parametrize("kind", [DPORecipe, GRPORecipe, Recipe, Lora, Health])
def test_every_setting_is_documented(kind: type[Any]) -> None:
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    for item, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign):
            assert isinstance(following, ast.Expr), f"{ast.unparse(item.target)} has no docstring"


@given(st.integers(1, 5), st.floats(1, 1e6), st.integers(0, 1))
def test_the_same_plan_gives_the_same_job(attempt: int, timeout: float, gpus: int) -> None:
    first, again = (DPO().job(plan(Method.DPO), Attempt(number=attempt, timeout=timeout, gpus=gpus)) for _ in range(2))
    assert first == again
    assert first.name.endswith(f"-a{attempt}")
    assert len(first.name) <= 63


def test_another_attempt_or_limit_is_another_job() -> None:
    names = {DPO().job(plan(Method.DPO), Attempt(number=attempt, timeout=timeout)).name for attempt in (1, 2) for timeout in (10.0, 20.0)}
    assert len(names) == 4


def test_a_job_gets_only_the_inputs_of_its_method() -> None:
    whole = DPO().job(plan(Method.DPO), FIRST).inputs
    assert set(whole) == {"model", "pairs.parquet", "demonstrations.parquet"}
    assert whole["demonstrations.parquet"] == plan(Method.DPO).demonstrations
    for changes in ({"rehearsal": 0}, {"losses": {"sigmoid": 1.0}}):
        assert set(DPO().job(plan(Method.DPO, **changes), FIRST).inputs) == {"model", "pairs.parquet"}
    assert set(GRPO().job(plan(Method.GRPO), FIRST).inputs) == {"model", "prompts.parquet"}


def test_threads_and_offline_mode_are_set_in_the_environment() -> None:
    environment = DPO().job(plan(Method.DPO, cpus=3), FIRST).environment
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE", "waiting threads must not occupy a shared machine"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in DPO().job(plan(Method.DPO), Attempt(number=1, timeout=60, gpus=1)).environment


def test_each_gpu_gets_a_process() -> None:
    spec = DPO().job(plan(Method.DPO), Attempt(number=1, timeout=60, gpus=4, nodes=2))
    assert (spec.gpus, spec.nodes) == (4, 2)
    assert (spec.environment["RATCHET_PROCESSES"], spec.environment["RATCHET_NODES"]) == ("4", "2")
    assert DPO().job(plan(Method.DPO), FIRST).environment["RATCHET_PROCESSES"] == "1"
    assert SFT().job(plan(Method.SFT), Attempt(number=1, timeout=60, gpus=8, nodes=2)).environment["RATCHET_PROCESSES"] == "8"
    with pytest.raises(ConfigError, match=r"batch 32 is not a multiple of the 24 GPUs of the run; set batch to 48"):
        SFT().job(plan(Method.SFT), Attempt(number=1, timeout=60, gpus=8, nodes=3))


def test_a_trainer_refuses_jobs_that_it_cannot_run() -> None:
    with pytest.raises(Permanent, match="asks for"):
        GRPO().job(plan(Method.DPO), FIRST)
    with pytest.raises(ConfigError, match="at most one GPU"):
        GRPO().job(plan(Method.GRPO), Attempt(number=1, timeout=60, gpus=2))
    for resources in ({"gpus": 2}, {"gpus": 1, "nodes": 2}, {"gpus": 0, "nodes": 2}):
        with pytest.raises(ConfigError, match="nf4 trains on at most one GPU"):
            DPO().job(plan(Method.DPO, lora={"quantize": "nf4"}), Attempt(number=1, timeout=60, **resources))
    with pytest.raises(Permanent, match="adapter"):
        DPO().job(plan(Method.DPO, start=START.model_copy(update={"parent": "f" * 64})), FIRST)


@pytest.mark.slow
def test_planning_and_supervision_load_no_torch() -> None:
    modules = "ratchet.trainers.choose, ratchet.trainers.backends.trl, ratchet.trainers.job.supervisor"
    code = f"import sys, {modules}; print({{'torch', 'trl', 'transformers'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


ROBUST: dict[str, Any] = {"losses": {"robust": 1.0}, "weigh_pairs": False}


@pytest.mark.parametrize(
    ("noise", "tiers", "smoothing"),
    [
        (0.3, {"feedback": 100}, 0.3),
        (0.3, {"feedback": 50, "verifiable": 50}, 0.15),
        (None, {"feedback": 100}, 0.2),
        (0.0, {"feedback": 100}, 0.01),
        (0.6, {"feedback": 100}, 0.45),
    ],
)
def test_the_robust_loss_uses_the_measured_noise(noise: float | None, tiers: dict[str, int], smoothing: float) -> None:
    none = dict.fromkeys(("group_coverage", "champion_reward", "best_of_k", "off_policy"))
    counts = {"prompts": 9, "prompts_with_reference": 0, "corrections": 0, "samples": 200}
    facts = Facts.model_validate({**none, **counts, "pairs": 100, "pairs_by_tier": tiers, "pairs_dropped": {}, "label_noise": noise})
    found = DPO().recipe(ROBUST, facts)
    assert found["label_smoothing"] == pytest.approx(smoothing)
    assert DPO().recipe(found, facts) == found
    assert DPO().recipe(ROBUST | {"label_smoothing": 0.1}, facts)["label_smoothing"] == 0.1
    assert DPO().recipe({"steps": 9}, facts) == DPO().recipe({"steps": 9})


def test_a_robust_loss_without_a_measurement_is_refused() -> None:
    unmeasured = plan(Method.DPO, **ROBUST)
    with pytest.raises(ConfigError, match="label_smoothing"):
        DPO().job(unmeasured, FIRST)


def test_answers_are_sampled_in_batches_that_fit_the_step() -> None:
    assert complete(GRPORecipe, {"generation_batch": 16}).sampled_at_once == 16
    with pytest.raises(ConfigError, match="generation_batch 24 does not fit the step; set it to 0 or to one of 8, 16, 32, 64"):
        complete(GRPORecipe, {"generation_batch": 24})


@pytest.mark.slow
def test_vllm_samples_on_a_gpu_if_it_is_installed_and_is_refused_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from trl import GRPOConfig

    recipe, wanted = complete(GRPORecipe, {}), complete(GRPORecipe, {"generation": "vllm", "vllm_memory": 0.4})
    assert sampling(recipe, 1, 100) == sampling(recipe, 0, 100) == {"steps_per_generation": 64 // recipe.micro_batch}
    with pytest.raises(Permanent, match="vllm is not installed"):
        sampling(wanted, 1, 100)
    with pytest.raises(ConfigError, match=r"set training\.gpus = 1"):
        GRPO().job(plan(Method.GRPO, generation="vllm"), Attempt(number=1, timeout=60))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    monkeypatch.setattr(grpo, "version", lambda name: "0.22.1" if name == "vllm" else version(name))
    told = sampling(wanted, 1, 100)
    assert told["vllm_gpu_memory_utilization"] == 0.4
    assert "use_vllm" in sampling(recipe, 1, 100)
    assert "use_vllm" not in sampling(complete(GRPORecipe, {"generation": "plain"}), 1, 100)
    assert set(told) <= {field.name for field in dataclasses.fields(GRPOConfig)}, "the library must know these names"
    monkeypatch.setattr(grpo, "version", lambda name: "0.32.0" if name == "vllm" else version(name))
    with pytest.raises(Permanent, match=r"supports vllm .*0\.32\.0 is installed"):
        sampling(wanted, 1, 100)
    assert "use_vllm" not in sampling(recipe, 1, 100)


def test_the_lock_of_grpo_with_vllm_has_releases_that_fit() -> None:
    text = (ROOT / "requirements" / "grpo_vllm.lock").read_text()
    pinned = dict(re.findall(r"^(vllm|trl)==(\S+)", text, re.MULTILINE))
    supported = next(one for one in map(Requirement, requires("trl") or ()) if one.name == "vllm")
    assert pinned["trl"] == version("trl"), "the installed release tells what the pinned one supports"
    assert pinned["vllm"] in supported.specifier


@pytest.mark.parametrize(
    ("trainer", "changes", "width", "rate"),
    [
        (SFT, {}, 128, 4.2e-4),
        (SFT, {}, 4096, 2.9e-5),
        (SFT, {"lora": {}}, 4096, 2.9e-4),
        (DPO, {}, 4096, 7.2e-6),
        (GRPO, {}, 128, 4.2e-5),
        (GRPO, {"lora": {}}, 4096, 2.9e-5),
    ],
)
def test_the_rate_follows_from_the_width_of_the_model(trainer: Any, changes: dict[str, Any], width: int, rate: float) -> None:
    recipe = complete(trainer.kind, changes)
    assert recipe.learning_rate == "auto"
    assert typical_rate(recipe, width) == pytest.approx(rate, rel=0.02)
    with pytest.raises(ConfigError, match="set it to a number"):
        _ = recipe.rate


def test_the_limit_of_the_steps_is_set_at_planning() -> None:
    assert complete(SFTRecipe, {}).last_step == 1000
    assert complete(SFTRecipe, {"most_steps": 70}).last_step == 70
    assert complete(SFTRecipe, {"steps": 9, "most_steps": 70}).last_step == 9


@pytest.mark.parametrize("trainer", [GRPO(), NemoGRPO()])
def test_grpo_finds_its_steps_within_a_limit(trainer: Any) -> None:
    recipe = trainer.recipe({"steps": "auto"}, make_facts())
    assert (recipe["steps"], recipe["most_steps"]) == ("auto", 200)
    assert complete(GRPORecipe, recipe).last_step == complete(GRPORecipe, {}).last_step == 200
