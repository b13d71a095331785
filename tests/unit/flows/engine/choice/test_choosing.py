"""Tests that a method is chosen only if its job can be built for the loop file's machines and fits time and budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import Facts, HoldoutEdition
from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.fakes import MemoryArtifacts
from ratchet.contracts.fakes.serving import FakeRewards
from ratchet.contracts.jobs.training import BeforeTraining, Choice, Cost, JobSpec, LeftOut, Method, TrainingPlan
from ratchet.contracts.loop import GateSettings, TrainingSettings
from ratchet.flows.config.load import load_loop
from ratchet.flows.core.asking.parquet_rows import parquet_of
from ratchet.flows.engine.choice.choosing import choose_plan, slice_cautions
from ratchet.trainers.backends.nemo.backend import NemoGRPO
from ratchet.trainers.backends.trl import DPO, GRPO, SFT
from ratchet.trainers.choose import choose
from ratchet.trainers.estimate import estimate
from ratchet.trainers.recipes.completion import KINDS, complete
from tests.builders import make_facts, make_plan
from tests.unit.flows.cycles import plan_result

FACTS = make_facts()


def draft(method: Method, recipe: dict[str, Any]) -> TrainingPlan:
    return make_plan(method, recipe)


def chosen(
    facts: Facts = FACTS,
    trainer: Any = None,
    cost: Any = None,
    before_training: Any = None,
    fits: Any = None,
    loop: Any = None,
    rewards: Any = None,
    cautions: Any = lambda _: (),
    **settings: Any,
) -> tuple[Choice, TrainingPlan | None]:
    trainers = {Method.SFT: SFT(), Method.DPO: DPO(), Method.GRPO: trainer or GRPO()}
    context: Any = SimpleNamespace(
        choose=choose,
        rewards=rewards or FakeRewards(),
        trainers=trainers,
        cost=cost,
        before_training=before_training,
        fits=fits,
        loop=loop,
        progress=lambda *_: None,
    )
    return choose_plan(context, facts, TrainingSettings(**settings), draft, cautions)


def test_method_that_fits_the_machines_is_planned() -> None:
    choice, plan = chosen(gpus=1)
    assert plan is not None
    assert choice.method == plan.method == Method.SFT
    assert [row.holds for row in choice.rules if row.rule == "sft fits the machines"] == [True]


@pytest.mark.parametrize(("beta", "warnings"), [(0.04, 1), (0.0, 2)])
def test_a_plan_whose_job_asks_judges_says_so(beta: float, warnings: int) -> None:
    (version,) = FakeRewards().for_jobs()
    belief = SimpleNamespace(name="judge")
    rewards = SimpleNamespace(for_jobs=lambda: (version.model_copy(update={"name": "judge"}),), beliefs=lambda: (belief,))
    choice, plan = chosen(methods=("grpo",), rewards=rewards, gpus=1, grpo={"beta": beta})
    assert plan is not None
    assert choice.warnings[0].startswith("the job asks judge about the answers of each step that no stronger reward decides")
    assert len(choice.warnings) == warnings
    assert chosen(methods=("sft",), rewards=rewards)[0].warnings == ()


def test_method_that_does_not_fit_the_machines_is_rejected_for_the_next() -> None:
    choice, plan = chosen(gpus=8, sft={"batch": 12})
    assert plan is not None
    assert choice.method == plan.method == Method.DPO
    rows = {row.rule: row.holds for row in choice.rules}
    assert (rows["sft fits the machines"], rows["grpo fits the machines"], rows["dpo fits the machines"]) == (False, False, True)
    assert rows["sft is allowed"], "the rules describe the unchanged settings"
    assert choice.reason.startswith("DPO: ")
    odd = "recipe: batch 12 is not a multiple of the 8 GPUs of the run; set batch to 16, or change training.gpus and training.nodes"
    one = "training.gpus = 8 on 1 nodes: grpo on TRL uses at most one GPU; set training.nodes to 1 and training.gpus to 0 or 1"
    assert choice.reason.endswith(f"; rejected: SFT ({odd}), GRPO ({one})"), choice.reason


def test_rejected_method_names_the_settings_to_change() -> None:
    """The last column of the table tells the user which settings to change."""
    rows = {row.rule: row for row in chosen(gpus=8, methods=("grpo", "dpo"))[0].rules}
    assert rows["grpo fits the machines"].change == "set training.nodes to 1 and training.gpus to 0 or 1"
    tight = {"generation": "dedicated", "generation_gpus": 8}
    choice, _ = chosen(trainer=NemoGRPO(), methods=("grpo",), gpus=8, grpo={"nemo": tight})
    assert choice.rules[-1].change == "different training.nodes or training.gpus, or changes to [training.grpo]"
    assert "0 < nemo.generation_gpus < 8" in choice.rules[-1].evidence


def test_no_plan_if_no_method_fits_the_machines() -> None:
    choice, plan = chosen(gpus=8, methods=("sft", "grpo"), sft={"batch": 12})
    assert (choice.method, plan) == (Method.NONE, None)
    assert choice.reason.startswith("do not train: SFT: recipe: batch 12 is not a multiple of the 8 GPUs")


def test_too_few_prompts_for_a_step_on_the_cluster_are_detected_before_training() -> None:
    few = FACTS.model_copy(update={"prompts_with_reference": 40})
    wide = {"prompts_per_step": 38, "generations": 8, "micro_batch": 4}
    choice, plan = chosen(few, NemoGRPO(), methods=("grpo",), gpus=8, grpo=wide)
    assert (choice.method, plan) == (Method.NONE, None)
    assert "fewer than the 38 of one step" in choice.reason


def test_misspelt_recipe_key_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="learning_rate"):
        chosen(sft={"learnign_rate": 1e-4})


def costing(parameters: int, price: float | None = None, cap: float | None = None) -> Callable[[TrainingPlan], Cost]:
    """Return the trainers' own estimate for a model with `parameters` weights. `price` is per second."""

    def cost(plan: TrainingPlan) -> Cost:
        found = estimate(complete(KINDS[plan.method], plan.recipe), parameters, 1, 0)
        return Cost(seconds=found.seconds, price=None if price is None else price * found.seconds, cap=cap, basis=found.basis)

    return cost


def test_method_that_cannot_finish_within_its_timeout_is_rejected_for_the_next() -> None:
    settings: dict[str, Any] = {"methods": ("sft", "dpo"), "timeout": 600, "dpo": {"steps": 5}}
    choice, plan = chosen(cost=costing(700_000), sft={"steps": 10**9}, **settings)
    assert plan is not None
    assert choice.method == plan.method == Method.DPO
    rows = {row.rule: row for row in choice.rules}
    assert [rows[f"{name} fits its time and budget"].holds for name in ("sft", "dpo")] == [False, True]
    assert "rejected: SFT (estimated at " in choice.reason
    assert "training.timeout = 600 s" in rows["sft fits its time and budget"].evidence
    needed = int(rows["sft fits its time and budget"].change.split()[2])
    for timeout, method in ((needed, Method.SFT), (needed - 1, Method.DPO)):
        assert chosen(cost=costing(700_000), sft={"steps": 10**9}, **{**settings, "timeout": timeout})[0].method == method


def test_no_plan_if_no_method_can_finish_within_its_timeout() -> None:
    choice, plan = chosen(cost=costing(700_000), methods=("sft",), timeout=1, sft={"steps": 10**9})
    assert (choice.method, plan) == (Method.NONE, None)
    assert choice.reason.startswith("do not train: SFT: estimated at ")
    assert choice.rules[-1].change.endswith("or less work in [training.sft]: steps, rows, tokens")


def test_method_that_costs_far_more_than_its_cap_is_not_planned() -> None:
    assert chosen(cost=costing(700_000, price=1.0, cap=1e6), methods=("sft",))[0].method == Method.SFT
    choice, _ = chosen(cost=costing(700_000, price=1.0, cap=1.0), methods=("sft",))
    assert choice.method == Method.NONE
    assert "caps of " in choice.rules[-1].change


ROOT = Path(__file__).resolve().parents[5]
FILES = {"demo": "flows/demo/demo.toml", "gsm8k": "loops/02-gsm8k/loop.toml"}


@pytest.mark.parametrize(("name", "weights"), [("demo", 700_000), ("gsm8k", 1_200_000)])
@pytest.mark.parametrize("method", ["sft", "dpo", "grpo"])
def test_estimate_allows_every_method_of_the_included_loop_files(name: str, weights: int, method: str) -> None:
    settings = load_loop(ROOT / FILES[name]).training.model_dump() | {"methods": (method,)}
    assert chosen(cost=costing(weights), **settings)[0].method == method


@pytest.mark.slow
@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.integers(1, 10**6), st.integers(1, 10**6))
def test_more_time_or_budget_never_prevents_training(time: float, more: float, cap: float, larger: float, sft: int, dpo: int) -> None:
    recipes: dict[str, Any] = {"methods": ("sft", "dpo"), "sft": {"steps": sft}, "dpo": {"steps": dpo}}
    less = chosen(cost=costing(700_000, price=1e-3, cap=cap), timeout=time, **recipes)[0].method
    enough = chosen(cost=costing(700_000, price=1e-3, cap=cap + larger), timeout=time + more, **recipes)[0].method
    assert less == Method.NONE or enough != Method.NONE


def test_the_rows_that_the_job_will_leave_out_are_part_of_the_choice() -> None:
    found = (LeftOut(what="answers", rows=9, reasons={"that the chat template refuses": 2}),)
    choice, plan = chosen(before_training=lambda _: BeforeTraining(left_out=found, warnings=("the date",)))
    assert plan is not None
    assert (choice.left_out, choice.warnings) == (found, ("the date",)), "a warning does not reject a method"
    row = choice.rules[-1]
    assert (row.rule, row.holds) == ("sft can use rows of its training set", True)
    assert row.evidence == "of 9 answers, excluded: 2 that the chat template refuses"


def test_a_method_whose_rows_are_all_left_out_is_rejected_for_the_next() -> None:
    def counted(job: JobSpec) -> BeforeTraining:
        refused = 9 if "demonstrations.parquet" in job.inputs and "pairs.parquet" not in job.inputs else 0
        reasons = {"that the chat template refuses": refused} if refused else {}
        return BeforeTraining(left_out=(LeftOut(what="rows", rows=9, reasons=reasons),))

    choice, plan = chosen(before_training=counted)
    assert plan is not None
    assert plan.method != Method.SFT
    assert "rejected: SFT (all 9 rows are excluded: 9 that the chat template refuses)" in choice.reason
    assert choice.left_out[0].reasons == {}, "the counts are those of the chosen method"
    choice, plan = chosen(before_training=counted, methods=("sft",))
    assert (choice.method, plan, choice.left_out) == (Method.NONE, None, ())
    assert "all 9 rows are excluded: 9 that the chat template refuses" in choice.reason


def test_a_method_for_which_the_cluster_has_no_room_is_rejected_before_an_approval() -> None:
    def fits(job: JobSpec) -> None:
        if "demonstrations.parquet" in job.inputs and "pairs.parquet" not in job.inputs:
            raise ConfigError("a gang of 2 nodes is more than cluster.pool.max_nodes = 1; raise it")

    choice, plan = chosen(fits=fits)
    assert plan is not None
    assert plan.method != Method.SFT
    assert "rejected: SFT (a gang of 2 nodes is more than cluster.pool.max_nodes = 1; raise it)" in choice.reason


def test_rows_that_cannot_be_counted_here_do_not_reject_a_method() -> None:
    def unknown(_job: JobSpec) -> None:
        raise Retryable("transformers is not installed on this machine; the job counts them")

    choice, plan = chosen(before_training=unknown)
    assert plan is not None
    assert choice.rules[-1].evidence == "not counted: transformers is not installed on this machine; the job counts them"
    assert choice.left_out == ()


def parquet(*slices: str | None) -> bytes:
    return parquet_of([{"slice": one} for one in slices])


def cautions_of(slices: dict[str, tuple[str, ...]], golden: bytes | None, held: bytes) -> Callable[[JobSpec], tuple[str, ...]]:
    """Return the cautions about jobs on the artifacts of the plans of `draft`, where the gate asks golden and held-out prompts."""
    artifacts, plan = MemoryArtifacts(), make_plan(Method.SFT, {})
    loop = SimpleNamespace(gate=GateSettings(min_slice=2))
    edition = HoldoutEdition(
        line="sim",
        number=1,
        prompts=artifacts.put(held),
        size=1,
        golden=None if golden is None else artifacts.put(golden),
        normaliser=1,
        fraction=0.2,
    )
    named = {name: getattr(plan, name) for name in ("pairs", "prompts", "demonstrations")}
    dataset = plan_result(slices=slices, **named).dataset
    return slice_cautions(SimpleNamespace(artifacts=artifacts), loop, dataset, edition)  # type: ignore[arg-type]


def test_slices_that_the_gate_judges_and_that_the_training_does_not_show_are_warned_of() -> None:
    golden, held = parquet("long", "long", "list", "list", None), parquet("long", "short", "few")
    shown = {"demonstrations": ("list",), "pairs": ("list", "short"), "prompts": ("long",)}
    choice, plan = chosen(cautions=cautions_of(shown, golden, held), methods=("sft",))
    assert plan is not None, "a warning does not reject a method"
    (warning,) = choice.warnings
    assert warning.startswith("the gate judges slices of which the training has no row: long (3 prompts); together 3 of its 7 prompts. ")
    assert chosen(cautions=cautions_of(shown, parquet("list", "list"), parquet("short")), methods=("sft",))[0].warnings == ()
    choice, plan = chosen(cautions=cautions_of(shown, None, parquet("short", "short", "list")), methods=("dpo",))
    assert plan is not None
    assert choice.warnings == (), "pairs have the slice"


@pytest.mark.parametrize("shown", [{}, {"pairs": ("list",)}, {"demonstrations": ("list", "")}])
def test_nothing_is_warned_of_if_the_slices_of_the_rows_are_not_known(shown: dict[str, tuple[str, ...]]) -> None:
    assert chosen(cautions=cautions_of(shown, parquet("long", "long"), parquet("list")), methods=("sft",))[0].warnings == ()


def test_method_whose_adapter_the_champions_process_cannot_load_is_rejected_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.flows.engine.choice.choosing.cannot_share", lambda *given: f"rank {given[2]} is too high; lower it")
    loop = SimpleNamespace(serving=SimpleNamespace(adapters="shared"))
    choice, plan = chosen(loop=loop, gpus=1, methods=("sft", "dpo"), sft={"lora": {"rank": 8}})
    assert plan is not None
    assert plan.method is Method.DPO, "a method that trains the whole model needs no shared process"
    (row,) = [row for row in choice.rules if row.rule == "sft fits the machines"]
    assert (row.holds, row.evidence, row.change) == (False, "rank 8 is too high; lower it", "lower it")
    choice, plan = chosen(loop=loop, gpus=1, methods=("sft",), sft={"lora": {"rank": 8}})
    assert (choice.method, plan) == (Method.NONE, None)
