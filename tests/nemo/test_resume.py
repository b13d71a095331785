"""Preemption and resume: a disturbed run continues as if undisturbed, because sampling depends on weights and prompts only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.nemo.comparison import assert_close, differences, published_as_sampled, summary
from tests.nemo.conftest import ADAPTER
from tests.nemo.runs import Bench, Run


def test_a_run_that_is_preempted_at_several_steps_equals_an_undisturbed_one(bench: Bench, undisturbed: Run, told: dict[str, Any]) -> None:
    run = bench.job(steps=6, save_every=3)
    told["resumed_from"] = run.disturbed((1, 3))
    figures, found = run.figures(), differences(run.figures(), undisturbed.figures())
    told |= summary(figures) | found
    assert list(figures) == list(range(1, 7)), "no step is lost or repeated"
    assert_close(found)  # also the KL: its reference is the start model
    assert figures[4]["kl"] > 0.01
    assert published_as_sampled(run, step=6, incarnation=3)


def test_a_preempted_run_on_two_ranks_equals_an_undisturbed_one(bench: Bench, undisturbed: Run, told: dict[str, Any]) -> None:
    run = bench.job(gpus=2, steps=6, save_every=3)
    told["resumed_from"] = run.disturbed((2,))
    found = differences(run.figures(), undisturbed.figures())
    told |= found
    assert_close(found)
    assert published_as_sampled(run, step=6, incarnation=2)


def test_a_preempted_adapter_equals_an_undisturbed_one(adapters: Callable[[bool], Run], told: dict[str, Any]) -> None:
    undisturbed = adapters(True)
    run = undisturbed.bench.job(**ADAPTER)
    told["resumed_from"] = run.disturbed((2,))
    found = differences(run.figures(), undisturbed.figures())
    told |= found
    assert_close(found)
    assert published_as_sampled(run, step=6, incarnation=2)
