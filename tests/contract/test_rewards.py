"""Contract tests for every reward function.

A scorer returns one score in [0, 1] or an abstention per sample, from the keys that it declares, independently of the other samples.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.fakes import FakeRewards
from ratchet.contracts.loop import RewardSettings
from ratchet.contracts.ports import RewardFunction, Rewards
from ratchet.extend.testkit import RewardSuite
from ratchet.rewards.code.sandbox import unavailable
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.extensions import ExtensionKind, load, offers
from tests.example_plugin import on_path
from tests.needs import Need, lacks

NAMES = [*offers(ExtensionKind.REWARD), "mentions_ticket"]
pytestmark = pytest.mark.usefixtures("example_rewards")


@pytest.fixture(scope="module")
def example_rewards(example_wheel: Path) -> Iterator[None]:
    """The example package, importable for all tests of this module."""
    with on_path(example_wheel):
        yield


JUDGES = ("judge", "rag_context_precision", "rag_faithfulness", "rag_relevancy")
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"url": "http://127.0.0.1:9/v1", "model": "m"} for name in JUDGES},
    "json_schema": {"json_schema": {"type": "object"}},
    "latency": {"good_ms": 500, "bad_ms": 1500},
    "regex": {"pattern": "[a-z]+"},
}
"""Options of the scorers that need some."""

_feedback = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from([kind.value for kind in FeedbackKind]),
            "value": st.none() | st.floats(0, 1),
            "text": st.none() | st.text(),
            "rater": st.none() | st.text(),
            "time": st.none(),
        }
    ),
    max_size=3,
)
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.just([{"role": "user", "content": "?"}]),
            "answer": st.text(),
            "reference": st.none() | st.text(),
            "feedback": _feedback,
            "trace": st.fixed_dictionaries({"latency_ms": st.none() | st.floats(0, 1e6)}),
        }
    ),
    max_size=5,
)


def _scorer(name: str) -> RewardFunction:
    if name == "code" and (reason := unavailable("namespaces")):
        lacks(Need.NAMESPACES, reason)
    function: RewardFunction = load(ExtensionKind.REWARD, name).target(**OPTIONS.get(name, {}))
    return function


@pytest.mark.slow
def test_built_in_scorers_are_registered_as_entry_points() -> None:
    assert {"exact_match", "final_number", "user_feedback"} <= set(NAMES)


@pytest.mark.slow
class TestRewards(RewardSuite):
    @pytest.fixture(params=NAMES)
    def reward(self, request: pytest.FixtureRequest) -> RewardFunction:
        return _scorer(request.param)


@pytest.mark.parametrize("name", NAMES)
def test_a_scorer_has_the_name_of_its_entry_point(name: str) -> None:
    assert _scorer(name).name == name


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(samples=SAMPLES)
def test_scores_are_in_range_and_independent_of_other_samples(name: str, samples: list[dict[str, Any]]) -> None:
    scorer = _scorer(name)
    needed = [{key: value for key, value in sample.items() if key in scorer.needs} for sample in samples]
    scores = scorer.score(needed)
    assert len(scores) == len(samples)
    assert all(score is None or 0 <= score <= 1 for score in scores)
    order = list(range(len(samples)))
    random.Random(1).shuffle(order)
    assert scorer.score([needed[index] for index in order]) == [scores[index] for index in order]


@pytest.fixture(params=["fake", "scorer_set"])
def scorer_set(request: pytest.FixtureRequest) -> Rewards:
    if request.param == "fake":
        return FakeRewards()
    return build_scorer_set([RewardSettings(name="exact_match"), RewardSettings(name="user_feedback")])


def test_scorer_set_scores_unseen_answers(scorer_set: Rewards) -> None:
    assert scorer_set.unseen()
    samples = [{"prompt": [], "answer": answer, "reference": "x"} for answer in ("x", "y")]
    assert [label.reward for label in scorer_set.label_unseen(samples)] == [1.0, 0.0]
    assert [label.reward for label in scorer_set.label_unseen([])] == []
