"""Tests of the comparison with the best earlier champion on the golden set."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.contracts.evaluation import EarlierComparison, Result
from ratchet.contracts.loop import GateSettings
from ratchet.gates.checks import Erosion
from ratchet.gates.evaluation.earlier import Answers, Earlier, Scored, best_earlier
from ratchet.gates.evaluation.questions import Decoding
from tests.unit.gates.reports import report

RULE = frozenset({"rule"})
GREEDY = Decoding(0.0, 1)


def answers(rewards: list[float], part: str = "slice:a", deciding: frozenset[str] | None = RULE) -> dict[str, Scored]:
    return {f"{part}/{n}": Scored(f"{part}/{n}", ("golden", part), reward, deciding) for n, reward in enumerate(rewards)}


def compared(candidate: Answers, earlier: dict[str, dict[str, Scored]], level: float, least: int) -> list[EarlierComparison]:
    """Compare answers that were all decoded greedily."""
    return best_earlier({GREEDY: candidate}, {version: Earlier(GREEDY, one) for version, one in earlier.items()}, level, least)


def test_the_candidate_is_compared_with_the_best_earlier_champion_of_each_part() -> None:
    new = answers([1.0] * 20 + [0.0] * 20) | answers([1.0] * 40, "slice:b")
    weak = answers([0.0] * 40) | answers([1.0] * 40, "slice:b")
    strong = answers([1.0] * 40) | answers([0.0] * 40, "slice:b")
    found = {one.comparison.name: one for one in compared(new, {"v-weak": weak, "v-strong": strong}, 0.95, 20)}
    assert {name: (one.version, one.comparison.champion, one.comparison.candidate) for name, one in found.items()} == {
        "golden": ("v-weak", 0.5, 0.75),
        "slice:a": ("v-strong", 1.0, 0.5),
        "slice:b": ("v-weak", 1.0, 1.0),
    }
    assert {one.comparison.difference.level for one in found.values()} == {1 - 0.05 / 6}


def test_only_common_prompts_with_comparable_answers_count_and_small_parts_are_left_out() -> None:
    old = answers([1.0] * 40)
    assert compared(answers([1.0] * 30), {"v": old}, 0.95, 31) == []
    assert compared(answers([1.0] * 40, deciding=frozenset({"judge"})), {"v": old}, 0.95, 2) == []
    failed = answers([0.0] * 40, deciding=None)
    assert compared(failed, {"v": old}, 0.95, 2)[0].comparison.difference.estimate == -1.0
    assert compared(failed, {}, 0.95, 2) == []


def test_losses_that_add_up_over_promotions_fail_and_one_within_the_margin_does_not() -> None:
    rng = np.random.default_rng(0)
    start = rng.random(150) < 0.95
    check = Erosion(GateSettings(slice_margin=0.1))

    def judged(share: float) -> Result:
        """Judge a candidate that lost the given share of what the first champion answered right."""
        lost = start & (np.arange(150) % 100 >= share * 100)
        now, before = (answers(right.astype(float).tolist()) for right in (lost, start))
        found = report().model_copy(update={"earlier": tuple(compared(now, {"v": before}, 0.95, 20))})
        return check.check(found).result

    assert [judged(share) for share in (0.0, 0.06, 0.30)] == [Result.PASS, Result.PASS, Result.FAIL]


@pytest.mark.slow
def test_equal_versions_fail_in_no_more_than_their_share_of_evaluations() -> None:
    rng, lost = np.random.default_rng(1), 0
    for _ in range(400):
        versions = {f"v{n}": answers((rng.random(60) < 0.7).astype(float).tolist()) for n in range(5)}
        found = compared(answers((rng.random(60) < 0.7).astype(float).tolist()), versions, 0.95, 20)
        lost += any(one.comparison.difference.high < 0 for one in found)
    assert lost <= 0.05 * 400
