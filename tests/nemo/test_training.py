"""Undisturbed training: full weights and adapters, one to four ranks, tensor parallelism, and an open end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ratchet.contracts.jobs.exit_codes import Outcome
from tests.nemo.comparison import assert_close, cosine, differences, published_as_sampled, summary
from tests.nemo.runs import Bench, Run
from tests.unit.trainers.conftest import WORDS

PHASES = ("generation_seconds", "reward_seconds", "logprobs_seconds", "weight_transfer_seconds", "training_seconds", "step_seconds")
SPEEDS = ("tokens_per_second_per_gpu", "generation_tokens_per_second_per_gpu", "training_tokens_per_second_per_gpu")


def test_full_weights_are_trained_and_published(undisturbed: Run, told: dict[str, Any]) -> None:
    figures = undisturbed.figures()
    told |= summary(figures)
    assert list(figures) == list(range(1, 7))
    assert [known["learning_rate"] for known in figures.values()] == pytest.approx(cosine(0.01, 6), rel=1e-12)
    assert figures[6]["reward"] > figures[1]["reward"] + 0.2
    assert figures[1]["kl"] == pytest.approx(0, abs=1e-6)
    assert figures[6]["kl"] > 0.01
    assert all(known["generation_mismatch"] == pytest.approx(1, abs=1e-5) for known in figures.values())
    assert [event.step for event in undisturbed.of_kind("checkpoint")] == [3, 6]
    assert published_as_sampled(undisturbed, step=6)


def test_speed_phases_and_lengths_are_figures_of_every_step(undisturbed: Run, told: dict[str, Any]) -> None:
    for known in undisturbed.figures().values():
        assert all(math.isfinite(known[name]) and known[name] > 0 for name in (*PHASES, *SPEEDS)), known
        assert sum(known[name] for name in PHASES[:-1] if name != "reward_seconds") < known["step_seconds"]
        assert 1 <= known["answer_tokens"] <= 4
        assert 0 <= known["answers_cut"] <= 1
    told |= {name: round(undisturbed.figures()[4][name], 4) for name in (*PHASES, *SPEEDS, "answer_tokens", "answers_cut")}


def test_the_start_model_and_each_saved_step_are_validated(undisturbed: Run, told: dict[str, Any]) -> None:
    measured = undisturbed.of_kind("measured")
    assert [event.step for event in measured] == [0, 3, 6]
    assert all(event.data["prompts"] == 16 for event in measured)
    assert [step for step, known in undisturbed.figures().items() if "validation_reward" in known] == [3, 6]
    told |= {f"score_{event.step}": event.data["score"] for event in measured}
    assert measured[-1].data["score"] > measured[0].data["score"]


@pytest.mark.parametrize(("gpus", "parallel"), [(2, 1), (2, 2), (4, 1)], ids=["fsdp_2", "tensor_parallel_2", "fsdp_4"])
def test_several_ranks_train_as_one(bench: Bench, undisturbed: Run, gpus: int, parallel: int, told: dict[str, Any]) -> None:
    run = bench.job(gpus=gpus, steps=6, save_every=3, nemo={"tensor_parallel": parallel})
    run.done()
    found = differences(run.figures(), undisturbed.figures())
    told |= summary(run.figures()) | found
    assert_close(found)
    assert all(known["generation_mismatch"] == pytest.approx(1, abs=1e-5) for known in run.figures().values())
    assert published_as_sampled(run, step=6)


def test_a_vocabulary_that_tensor_parallelism_does_not_divide_is_refused(make_bench: Callable[..., Bench], told: dict[str, Any]) -> None:
    status = make_bench(words=WORDS).job(gpus=2, nemo={"tensor_parallel": 2}).failed()
    told["reason"] = status.reason
    assert status.outcome == Outcome.PERMANENT
    assert "does not divide the model's vocabulary of 19 tokens" in status.reason


def test_an_undivided_vocabulary_ends_the_run_by_the_mismatch_of_generation(make_bench: Callable[..., Bench], told: dict[str, Any]) -> None:
    """The refusal is turned off, as if another release had the same error for another reason."""
    run = make_bench(words=WORDS).job(develop=False, gpus=2, nemo={"tensor_parallel": 2}, environment={"NEMO_STAND_INS_WITHOUT": "refusal"})
    status = run.failed()
    figures = run.figures()
    told |= summary(figures) | {"reason": status.reason}
    assert "generation_mismatch" in {event.data.get("rule") for event in run.of_kind("warning")}
    assert "disagreement of generation and training" in status.reason
    assert min(known["generation_mismatch"] for known in figures.values()) > 1.05
    assert len(figures) == 3


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_an_adapter_is_trained_merged_and_published(adapters: Callable[[bool], Run], tied: bool, told: dict[str, Any]) -> None:
    run = adapters(tied)
    figures = run.figures()
    told |= summary(figures)
    assert figures[6]["reward"] > figures[1]["reward"]
    assert all(known["generation_mismatch"] == pytest.approx(1, abs=1e-5) for known in figures.values())
    saved = run.bench.run_folder(run.spec) / "i1" / "step_6" / "policy" / "weights" / "model"
    assert {"adapter_model.safetensors", "adapter_config.json"} <= {path.name for path in saved.iterdir()}
    assert published_as_sampled(run, step=6)


def test_a_run_with_an_open_end_stops_when_its_scores_no_longer_rise(bench: Bench, told: dict[str, Any]) -> None:
    run = bench.job(steps="auto", most_steps=40, save_every=2, learning_rate=1e-9).done()
    measured = run.of_kind("measured")
    last = max(run.figures())
    told |= {"last_step": last, "most_steps": 40, "measured": [event.step for event in measured], "reason": run.wait().reason}
    assert last < 40
    assert measured[-1].data["action"] == "end"
    assert {known["learning_rate"] for known in run.figures().values()} == {1e-9}, "the rate of an open end is constant"


def test_dynamic_sampling_replaces_groups_with_equal_rewards(bench: Bench, told: dict[str, Any]) -> None:
    run = bench.job(develop=False, nemo={"dynamic_sampling": True}, steps=4, generations=8).done()
    figures = run.figures()
    told |= summary(figures) | {"batches": [known["batches_sampled"] for known in figures.values()]}
    assert list(figures) == [1, 2, 3, 4]
    assert max(known["batches_sampled"] for known in figures.values()) >= 1
