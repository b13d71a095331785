"""Tests of SFT and DPO as plans for NeMo RL: golden files, known keys, and settings that the release cannot honour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.jobs.training import Adjustment, Attempt, Method, TrainingPlan
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.keys import OF_METHOD, refuse_unknown, shipped
from ratchet.trainers.backends.nemo.offline import NemoDPO, NemoSFT
from ratchet.trainers.backends.nemo.offline_checks import name_of, rows_in_memory
from ratchet.trainers.backends.trl import SFT
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe
from tests.builders import START, make_facts, make_plan
from tests.unit.trainers.nemo.offline_variants import VARIANTS, rendered

GOLDEN = Path(__file__).with_name("golden")
TRAINERS: dict[str, Any] = {"sft": NemoSFT(), "dpo": NemoDPO()}


@pytest.mark.parametrize("name", VARIANTS)
def test_rendered_configurations_match_their_golden_files(name: str) -> None:
    recipe, config = rendered(name)
    assert json.loads(json.dumps(config)) == json.loads((GOLDEN / f"offline_{name}.json").read_text())
    refuse_unknown(config, shipped("0.7", name_of(recipe)), "0.7", name_of(recipe))


def test_a_key_that_the_base_file_of_a_method_lacks_is_refused() -> None:
    _, config = rendered("sft")
    with pytest.raises(ConfigError, match=r"configuration key 'sft'"):
        refuse_unknown(config, shipped("0.7", "dpo"), "the release", "dpo")
    with pytest.raises(ConfigError, match=r"no keys are recorded for NeMo RL '0\.8 sft'"):
        shipped("0.8", "sft")


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_deliberate_key_is_not_in_the_base_file_or_a_whole_section_of_ratchet(method: str) -> None:
    keys: Any = shipped("0.7", method)
    known = {"data.train", "data.validation"}
    for path in set(OF_METHOD[method]) - known:
        found = keys
        for key in path.split("."):
            found = (found or {}).get(key, "absent") if isinstance(found, dict) else "absent"
        assert found == "absent", path


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("sft", {}, 'steps = "auto" measures the model'),
    ("sft", {}, "set training.sft.steps to a number, for three passes to 3 * rows / batch"),
    ("dpo", {"steps": 9, "losses": {"ipo": 1.0}}, "has no loss 'ipo'; set losses to sigmoid, sft or both"),
    ("dpo", {"steps": 9, "losses": {"robust": 1.0}, "weigh_pairs": False, "label_smoothing": 0.1}, "has no loss 'robust'"),
    ("dpo", {"steps": 9, "rehearsal": 0.5}, "set rehearsal = 0"),
    ("dpo", {"steps": 9, "micro_tokens": 512}, "set micro_tokens = 0"),
    ("sft", {"steps": 9, "lora": {"quantize": "nf4"}}, "set lora.quantize = 'none'"),
    ("sft", {"steps": 9, "nemo": {"tensor_paralel": 2}}, "did you mean 'tensor_parallel'"),
    ("sft", {"steps": 9, "nemo": {"overrides": {}}}, "unknown key 'overrides'"),
]


@pytest.mark.parametrize(("method", "changes", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_a_setting_that_the_release_cannot_honour_is_refused_with_a_remedy(method: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        TRAINERS[method].recipe(changes)
    assert words in str(error.value)


def test_the_remedy_for_an_open_end_names_the_steps_of_three_passes() -> None:
    facts = make_facts(demonstrations={"correction": 640}, pairs=320)
    with pytest.raises(ConfigError, match=r"for three passes to 60$"):
        NemoSFT().recipe({}, facts)
    with pytest.raises(ConfigError, match=r"for three passes to 60$"):
        NemoDPO().recipe({"batch": 16}, facts)


SHARES: list[tuple[dict[str, Any], tuple[int, int], str]] = [
    ({}, (1, 0), "set training.gpus"),
    ({"nemo": {"tensor_parallel": 3}}, (1, 8), "not a multiple of nemo.tensor_parallel 3"),
    ({"batch": 36}, (1, 8), "set batch to 40"),
]


@pytest.mark.parametrize("method", ["sft", "dpo"])
@pytest.mark.parametrize(("changes", "shape", "words"), SHARES)
def test_a_batch_that_the_gpus_cannot_share_is_refused_before_a_machine_is_requested(
    method: str, changes: dict[str, Any], shape: tuple[int, int], words: str
) -> None:
    plan = make_plan(Method(method), TRAINERS[method].recipe({"steps": 9, **changes}))
    with pytest.raises(ConfigError, match=words):
        TRAINERS[method].job(plan, Attempt(number=1, timeout=60.0, nodes=shape[0], gpus=shape[1]))


def test_the_rows_in_memory_fill_the_share_of_a_gpu() -> None:
    recipe = complete(SFTRecipe, {"batch": 48, "micro_batch": 4})
    assert [rows_in_memory(recipe, ClusterShape(1, gpus)) for gpus in (1, 8, 16, 48)] == [4, 3, 3, 1]


def plan(**changes: Any) -> TrainingPlan:
    """Return a plan for DPO with `changes` to its recipe."""
    return make_plan(Method.DPO, NemoDPO().recipe({"steps": 9, **changes}))


def test_a_job_reads_its_rows_only_and_is_a_function_of_plan_and_attempt() -> None:
    one, attempt = plan(), Attempt(number=2, timeout=60.0, nodes=2, gpus=8)
    job = NemoDPO().job(one, attempt)
    assert job == NemoDPO().job(one, attempt)
    assert (job.nodes, job.gpus, job.environment["RATCHET_BACKEND"]) == (2, 8, "nemo-rl")
    assert job.inputs == {"model": START.files, "pairs.parquet": one.pairs}
    less_memory = NemoDPO().job(one, attempt.model_copy(update={"adjustment": Adjustment(memory=0.5)}))
    assert less_memory.name != job.name
    with pytest.raises(Permanent, match="use the trainer for that method"):
        NemoSFT().job(one, attempt)


def test_the_people_who_approve_dpo_read_in_what_it_differs_from_trl() -> None:
    assert complete(DPORecipe, plan().recipe).rehearsed == 0
    [said] = NemoDPO().cautions(plan())
    assert "no demonstrations are rehearsed" in said
    assert NemoDPO().cautions(plan(losses={"sigmoid": 1.0})) == ()


def test_settings_of_nemo_rl_are_refused_by_trl() -> None:
    with pytest.raises(ConfigError, match=r'set training\.sft_on = "nemo-rl", or remove them'):
        SFT().recipe({"nemo": {"tensor_parallel": 2}})
