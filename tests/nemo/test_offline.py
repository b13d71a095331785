"""SFT and DPO: a run on the release computes what the TRL job computes, step by step, and publishes what it trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.jobs.training import Method
from tests.nemo.comparison import cosine
from tests.nemo.conftest import EVEN
from tests.nemo.offline_runs import answered, apart, left_out, offline, on_trl, preferred, steps_of, weights_apart
from tests.nemo.runs import Bench, Run
from tests.unit.trainers.conftest import write_model

OF_SFT, OF_DPO = ("loss", "grad_norm"), ("loss", "grad_norm", "margin", "chosen_reward", "pairs_in_order")
"""Figures that are compared."""
Figures = Mapping[int, Mapping[str, float]]
"""Step -> figures."""
FIRST, LAST = 1, 60
"""Steps of a run."""


@pytest.fixture(scope="session")
def taught(bench: Bench) -> Run:
    """Return a finished run of SFT on one rank."""
    return offline(bench, Method.SFT).done()


@pytest.fixture(scope="session")
def ranked(bench: Bench) -> Run:
    """Return a finished run of DPO on one rank."""
    return offline(bench, Method.DPO).done()


def assert_alike(found: Figures, expected: Figures, names: Sequence[str]) -> dict[str, float]:
    """Assert that two runs computed the same, and return the largest differences.

    Sums in another order differ in the last digits, which the steps amplify: the tolerance is that of the first 10 and of all.
    """
    early = apart({step: found[step] for step in range(1, 11)}, {step: expected[step] for step in range(1, 11)}, names)
    differences = apart(found, expected, names)
    assert max(early.values()) < 1e-4, early
    assert max(differences.values()) < 0.02, differences
    return {"first_loss_difference": abs(found[FIRST]["loss"] - expected[FIRST]["loss"]), **differences}


def compared_with_trl(bench: Bench, run: Run, method: Method, names: Sequence[str]) -> dict[str, float]:
    """Assert that a run computed what the TRL job of the same plan computes, with the same rows. Return the largest differences."""
    events, model = on_trl(bench, method)
    found = assert_alike(run.figures(), steps_of(events), names) | {"weights_difference": weights_apart(run.model(), model)}
    assert left_out(run.events) == left_out(events) != []
    assert found["first_loss_difference"] < 1e-6
    assert found["weights_difference"] < 1e-3
    return found


def test_sft_trains_as_on_trl_and_publishes_the_same_model(bench: Bench, taught: Run, told: dict[str, Any], tmp_path: Path) -> None:
    figures, found = taught.figures(), compared_with_trl(bench, taught, Method.SFT, OF_SFT)
    shares = {"answered_before": answered(write_model(tmp_path / "start", words=EVEN)), "answered_after": answered(taught.model())}
    told |= {"loss": [round(figures[step]["loss"], 4) for step in (FIRST, LAST)]} | shares | found
    assert shares["answered_before"] < 0.1
    assert shares["answered_after"] > 0.3


def test_dpo_trains_as_on_trl_and_publishes_the_same_model(bench: Bench, ranked: Run, told: dict[str, Any], tmp_path: Path) -> None:
    """All chosen answers have the same length: then the term `sft` is the same on both."""
    figures, found = ranked.figures(), compared_with_trl(bench, ranked, Method.DPO, OF_DPO)
    shares = {"preferred_before": preferred(write_model(tmp_path / "start", words=EVEN)), "preferred_after": preferred(ranked.model())}
    told |= {"margin": [round(figures[step]["margin"], 4) for step in (FIRST, LAST)]} | shares | found
    assert figures[LAST]["margin"] > figures[FIRST]["margin"] + 1
    assert shares["preferred_after"] > max(0.9, shares["preferred_before"] + 0.2)
    assert min(figures[step]["reference_seconds"] for step in range(2, LAST)) > 0


@pytest.mark.parametrize("method", [Method.SFT, Method.DPO])
def test_a_preempted_run_of_sft_or_dpo_equals_an_undisturbed_one(
    bench: Bench, method: Method, request: pytest.FixtureRequest, told: dict[str, Any]
) -> None:
    """Also the margin of DPO: its reference is the start model, and not the step from which a run resumes."""
    undisturbed: Run = request.getfixturevalue("taught" if method is Method.SFT else "ranked")
    run = offline(bench, method)
    told["resumed_from"] = run.disturbed((3,))
    found = apart(run.figures(), undisturbed.figures(), OF_SFT if method is Method.SFT else OF_DPO)
    found["weights_difference"] = weights_apart(run.model(2), undisturbed.model())
    told |= found
    assert FIRST < told["resumed_from"][0] < LAST
    assert max(found.values()) == 0


@pytest.mark.parametrize(("method", "parallel"), [(Method.DPO, 1), (Method.SFT, 2)], ids=["dpo_fsdp_2", "sft_tensor_parallel_2"])
def test_two_ranks_train_given_answers_as_one(
    bench: Bench, method: Method, parallel: int, request: pytest.FixtureRequest, told: dict[str, Any]
) -> None:
    """Also with activations that the backward pass computes again."""
    one: Run = request.getfixturevalue("taught" if method is Method.SFT else "ranked")
    run = offline(bench, method, gpus=2, gradient_checkpointing=True, nemo={"tensor_parallel": parallel}).done()
    found = assert_alike(run.figures(), one.figures(), OF_SFT if method is Method.SFT else OF_DPO)
    told |= found | {"weights_difference": weights_apart(run.model(), one.model())}
    assert told["weights_difference"] < 1e-3


def test_an_adapter_of_dpo_is_trained_merged_and_published(bench: Bench, told: dict[str, Any]) -> None:
    adapter = {"rank": 4, "alpha": 8.0, "dropout": 0.0}
    run = offline(bench, Method.DPO, lora=adapter, learning_rate=0.03, schedule="cosine").done()
    figures = run.figures()
    told |= {"margin": [round(figures[step]["margin"], 4) for step in (FIRST, LAST)], "preferred_after": preferred(run.model())}
    assert [known["learning_rate"] for known in figures.values()] == pytest.approx(cosine(0.03, LAST), rel=1e-12)
    assert figures[LAST]["margin"] > 0.1, "as far as the adapter of the TRL job gets"
    assert told["preferred_after"] > 0.9
