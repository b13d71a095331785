"""Tests of the scorer set: tiers, weights, abstentions, and the check that a job uses the planned scorers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import ScorerVersion
from ratchet.contracts.data.records import Tier
from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.jobs.training import Method, TrainingPlan
from ratchet.contracts.loop import RewardSettings
from ratchet.rewards.scorer_set import Scorer, ScorerSet, build_scorer_set, planned_scorer_set
from tests.builders import make_plan


class Fixed:
    """A scorer that returns fixed scores."""

    def __init__(self, name: str, tier: Tier, scores: list[float | None], needs: frozenset[str] = frozenset({"answer"})) -> None:
        self.name, self.tier, self.scores, self.needs = name, tier, scores, needs

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        return self.scores


def _panel(*functions: Fixed, weights: Sequence[float] = ()) -> ScorerSet:
    weights = weights or [1.0] * len(functions)
    return ScorerSet(
        [
            Scorer(f, ScorerVersion(name=f.name, distribution="d", version="1", code="c", tier=f.tier, weight=w))
            for f, w in zip(functions, weights, strict=True)
        ]
    )


def _sample(**more: Any) -> dict[str, Any]:
    return {"prompt": [], "answer": "x", "reference": None, "feedback": [], **more}


def test_highest_tier_with_a_score_determines_the_reward() -> None:
    scorer_set = _panel(Fixed("v", Tier.VERIFIABLE, [None, 1.0]), Fixed("f", Tier.FEEDBACK, [0.25, 0.0]))
    labels = scorer_set.label([_sample(), _sample()])
    assert [(label.reward, label.tier) for label in labels] == [(0.25, Tier.FEEDBACK), (1.0, Tier.VERIFIABLE)]
    assert labels[1].parts_json == '{"f":0.0,"v":1.0}'
    assert [label.deciding for label in labels] == [{"f"}, {"v"}]


def test_weights_apply_to_the_scorers_of_a_tier_that_give_a_score() -> None:
    scorers = [Fixed(name, Tier.VERIFIABLE, column) for name, column in (("a", [1.0, None]), ("b", [0.0, 0.5]))]
    assert [label.reward for label in _panel(*scorers, weights=[3.0, 1.0]).label([_sample(), _sample()])] == [0.75, 0.5]


@given(st.lists(st.tuples(st.sampled_from(list(Tier)), st.none() | st.floats(0, 1), st.floats(0.1, 9)), max_size=6))
def test_reward_lies_between_the_scores_of_its_tier(rows: list[tuple[Tier, float | None, float]]) -> None:
    scorer_set = _panel(*[Fixed(str(i), tier, [score]) for i, (tier, score, _) in enumerate(rows)], weights=[w for *_, w in rows])
    label = scorer_set.label([_sample()])[0]
    speaking = {tier for tier, score, _ in rows if score is not None}
    assert label.tier == next((tier for tier in Tier if tier in speaking), None)
    scores = [score for tier, score, _ in rows if tier == label.tier and score is not None]
    assert label.reward is None if not scores else min(scores) - 1e-9 <= label.reward <= max(scores) + 1e-9


def test_failing_scorer_abstains() -> None:
    class Broken(Fixed):
        def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
            raise OSError("judge is down")

    assert _panel(Broken("j", Tier.JUDGE, [])).label([_sample()])[0].reward is None


@pytest.mark.parametrize("scores", [[2.0], [float("nan")], [0.5, 0.5]])
def test_error_for_invalid_scores_names_the_scorer(scores: list[float | None]) -> None:
    with pytest.raises(Permanent, match="'odd'"):
        _panel(Fixed("odd", Tier.JUDGE, scores)).label([_sample()])


def test_unseen_answers_are_scored_only_by_scorers_that_need_no_feedback() -> None:
    scorer_set = _panel(Fixed("v", Tier.VERIFIABLE, [0.0]), Fixed("f", Tier.FEEDBACK, [1.0], frozenset({"feedback"})))
    assert scorer_set.unseen()
    assert [label.reward for label in scorer_set.label_unseen([_sample()])] == [0.0]
    assert not _panel(Fixed("f", Tier.FEEDBACK, [1.0], frozenset({"feedback"}))).unseen()


def test_corrected_answer_is_wrong_if_there_is_no_verifiable_scorer() -> None:
    correction = {"kind": "correction", "value": None, "text": "y", "rater": None, "time": None}
    label = _panel(Fixed("f", Tier.FEEDBACK, [1.0])).label([_sample(feedback=[correction])])[0]
    assert (label.reward, label.tier) == (0.0, Tier.VERIFIABLE)


def test_user_feedback_is_the_mean_of_ratings() -> None:
    scorer_set = build_scorer_set([RewardSettings(name="user_feedback")])
    feedback = [{"kind": "rating", "value": v, "text": None} for v in (1.0, 0.0, 1.0)]
    label = scorer_set.label([_sample(feedback=feedback)])[0]
    assert label.reward == pytest.approx(2 / 3)
    assert label.votes == 3


def test_error_for_an_unknown_reward_names_the_installed_rewards() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'final_number'.*exact_match"):
        build_scorer_set([RewardSettings(name="final_numbr")])


def _plan(scorer_set: ScorerSet, **options: Any) -> TrainingPlan:
    return make_plan(Method.GRPO, {}, scorers=scorer_set.versions, scorer_options=options)


def test_job_uses_the_planned_scorers_and_options_or_fails() -> None:
    scorer_set = build_scorer_set([RewardSettings(name="final_number", options={"marker": "####"}), RewardSettings(name="user_feedback")])
    plan = _plan(scorer_set, final_number={"marker": "####"})
    assert [label.reward for label in planned_scorer_set(plan).label_unseen([_sample(answer="#### 4", reference="4")])] == [1.0]
    changed = plan.model_copy(update={"scorers": tuple(v.model_copy(update={"code": "0" * 64}) for v in plan.scorers)})
    with pytest.raises(Permanent, match="plan again"):
        planned_scorer_set(changed)
