"""Each health rule on a real run. The rule on the mismatch of generation is in `test_training.py`, the stall in `test_rewards.py`."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.loop import RewardSettings
from tests.nemo.comparison import summary
from tests.nemo.runs import Bench

NEVER = (RewardSettings(name="regex", options={"pattern": "never"}),)


def test_a_run_that_moves_too_far_from_its_start_ends_with_a_stronger_penalty(bench: Bench, told: dict[str, Any]) -> None:
    run = bench.job(develop=False, health={"kl": {"limit": 0.001, "patience": 2}})
    status = run.failed()
    told |= summary(run.figures()) | {"reason": status.reason}
    assert status.outcome == Outcome.FAILED
    assert "KL to the start model" in status.reason
    assert status.proposal is not None
    assert status.proposal.adjustment.kl == 2.0


def test_a_figure_that_is_not_finite_ends_the_run(bench: Bench, told: dict[str, Any]) -> None:
    run = bench.job(develop=False, learning_rate=1e30)
    status = run.failed()
    told |= {"steps": len(run.figures()), "reason": status.reason}
    assert status.outcome == Outcome.FAILED
    assert "lower the learning rate" in status.reason
    assert status.proposal is not None
    assert status.proposal.adjustment.learning_rate == 0.5


def test_a_reward_that_stays_flat_is_noted(bench: Bench, told: dict[str, Any]) -> None:
    health = {"reward_flat": {"limit": 0.005, "patience": 1, "action": "note"}}
    run = bench.job(develop=False, steps=21, save_every=21, rewards=NEVER, health=health).done()
    noted = [event for event in run.of_kind("warning") if event.data.get("rule") == "reward_flat"]
    told |= summary(run.figures()) | {"noted_at": [event.step for event in noted]}
    assert [event.step for event in noted] == [21], "the rule compares with the first ten of twenty earlier steps"
