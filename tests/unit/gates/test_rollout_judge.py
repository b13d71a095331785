"""Tests of the rollout judge, which decides at every tick: false rollbacks and false promotions are rare."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.mirror import Mirrored
from ratchet.contracts.serving import Arm, Evidence, StepJudgement, StepResult, Stratum, latency_bucket, latency_buckets
from ratchet.gates.rollout_judge import EvidenceJudge
from ratchet.gates.statistics import sample_ratio_p
from ratchet.router.assignment import position

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
    answered = requests - errors - refused
    latencies = ((latency_bucket(10.0), answered),) if p50 and answered > 0 else ()
    return Arm(tag=tag, requests=requests, errors=errors, refused=refused, sessions=requests, rated=rated, latencies=latencies, **latency)


def evidence(champion: Arm, candidate: Arm, seconds: float = LONG, since: datetime = NOW) -> Evidence:
    return Evidence(since=since, until=since + timedelta(seconds=seconds), champion=champion, candidate=candidate)


def judged(
    seen: Evidence, largest: bool = False, share: float = 50, seconds: float = LONG, before: tuple[Stratum, ...] = (), **changes: object
) -> StepJudgement:
    """Judge a step with this evidence, after the steps `before`."""
    judge = EvidenceJudge(SETTINGS.model_copy(update=changes))
    return judge.judge(largest, seconds, [*before, Stratum(share=share, fresh=seen, mature=seen)])


class World:
    """A simulated rollout. Requests arrive in ticks, and about two of three requests get a rating, each by a different user."""

    def __init__(self, seed: int, loss: float, more_errors: float = 0.0) -> None:
        self.draw = np.random.default_rng(seed)
        self.good = (0.7, 0.7 - loss)
        self.bad = (0.02, 0.02 + more_errors)

    def run(self, ticks: int = 60, each: int = 60) -> str:
        judge = EvidenceJudge(SETTINGS)
        below = [weight for weight in SETTINGS.steps if weight < 100]
        strata: list[Stratum] = []
        for weight in SETTINGS.steps:
            counts, errors, since = np.zeros(2, int), np.zeros(2, int), NOW + timedelta(seconds=LONG * len(strata))
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
                seen = evidence(*arms, since=since)
                here = [*strata, Stratum(share=100 * share, fresh=seen, mature=seen)]
                result = judge.judge(weight == below[-1], LONG, here).result
                if result is not StepResult.WAIT:
                    break
            strata = here
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
    bare = evidence(arm("old", 1000), arm("new", 1000))
    assert judged(bare, largest=True).result is StepResult.WAIT
    assert judged(bare).result is StepResult.ADVANCE
    full = evidence(arm("old", 1000, rated=RATED), arm("new", 1000, rated=RATED))
    assert judged(full, largest=True).result is StepResult.ADVANCE


@pytest.mark.parametrize(("old", "new"), [(0, 1000), (1000, 0), (0, 0), (1000, 49)])
def test_rollout_waits_if_a_version_has_too_few_requests(old: int, new: int) -> None:
    assert judged(evidence(arm("old", old, rated=RATED), arm("new", new, rated=RATED))).result is StepResult.WAIT


def test_step_lasts_at_least_its_minimum_time() -> None:
    for seconds, result in ((59, StepResult.WAIT), (60, StepResult.ADVANCE)):
        seen = evidence(arm("old", 1000, rated=RATED), arm("new", 1000, rated=RATED), seconds)
        assert judged(seen, largest=True, seconds=seconds, min_seconds=60.0).result is result


@pytest.mark.parametrize(
    ("p50", "p95", "result"),
    [
        (100.0, 200.0, StepResult.ROLL_BACK),
        (10.0, 200.0, StepResult.ADVANCE),
        (20.0, 20.0, StepResult.ADVANCE),
        (None, None, StepResult.WAIT),
    ],
)
def test_latency_as_a_whole_is_worse_only_if_both_median_and_p95_are(p50: float | None, p95: float | None, result: StepResult) -> None:
    assert judged(evidence(arm("old", 1000), arm("new", 1000, p50=p50, p95=p95))).result is result


def slow_arm(tag: str, answers: int, slow: int) -> Arm:
    """Return an arm in which `slow` answers take 20 times as long."""
    return arm(tag, answers, rated=RATED).model_copy(update={"latencies": latency_buckets([10.0] * (answers - slow) + [200.0] * slow)})


def test_a_tail_of_slow_answers_rolls_back_although_median_and_p95_do_not_change_both() -> None:
    found = judged(evidence(slow_arm("old", 1000, 0), slow_arm("new", 1000, 100)))
    assert found.result is StepResult.ROLL_BACK
    assert "the share of slow answers is higher: +0.100" in found.reasons[0]
    assert judged(evidence(slow_arm("old", 1000, 10), slow_arm("new", 1000, 12)), largest=True).result is StepResult.ADVANCE


def test_a_tail_that_is_not_excluded_yet_holds_the_step_that_decides() -> None:
    seen = evidence(slow_arm("old", 500, 6), slow_arm("new", 500, 17))
    assert judged(seen, largest=False).result is StepResult.ADVANCE
    found = judged(seen, largest=True)
    assert found.result is StepResult.WAIT
    assert "an increase of the share of slow answers by 0.05 is not excluded yet" in found.reasons[0]


def test_few_slow_answers_of_a_cold_server_do_not_roll_back() -> None:
    assert judged(evidence(slow_arm("old", 1000, 0), slow_arm("new", 49, 5))).result is StepResult.WAIT


def test_latencies_that_are_not_counted_hold_the_step() -> None:
    bare = arm("new", 1000, rated=RATED).model_copy(update={"latencies": ()})
    assert judged(evidence(arm("old", 1000, rated=RATED), bare)).reasons == ("the latency of new is not measured",)


def test_an_increase_of_the_errors_that_is_not_excluded_yet_holds_the_step_that_decides() -> None:
    """Two percent more errors within 60 requests are neither shown nor excluded."""
    seen = evidence(arm("old", 60, rated=RATED), arm("new", 60, errors=1, rated=RATED))
    found = judged(seen, largest=True, slow_margin=0.5)
    assert found.result is StepResult.WAIT
    assert "an increase of the error share by 0.03 is not excluded yet" in found.reasons[0]
    assert judged(seen).result is StepResult.ADVANCE


def test_harm_causes_rollback_although_evidence_is_missing() -> None:
    for new in (arm("new", 40, errors=40), arm("new", 40, refused=40, p50=None, p95=None)):
        assert judged(evidence(arm("old", 40), new, 0), seconds=0).result is StepResult.ROLL_BACK


def test_errors_of_earlier_steps_count() -> None:
    """In each of two steps alone, the errors are not yet harm; together they are."""
    first = evidence(arm("old", 700), arm("new", 70, errors=2), seconds=100, since=NOW - timedelta(seconds=200))
    second = evidence(arm("old", 700), arm("new", 70, errors=2))
    assert judged(first, share=9, seconds=100).result is judged(second, share=9).result is StepResult.ADVANCE
    assert judged(second, share=9, before=(Stratum(share=9, fresh=first, mature=first),)).result is StepResult.ROLL_BACK


def test_errors_that_begin_at_a_later_step_are_not_hidden_by_good_ones() -> None:
    """A version may fail only under more load."""
    clean = evidence(arm("old", 5000), arm("new", 5000), seconds=100, since=NOW - timedelta(seconds=200))
    found = judged(evidence(arm("old", 500), arm("new", 500, errors=40)), before=(Stratum(share=50, fresh=clean, mature=clean),))
    assert found.result is StepResult.ROLL_BACK
    assert "the error share is higher at this step: 40/500 against 0/500" in found.reasons[0]


def test_a_change_of_the_champions_errors_with_time_is_no_difference() -> None:
    """Both versions fail in a tenth of the requests later, when the candidate has more of the traffic."""
    calm = evidence(arm("old", 5000), arm("new", 50), seconds=100, since=NOW - timedelta(seconds=200))
    found = judged(evidence(arm("old", 500, errors=50), arm("new", 500, errors=50)), before=(Stratum(share=1, fresh=calm, mature=calm),))
    assert found.result is StepResult.ADVANCE
    assert abs(found.tests["errors"].estimate) < 0.001


def test_invalid_requests_to_both_versions_are_no_harm() -> None:
    """A client that sends invalid requests must not be able to cause a rollback."""
    judgement = judged(evidence(arm("old", 1000, refused=300), arm("new", 1000, refused=310)))
    assert judgement.result is StepResult.ADVANCE
    assert judgement.refusals is not None
    assert judgement.refusals.low < 0.01 < judgement.refusals.high
    assert "refused 310/1000 against 300/1000" in judgement.reasons[0]


@pytest.mark.parametrize(
    ("at", "sessions", "result"), [(5, 500, StepResult.WAIT), (50, 500, StepResult.ADVANCE), (95, 500, StepResult.WAIT)]
)
def test_sessions_must_be_split_as_the_route_says(at: float, sessions: int, result: StepResult) -> None:
    assert judged(evidence(arm("old", sessions), arm("new", sessions)), share=at).result is result


def test_many_requests_of_few_sessions_do_not_raise_the_sample_ratio() -> None:
    """A session stays on one version, so a busy session says nothing about the assignment."""
    busy = arm("new", 5000).model_copy(update={"sessions": 6})
    assert judged(evidence(arm("old", 100), busy), share=5).result is StepResult.ADVANCE


def test_users_must_be_split_as_the_route_says_if_they_are_the_unit() -> None:
    few, many = (arm(tag, 1000).model_copy(update={"users": n}) for tag, n in (("old", 20), ("new", 22)))
    assert judged(evidence(few, many), unit="user").result is StepResult.ADVANCE
    assert "22 of 42 users" in judged(evidence(few, many), unit="user", share=5).reasons[0]
    assert "do not count users" in judged(evidence(arm("old", 1000), arm("new", 1000)), unit="user").reasons[0]


def test_few_effective_people_decide_nothing() -> None:
    """One person gives a thousand bad ratings to the candidate; nobody knows whether the others like it."""
    for rated in (((900, 0.0), *((1, 1.0),) * 15), ((40, 0.0),) * 10):
        seen = evidence(arm("old", 1000, rated=RATED), arm("new", 1000, rated=rated))
        found = judged(seen, largest=True)
        assert found.result is StepResult.WAIT
        assert "effective people have rated" in found.reasons[0]


def test_judgement_contains_its_figures_and_limits() -> None:
    seen = evidence(arm("old", 1000, errors=10, rated=RATED), arm("new", 500, errors=5, rated=RATED))
    judgement = judged(seen, largest=True, share=100 / 3)
    assert (judgement.requests, judgement.candidate_requests) == (1500, 500)
    assert judgement.quality is not None
    assert judgement.errors is not None
    assert set(judgement.tests) == {"ratings", "errors", "refused", "slow"}
    test = judgement.tests["ratings"]
    assert test.equal > test.equal_at > 0
    assert test.harm < 0 < test.harm_at
    assert (test.n, round(test.people or 0)) == (800, 400)
    assert re.search(r"evidence of equality [\d.]+ of 3.0, of harm -[\d.]+ of 4.4", judgement.reasons[0])


def test_judgements_of_earlier_releases_are_readable() -> None:
    interval = {"estimate": 0.0, "low": -0.1, "high": 0.1, "level": 0.9, "n": 5}
    old = StepJudgement.model_validate({"result": "wait", "reasons": ["figures"], "requests": 5, "quality": interval})
    assert (old.tests, old.quality is not None) == ({}, True)


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


def mirrored_pairs(n: int, loss: float = 0.0, people: int = 12, failed: int = 0, unscored: int = 0) -> Mirrored:
    """Pairs of which a share 0.2 + `loss` is a loss and a share 0.2 a gain, the same for each person."""
    lost, gained = round(n * (0.2 + loss)), round(n * 0.2)
    differences = [-1.0] * lost + [1.0] * gained + [0.0] * (n - lost - gained)
    pairs = tuple((f"p{number % people}", one) for number, one in enumerate(differences))
    return Mirrored(asked=n + failed + unscored, failed=failed, unscored=unscored, pairs=pairs)


def mirror_judged(
    mirrored: Mirrored | None, rated: tuple[tuple[tuple[int, float], ...], ...] = ((), ()), largest: bool = True, **changes: object
) -> StepJudgement:
    seen = evidence(*(arm(tag, 1000, rated=one) for tag, one in zip(("old", "new"), rated, strict=True)))
    judge = EvidenceJudge(SETTINGS.model_copy(update={"mirror": 1000, **changes}))
    return judge.judge(largest, LONG, [Stratum(share=50, fresh=seen, mature=seen)], mirrored)


def test_mirrored_pairs_decide_without_ratings() -> None:
    found = mirror_judged(mirrored_pairs(400))
    assert found.result is StepResult.ADVANCE
    assert "mirrored prompts +0.000 ± 0.03" in found.reasons[0]
    assert "(400 pairs, 12 effective people; evidence of equality" in found.reasons[0]
    assert "a loss of 0.1 is excluded" in found.reasons[0]
    assert (found.tests["mirrored"].n, found.tests["mirrored"].margin) == (400, SETTINGS.margin)


def test_without_the_setting_mirrored_pairs_decide_nothing() -> None:
    found = mirror_judged(mirrored_pairs(400), mirror=0)
    assert found.result is StepResult.WAIT
    assert "mirrored" not in found.tests
    assert mirror_judged(mirrored_pairs(400, 0.5), mirror=0).result is StepResult.WAIT


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (None, "no pairs of two people"),
        (mirrored_pairs(0), "no pairs of two people"),
        (mirrored_pairs(400, people=1), "no pairs of two people"),
        (mirrored_pairs(400, people=7), "of 7 of at least 10 effective people"),
        (mirrored_pairs(49, people=40), "49 of at least 50 mirrored pairs"),
        (mirrored_pairs(100), "is not shown yet"),
        (mirrored_pairs(400, failed=60), "too many of 460 mirrored prompts are left out: 60 without"),
        (mirrored_pairs(400, unscored=60), "60 without comparable rewards"),
    ],
)
def test_missing_few_or_incomplete_pairs_wait_at_the_step_that_decides(pairs: Mirrored | None, reason: str) -> None:
    found = mirror_judged(pairs)
    assert found.result is StepResult.WAIT
    assert reason in "; ".join(found.reasons)
    assert mirror_judged(pairs, largest=False).result is StepResult.ADVANCE, "an earlier step does not need them"


def test_good_ratings_do_not_replace_the_pairs() -> None:
    assert mirror_judged(mirrored_pairs(100), (RATED, RATED)).result is StepResult.WAIT


@pytest.mark.parametrize("largest", [True, False])
def test_harm_in_the_pairs_or_in_the_ratings_rolls_back_at_any_step(largest: bool) -> None:
    worse = mirror_judged(mirrored_pairs(400, 0.2), largest=largest)
    assert worse.result is StepResult.ROLL_BACK
    assert "the mean reward of the mirrored prompts is lower: -0.200" in worse.reasons[0]
    bad = tuple((1, 0.0) for _ in range(400))
    disliked = mirror_judged(mirrored_pairs(400), (RATED, bad), largest=largest)
    assert disliked.result is StepResult.ROLL_BACK
    assert "the mean rating is lower" in disliked.reasons[0]
    assert mirror_judged(mirrored_pairs(400, 0.2, people=7)).result is StepResult.WAIT, "few people show no harm"


def test_the_error_budget_is_split_over_five_metrics_with_mirrored_prompts() -> None:
    found = mirror_judged(mirrored_pairs(400), (RATED, RATED))
    assert found.tests["mirrored"].harm_at == pytest.approx(math.log(5 / SETTINGS.alpha))
    assert found.tests["ratings"].harm_at == pytest.approx(math.log(5 / SETTINGS.alpha))
    assert found.tests["mirrored"].equal_at == pytest.approx(math.log(1 / SETTINGS.beta))
    without = mirror_judged(None, (RATED, RATED), mirror=0)
    assert without.tests["ratings"].harm_at == pytest.approx(math.log(4 / SETTINGS.alpha))


def test_errors_and_slow_answers_must_still_be_excluded() -> None:
    seen = evidence(arm("old", 60), arm("new", 60))
    judge = EvidenceJudge(SETTINGS.model_copy(update={"mirror": 1000}))
    found = judge.judge(True, LONG, [Stratum(share=50, fresh=seen, mature=seen)], mirrored_pairs(400))
    assert found.result is StepResult.WAIT
    assert all("error share" in reason or "slow" in reason for reason in found.reasons)


def unattributed(mirrored: Mirrored | None, seconds: float = LONG, **changes: object) -> StepJudgement:
    """Judge a step of a router that does not attribute answers."""
    judge = EvidenceJudge(SETTINGS.model_copy(update={"mirror": 500, **changes}))
    return judge.judge(False, seconds, [], mirrored)


def test_without_attribution_mirrored_prompts_decide_every_step() -> None:
    found = unattributed(mirrored_pairs(400))
    assert found.result is StepResult.ADVANCE
    assert "a loss of 0.1 is excluded; live traffic is not attributed" in found.reasons[0]
    assert found.requests == 0
    worse = unattributed(mirrored_pairs(400, loss=0.3))
    assert worse.result is StepResult.ROLL_BACK
    assert "mean reward of the mirrored prompts is lower" in worse.reasons[0]


@pytest.mark.parametrize(
    ("mirrored", "reason"),
    [
        (None, "not shown yet: no pairs"),
        (mirrored_pairs(20), "20 of at least 50 mirrored pairs"),
        (mirrored_pairs(400, people=2), "effective people"),
        (mirrored_pairs(400, failed=200), "too many of 600 mirrored prompts are left out"),
    ],
)
def test_without_attribution_a_step_waits_for_mirrored_prompts(mirrored: Mirrored | None, reason: str) -> None:
    found = unattributed(mirrored)
    assert found.result is StepResult.WAIT
    assert any(reason in one for one in found.reasons), found.reasons


def test_an_undecided_step_says_that_all_mirrored_prompts_are_asked() -> None:
    spent, told = mirrored_pairs(100), "all 100 prompts of rollout.mirror are asked, so no further pairs come"
    for found in (unattributed(spent, mirror=100), mirror_judged(spent, mirror=100)):
        assert (found.result, found.reasons[1]) == (StepResult.WAIT, told)
    assert told not in unattributed(spent, mirror=101).reasons
    decided = unattributed(mirrored_pairs(400), seconds=10, min_seconds=600, mirror=400)
    assert decided.reasons == ("10 of 600 s elapsed",), "pairs that have decided need no more"


def test_without_attribution_a_step_keeps_its_minimum_duration() -> None:
    found = unattributed(mirrored_pairs(400), seconds=10, min_seconds=600)
    assert (found.result, found.reasons) == (StepResult.WAIT, ("10 of 600 s elapsed",))
