"""Preemption and resume: a disturbed run continues as if undisturbed, because sampling depends on weights and prompts only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ratchet.contracts.jobs.exit_codes import Outcome
from tests.nemo.comparison import close, published_as_sampled, summary
from tests.nemo.conftest import ADAPTER
from tests.nemo.runs import Bench, Run

TOLERANCE = 1e-4
"""Largest difference of a figure: the order of sums may differ after a resume."""


def disturbed(run: Run, steps: Sequence[int]) -> list[int]:
    """Preempt the run when it reaches each of the steps, let it end, and return the steps from which it resumed."""
    resumed = []
    for incarnation, step in enumerate(steps, 1):
        run.submit(incarnation)
        resumed.append(run.preempt(step).step)
    run.submit(len(steps) + 1)
    status = run.wait()
    assert status.outcome == Outcome.DONE, (status, run.log())
    assert not any("KL reference" in reason for reason in run.reasons())
    return resumed


def test_a_run_that_is_preempted_at_several_steps_equals_an_undisturbed_one(bench: Bench, undisturbed: Run, told: dict[str, Any]) -> None:
    run = bench.job(steps=8, save_every=2)
    resumed = disturbed(run, (1, 3, 6))
    figures = run.figures()
    told |= {"resumed_from": resumed, **summary(figures), **close(figures, undisturbed.figures(), TOLERANCE)}
    assert list(figures) == list(range(1, 9)), "no step is lost or repeated"
    assert figures[8]["kl"] == pytest.approx(undisturbed.figures()[8]["kl"], abs=TOLERANCE), "the KL reference is the start model"
    assert published_as_sampled(run, step=8, incarnation=4)


@pytest.mark.parametrize(("gpus", "parallel"), [(2, 1), (2, 2)], ids=["fsdp_2", "tensor_parallel_2"])
def test_a_preempted_run_on_several_ranks_equals_an_undisturbed_one(
    bench: Bench, undisturbed: Run, gpus: int, parallel: int, told: dict[str, Any]
) -> None:
    run = bench.job(gpus=gpus, steps=8, save_every=2, nemo={"tensor_parallel": parallel})
    resumed = disturbed(run, (3,))
    told |= {"resumed_from": resumed, **close(run.figures(), undisturbed.figures(), 1e-3)}
    assert list(run.figures()) == list(range(1, 9))
    assert published_as_sampled(run, step=8, incarnation=2)


def test_a_preempted_adapter_equals_an_undisturbed_one(adapters: Callable[[bool], Run], told: dict[str, Any]) -> None:
    undisturbed = adapters(True)
    run = undisturbed.bench.job(**ADAPTER)
    resumed = disturbed(run, (3,))
    told |= {"resumed_from": resumed, **close(run.figures(), undisturbed.figures(), TOLERANCE)}
    assert published_as_sampled(run, step=6, incarnation=2)
