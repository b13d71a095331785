"""Tests of the comparison with the best earlier champion on the golden set."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.contracts.evaluation import EarlierComparison, Result
from ratchet.contracts.loop import GateSettings
from ratchet.gates.checks import Erosion
from ratchet.gates.evaluation.earlier import Answers, Earlier, Scored, best_earlier, champions_since, eroded, rows_to_find
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


def drift(rng: np.random.Generator, last: np.ndarray, loss: float) -> np.ndarray:
    """Let a tenth of the answers change, and the share of right ones fall by `loss`."""
    wrong_now, right_now = (0.1 + loss) / 2 / 0.7, (0.1 - loss) / 2 / 0.3
    return np.where(last > 0, rng.random(last.shape) >= wrong_now, rng.random(last.shape) < right_now).astype(float)


def line(loss: float, rows: int = 400, promotions: int = 6) -> tuple[Answers, dict[str, Earlier]]:
    """Return a candidate and the earlier champions of a line that loses `loss` with each promotion."""
    rng = np.random.default_rng(3)
    found = [(rng.random(rows) < 0.7).astype(float)]
    for _ in range(promotions):
        found.append(drift(rng, found[-1], loss))
    *before, now = [answers(one.tolist()) for one in found]
    return now, {f"v-{n}": Earlier(GREEDY, one) for n, one in enumerate(before)}


def test_small_losses_that_add_up_are_found_though_each_is_within_the_margin() -> None:
    now, before = line(0.03)
    assert [one for one in best_earlier({GREEDY: now}, before, 0.95, 20) if one.comparison.difference.high < -0.1] == []
    found = eroded({GREEDY: now}, before, 20)
    assert {one.comparison.name for one in found} == {"golden", "slice:a"}
    for one in found:
        assert one.comparison.difference.estimate < -0.1
        assert one.comparison.difference.high < 0
        assert one.version in before
    held = Erosion(GateSettings()).check(report().model_copy(update={"earlier": (), "eroded": tuple(found)}))
    assert held.result is Result.PASS, "without a comparison with the best champion, there is nothing to add up"
    best = tuple(best_earlier({GREEDY: now}, before, 0.95, 20))
    held = Erosion(GateSettings()).check(report().model_copy(update={"earlier": best, "eroded": tuple(found)}))
    assert held.result is Result.INCONCLUSIVE
    assert "losses have added up" in held.reason


def test_equal_champions_raise_no_alarm_and_small_or_incomparable_parts_are_left_out() -> None:
    now, before = line(0.0)
    assert eroded({GREEDY: now}, before, 20) == []
    worse, long_ago = line(0.05)
    assert eroded({GREEDY: worse}, long_ago, 401) == []
    other = {version: Earlier(Decoding(1.0, 4), one.answers) for version, one in long_ago.items()}
    assert eroded({GREEDY: worse, Decoding(1.0, 4): {}}, other, 20) == []
    judged = {key: Scored(one.cluster, one.groups, one.reward, frozenset({"judge"})) for key, one in worse.items()}
    assert eroded({GREEDY: judged}, long_ago, 20) == []
    assert eroded({GREEDY: worse}, {}, 20) == []


def test_a_mean_is_over_the_same_champions_for_each_conversation() -> None:
    worse, before = line(0.05)
    most = Earlier(GREEDY, {key: one for n, (key, one) in enumerate(before["v-1"].answers.items()) if n % 10})
    found = eroded({GREEDY: worse}, {"v-0": most, "v-1": before["v-0"]}, 20)
    assert {one.comparison.n for one in found} == {360}


def test_a_champion_that_answered_much_less_does_not_hide_the_others() -> None:
    worse, before = line(0.05)
    few = Earlier(GREEDY, dict(list(before["v-0"].answers.items())[:30]))
    for earlier in ({"v-few": few, **before}, {**before, "v-few": few}):
        found = eroded({GREEDY: worse}, earlier, 20)
        assert {(one.comparison.name, one.comparison.n) for one in found} == {("golden", 400), ("slice:a", 400)}
        assert all(one.version != "v-few" for one in found)


def test_more_rows_find_smaller_losses_and_more_parts_need_more_rows() -> None:
    assert rows_to_find(0.1, 6) < rows_to_find(0.1, 60) < rows_to_find(0.05, 60)
    assert rows_to_find(0.05, 6) == pytest.approx(4 * rows_to_find(0.1, 6), abs=3)


def test_champions_of_another_decoding_do_not_hide_a_loss() -> None:
    worse, before = line(0.05)
    sampled = Decoding(1.0, 4)
    equal = {"v-new": Earlier(sampled, worse)}
    for earlier in ({**before, **equal}, {**equal, **before}):
        found = eroded({GREEDY: worse, sampled: worse}, earlier, 20)
        assert {one.comparison.name for one in found} == {"golden", "slice:a"}


def test_an_accepted_loss_holds_no_later_candidate() -> None:
    now, before = line(0.05)
    later = {**before, "v-accepted": Earlier(GREEDY, now)}
    assert eroded({GREEDY: now}, champions_since(later, None), 20) != []
    assert eroded({GREEDY: now}, champions_since(later, "v-accepted"), 20) == []
    assert list(champions_since(later, "v-4")) == ["v-4", "v-5", "v-accepted"]
    assert champions_since(later, "v-the-present-champion") == {}
