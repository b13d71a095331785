"""Tests of the estimated cost of a run, an upper bound: more work never costs less, and more GPUs never take longer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ratchet.trainers.estimate import estimate
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe

sizes = st.integers(10_000, 10**11)


@given(sizes, st.integers(1, 500), st.sampled_from([DPORecipe, GRPORecipe, SFTRecipe]), st.integers(0, 8))
def test_more_steps_and_more_weights_cost_more(weights: int, steps: int, kind: type, gpus: int) -> None:
    less = estimate(kind(steps=steps), weights, 1, gpus)
    for more in (estimate(kind(steps=steps + 1), weights, 1, gpus), estimate(kind(steps=steps), 2 * weights, 1, gpus)):
        assert more.seconds > less.seconds
        assert more.gpu_hours >= less.gpu_hours


@given(sizes, st.integers(1, 8))
def test_more_gpus_shorten_a_run_and_cost_no_less(weights: int, gpus: int) -> None:
    one, many = estimate(SFTRecipe(), weights, 1, gpus), estimate(SFTRecipe(), weights, 2, gpus)
    assert many.seconds <= one.seconds
    assert many.gpu_hours >= one.gpu_hours


def test_a_pair_counts_as_two_rows_and_a_cpu_costs_no_gpu_hours() -> None:
    dpo, sft = estimate(DPORecipe(batch=8, rehearsal=0), 1000, 1, 0), estimate(SFTRecipe(batch=8), 1000, 1, 0)
    assert dpo.tokens == 2 * sft.tokens
    rehearsing = estimate(DPORecipe(batch=8, rehearsal=0.5), 1000, 1, 0)
    assert rehearsing.tokens == 2.5 * sft.tokens
    assert dpo.operations / dpo.tokens == 1000 * 10
    assert rehearsing.operations == dpo.operations + 0.5 * sft.operations, "rehearsed rows need no reference"
    assert dpo.gpu_hours == 0
    assert "rows of 1024 tokens" in dpo.basis
