"""Tests of the rollout judge, which decides at every tick: false rollbacks and false promotions are rare."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from contracts.loop import RolloutSettings
from contracts.serving import Arm, Evidence, StepResult
from gates.rollout_judge import EvidenceJudge, ratings_to_decide
from gates.statistics import sample_ratio_p
from local.proxy.assignment import position

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = RolloutSettings(steps=(10, 50, 100), margin=0.1, error_margin=0.03, min_requests=50, min_seconds=0, alpha=0.05, beta=0.05)


LONG = 1e6
"""Seconds of a step that is old enough to advance."""


def arm(
    tag: str,
    requests: int,
    errors: int = 0,
    rated: tuple[tuple[int, float], ...] = (),
    p50: float | None = 10.0,
    p95: float | None = 20.0,
    refused: int = 0,
) -> Arm:
    """Return an arm in which each request is a session of its own."""
    latency = {"latency_p50_ms": p50, "latency_p95_ms": p95}
    return Arm(tag=tag, requests=requests, errors=errors, refused=refused, sessions=requests, rated=rated, **latency)


def evidence(champion: Arm, candidate: Arm, seconds: float = LONG) -> Evidence:
    return Evidence(since=NOW, until=NOW + timedelta(seconds=seconds), champion=champion, candidate=candidate)


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
                result = judge.judge(weight == below[-1], LONG, 100 * share, seen, seen).result
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
    assert judge.judge(True, LONG, 50, bare, bare).result is StepResult.WAIT
    assert judge.judge(False, LONG, 50, bare, bare).result is StepResult.ADVANCE
    full = evidence(arm("old", 1000, rated=RATED), arm("new", 1000, rated=RATED))
    assert judge.judge(True, LONG, 50, full, full).result is StepResult.ADVANCE


@pytest.mark.parametrize(("old", "new"), [(0, 1000), (1000, 0), (0, 0), (1000, 49)])
def test_rollout_waits_if_a_version_has_too_few_requests(old: int, new: int) -> None:
    seen = evidence(arm("old", old, rated=RATED), arm("new", new, rated=RATED))
    assert EvidenceJudge(SETTINGS).judge(False, LONG, 50, seen, seen).result is StepResult.WAIT


def test_step_lasts_at_least_its_minimum_time() -> None:
    patient = EvidenceJudge(SETTINGS.model_copy(update={"min_seconds": 60.0}))
    for seconds, result in ((59, StepResult.WAIT), (60, StepResult.ADVANCE)):
        seen = evidence(arm("old", 1000, rated=RATED), arm("new", 1000, rated=RATED), seconds)
        assert patient.judge(True, seconds, 50, seen, seen).result is result


@pytest.mark.parametrize(
    ("p50", "p95", "result"),
    [
        (100.0, 200.0, StepResult.ROLL_BACK),
        (10.0, 200.0, StepResult.ADVANCE),
        (20.0, 20.0, StepResult.ADVANCE),
        (None, None, StepResult.WAIT),
    ],
)
def test_latency_is_harm_only_if_both_median_and_p95_are_worse(p50: float | None, p95: float | None, result: StepResult) -> None:
    seen = evidence(arm("old", 1000), arm("new", 1000, p50=p50, p95=p95))
    assert EvidenceJudge(SETTINGS).judge(False, LONG, 50, seen, seen).result is result


def test_harm_causes_rollback_although_evidence_is_missing() -> None:
    for new in (arm("new", 40, errors=40), arm("new", 40, refused=40, p50=None, p95=None)):
        seen = evidence(arm("old", 40), new, 0)
        assert EvidenceJudge(SETTINGS).judge(False, 0, 50, seen, seen).result is StepResult.ROLL_BACK


def test_invalid_requests_to_both_versions_are_no_harm() -> None:
    """A client that sends invalid requests must not be able to cause a rollback."""
    seen = evidence(arm("old", 1000, refused=300), arm("new", 1000, refused=310))
    judgement = EvidenceJudge(SETTINGS).judge(False, LONG, 50, seen, seen)
    assert judgement.result is StepResult.ADVANCE
    assert judgement.refusals is not None
    assert judgement.refusals.low < 0.01 < judgement.refusals.high
    assert "refused 310/1000 against 300/1000" in judgement.reasons[0]


@pytest.mark.parametrize(
    ("at", "sessions", "result"), [(5, 500, StepResult.WAIT), (50, 500, StepResult.ADVANCE), (95, 500, StepResult.WAIT)]
)
def test_sessions_must_be_split_as_the_route_says(at: float, sessions: int, result: StepResult) -> None:
    seen = evidence(arm("old", sessions), arm("new", sessions))
    assert EvidenceJudge(SETTINGS).judge(False, LONG, at, seen, seen).result is result


def test_many_requests_of_few_sessions_do_not_raise_the_sample_ratio() -> None:
    """A session stays on one version, so a busy session says nothing about the assignment."""
    busy = arm("new", 5000).model_copy(update={"sessions": 6})
    seen = evidence(arm("old", 100), busy)
    assert EvidenceJudge(SETTINGS).judge(False, LONG, 5, seen, seen).result is StepResult.ADVANCE


def test_judgement_contains_its_figures() -> None:
    seen = evidence(arm("old", 1000, errors=10, rated=RATED), arm("new", 500, errors=5, rated=RATED))
    judgement = EvidenceJudge(SETTINGS).judge(True, LONG, 100 / 3, seen, seen)
    assert (judgement.requests, judgement.candidate_requests) == (1500, 500)
    assert judgement.quality is not None
    assert judgement.errors is not None
    assert judgement.reasons


def test_ratings_to_decide_grow_as_the_margin_shrinks() -> None:
    assert ratings_to_decide(SETTINGS) > ratings_to_decide(SETTINGS.model_copy(update={"margin": 0.2})) > 0
    assert ratings_to_decide(SETTINGS, difference=-0.2) == -1


@pytest.mark.slow
def test_returning_sessions_raise_the_sample_ratio_rarely() -> None:
    """Simulates the router's assignment: the same users come back in all steps, and the judge looks at every tick.

    The looks of one step are not independent, and a session keeps its position in all steps. The chance of a false alarm in a whole
    rollout stays below one percent, and a false alarm only delays a step.
    """
    draw, worlds, alarms = np.random.default_rng(5), 300, 0
    for world in range(worlds):
        places = np.array([position(f"line-{world}", f"session-{number}") for number in range(300)])
        activity = draw.pareto(1.2, len(places)) + 0.05
        fresh_places = draw.random((4, 2000)) * 100
        raised = False
        for step, share in enumerate((1.0, 5.0, 25.0, 95.0)):
            seen = np.zeros(len(places), bool)
            for tick in range(1, 41):
                seen |= draw.random(len(places)) < 1 - np.exp(-activity / 20)
                at = np.concatenate([places[seen], fresh_places[step, : tick * 50]])
                candidate = int((at < share).sum())
                raised |= sample_ratio_p(len(at) - candidate, candidate, share / 100) < 1e-4
        alarms += raised
    assert alarms / worlds <= 0.01


def test_wrong_split_is_found_with_few_sessions() -> None:
    draw = np.random.default_rng(6)
    found = [sample_ratio_p(60 - new, new, 0.05) < 1e-4 for new in draw.binomial(60, 0.5, 200)]
    assert all(found)
