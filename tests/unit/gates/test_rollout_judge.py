"""Tests of the rollout judge, which decides at every tick: false rollbacks and false promotions are rare."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from contracts.loop import RolloutSettings
from contracts.serving import Arm, Evidence, StepResult
from gates.rollout_judge import EvidenceJudge, ratings_to_decide

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = RolloutSettings(steps=(10, 50, 100), margin=0.1, error_margin=0.03, min_requests=50, min_seconds=0, alpha=0.05, beta=0.05)


def arm(
    tag: str, requests: int, errors: int = 0, rated: tuple[tuple[int, float], ...] = (), p50: float | None = 10.0, p95: float | None = 20.0
) -> Arm:
    return Arm(tag=tag, requests=requests, errors=errors, latency_p50_ms=p50, latency_p95_ms=p95, rated=rated)


def evidence(champion: Arm, candidate: Arm) -> Evidence:
    return Evidence(since=NOW, until=NOW, champion=champion, candidate=candidate)


class World:
    """A simulated rollout. Requests arrive in ticks, and about two of three requests get a rating, each by a different user."""

    def __init__(self, seed: int, loss: float, more_errors: float = 0.0) -> None:
        self.draw = np.random.default_rng(seed)
        self.good = (0.7, 0.7 - loss)
        self.bad = (0.02, 0.02 + more_errors)

    def run(self, ticks: int = 60, each: int = 60) -> str:
        judge = EvidenceJudge(SETTINGS)
        below = [weight for weight in SETTINGS.steps if weight < 100]
        for weight in SETTINGS.steps:
            counts, errors = np.zeros(2, int), np.zeros(2, int)
            rated: list[list[tuple[int, float]]] = [[], []]
            result = StepResult.WAIT
            share = min(weight, 95) / 100
            for _ in range(ticks):
                here = self.draw.binomial(each, share)
                for side, n in enumerate((each - here, here)):
                    counts[side] += n
                    errors[side] += self.draw.binomial(n, self.bad[side])
                    ratings = self.draw.random(self.draw.binomial(n, 0.66)) < self.good[side]
                    rated[side] += [(1, float(rating)) for rating in ratings]
                arms = [arm(tag, int(counts[i]), int(errors[i]), tuple(rated[i])) for i, tag in enumerate(("old", "new"))]
                seen = evidence(*arms)
                result = judge.judge(weight == below[-1], 1e6, seen, seen).result
                if result is not StepResult.WAIT:
                    break
            if result is StepResult.ROLL_BACK:
                return "rolled back"
            if result is StepResult.WAIT:
                return "undecided"
        return "promoted"


def _ends(loss: float, worlds: int, more_errors: float = 0.0) -> dict[str, float]:
    ends = [World(seed, loss, more_errors).run() for seed in range(worlds)]
    return {end: ends.count(end) / worlds for end in ("promoted", "rolled back", "undecided")}


def _slack(share: float, trials: int) -> float:
    return 3 * math.sqrt(share * (1 - share) / trials)


@pytest.mark.slow
def test_equal_versions_are_rolled_back_no_more_often_than_alpha() -> None:
    ends = _ends(0.0, 200)
    assert ends["rolled back"] <= SETTINGS.alpha + _slack(SETTINGS.alpha, 200)
    assert ends["promoted"] > 0.7


@pytest.mark.slow
def test_version_worse_than_the_margin_is_promoted_no_more_often_than_beta() -> None:
    assert _ends(SETTINGS.margin + 0.001, 200)["promoted"] <= SETTINGS.beta + _slack(SETTINGS.beta, 200)


@pytest.mark.slow
def test_much_worse_version_is_rolled_back() -> None:
    assert _ends(0.4, 30)["rolled back"] == 1
    assert _ends(0.0, 30, more_errors=0.3)["rolled back"] == 1


RATED = tuple((1, 1.0) for _ in range(400))


def test_quality_is_not_shown_without_ratings() -> None:
    judge = EvidenceJudge(SETTINGS)
    bare = evidence(arm("old", 1000), arm("new", 1000))
    assert judge.judge(True, 1e6, bare, bare).result is StepResult.WAIT
    assert judge.judge(False, 1e6, bare, bare).result is StepResult.ADVANCE
    full = evidence(arm("old", 1000, rated=RATED), arm("new", 1000, rated=RATED))
    assert judge.judge(True, 1e6, full, full).result is StepResult.ADVANCE


@pytest.mark.parametrize(("old", "new"), [(0, 1000), (1000, 0), (0, 0), (1000, 49)])
def test_rollout_waits_if_a_version_has_too_few_requests(old: int, new: int) -> None:
    seen = evidence(arm("old", old, rated=RATED), arm("new", new, rated=RATED))
    assert EvidenceJudge(SETTINGS).judge(False, 1e6, seen, seen).result is StepResult.WAIT


def test_step_lasts_at_least_its_minimum_time() -> None:
    seen = evidence(arm("old", 1000, rated=RATED), arm("new", 1000, rated=RATED))
    patient = EvidenceJudge(SETTINGS.model_copy(update={"min_seconds": 60.0}))
    assert patient.judge(True, 59, seen, seen).result is StepResult.WAIT
    assert patient.judge(True, 60, seen, seen).result is StepResult.ADVANCE


@pytest.mark.parametrize(
    ("p50", "p95", "result"),
    [
        (100.0, 200.0, StepResult.ROLL_BACK),
        (10.0, 200.0, StepResult.ADVANCE),
        (100.0, 20.0, StepResult.ADVANCE),
        (None, None, StepResult.ADVANCE),
    ],
)
def test_latency_is_harm_only_if_both_median_and_p95_are_worse(p50: float | None, p95: float | None, result: StepResult) -> None:
    seen = evidence(arm("old", 1000), arm("new", 1000, p50=p50, p95=p95))
    assert EvidenceJudge(SETTINGS).judge(False, 1e6, seen, seen).result is result


def test_harm_causes_rollback_although_evidence_is_missing() -> None:
    seen = evidence(arm("old", 40), arm("new", 40, errors=40))
    assert EvidenceJudge(SETTINGS).judge(False, 0, seen, seen).result is StepResult.ROLL_BACK


def test_judgement_contains_its_figures() -> None:
    seen = evidence(arm("old", 1000, errors=10, rated=RATED), arm("new", 500, errors=5, rated=RATED))
    judgement = EvidenceJudge(SETTINGS).judge(True, 1e6, seen, seen)
    assert (judgement.requests, judgement.candidate_requests) == (1500, 500)
    assert judgement.quality is not None
    assert judgement.errors is not None
    assert judgement.reasons


def test_ratings_to_decide_grow_as_the_margin_shrinks() -> None:
    assert ratings_to_decide(SETTINGS) > ratings_to_decide(SETTINGS.model_copy(update={"margin": 0.2})) > 0
    assert ratings_to_decide(SETTINGS, difference=-0.2) == -1
