"""Tests of the rewards of unscored answers and of the scoring bench, without the release.

The expected advantages come from a transcription of the release's arithmetic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.training import Method
from ratchet.contracts.loop import RewardSettings
from ratchet.rewards.judge.job_verdicts import JobVerdicts
from ratchet.rewards.scorer_set import Label, build_scorer_set, planned_scorer_set
from ratchet.trainers.job.events import Events
from ratchet.trainers.job.nemo import abstentions
from tests.builders import make_plan
from tests.judge_stub import Stub, grade, parts, serving
from tests.unit.trainers.nemo.advantages import advantages, logs, padded

pytestmark = pytest.mark.slow  # torch takes seconds to load

groups_of_scores = st.lists(st.lists(st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=8), min_size=1, max_size=4)


def flat(parts: list[list[float | None]]) -> tuple[list[int], list[float | None]]:
    """Return the group numbers and the scores of all answers."""
    return [number for number, part in enumerate(parts) for _ in part], [score for part in parts for score in part]


@given(groups_of_scores, st.booleans(), st.booleans())
def test_an_unscored_answer_has_no_advantage_and_changes_no_sign_of_the_others(
    parts: list[list[float | None]], leave_one_out: bool, normalise: bool
) -> None:
    groups, scores = flat(parts)
    if all(score is None for score in scores):
        with pytest.raises(Retryable):
            abstentions.rewards(groups, scores)
        return
    found = advantages(groups, abstentions.rewards(groups, scores), leave_one_out, normalise)
    for number, part in enumerate(parts):
        scored = [score for score in part if score is not None]
        mean = sum(scored) / len(scored) if scored else 0.0
        own = [value for group, value in zip(groups, found, strict=True) if group == number]
        for score, advantage in zip(part, own, strict=True):
            if score is None:
                assert abs(advantage) < 1e-6
            elif abs(score - mean) > 1e-9:
                assert math.copysign(1, advantage) == math.copysign(1, score - mean)
            else:
                assert abs(advantage) < 1e-6


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=7), st.integers(0, 6))
def test_leave_one_out_shrinks_advantages_by_the_documented_factor(scored: list[float], abstained: int) -> None:
    n, total = len(scored), len(scored) + abstained
    alone = advantages([0] * n, scored, True, False)
    together = advantages([0] * total, abstentions.rewards([0] * total, [*scored, *[None] * abstained]), True, False)
    factor = total * (n - 1) / (n * (total - 1))
    assert together[:n] == pytest.approx([factor * value for value in alone], abs=1e-9)


def test_a_reward_of_zero_would_count_as_a_bad_answer() -> None:
    """A reward of zero would push the unscored answer down and the correct answers of its group up."""
    zero = advantages([0, 0, 0], [1.0, 1.0, 0.0], True, True)
    assert zero[2] < -0.9
    assert advantages([0, 0, 0], padded([0, 0, 0], [1.0, 1.0, None]), True, True) == [0.0, 0.0, 0.0]


@pytest.fixture
def bench(tmp_path: Path, stub_path: Path) -> Any:
    """Return a function that makes a scoring bench of a scorer set, with a journal and without pauses."""
    from ratchet.trainers.job.nemo.reward import Bench

    return lambda scorer_set: Bench(scorer_set, tmp_path / "journal.jsonl", (0.0, 0.0))


def test_the_bench_scores_with_the_scorer_set_of_the_line(bench: Any, tmp_path: Path) -> None:
    scorer_set = build_scorer_set([RewardSettings(name="exact_match")])
    assert bench(scorer_set).rewards(*logs("yes", "no", "yes")) == [1.0, 0.0, 1.0]
    noted = json.loads((tmp_path / "journal.jsonl").read_text())
    assert noted.pop("seconds") >= 0
    assert noted == {"answers": 3, "abstained": 0}


class Failing:
    """Stand-in for a scorer set whose first `times` calls score no answer."""

    judges = ()

    def __init__(self, times: int) -> None:
        self.times = times

    def label_unseen(self, samples: Sequence[Any]) -> list[Label]:
        """Return labels without scores while it fails. Afterwards, score only the first answer."""
        self.times -= 1
        scores = [None] * len(samples) if self.times >= 0 else [1.0, None]
        return [Label(score, None, {"judge": score}, 0, frozenset({"judge"} if score is not None else ())) for score in scores]


def test_a_scorer_that_is_down_is_asked_again_and_then_the_run_fails(bench: Any) -> None:
    assert bench(Failing(2)).rewards(*logs("a", "b")) == [1.0, 1.0]
    with pytest.raises(Retryable, match="every scorer abstained on all 2 answers"):
        bench(Failing(3)).rewards(*logs("a", "b"))


def test_the_journal_has_the_tokens_of_judges_and_a_restarted_actor_counts_them(tmp_path: Path, stub_path: Path) -> None:
    """A later incarnation also counts those that the event logs of earlier ones report."""
    from ratchet.trainers.job.nemo.reward import Bench, spent

    with serving(Stub(model=lambda body: grade(5 if parts(body)["answer"] == "yes" else 1))) as stub:
        judge = RewardSettings(name="judge", options={"url": stub.url, "model": "m", "in_jobs": True})
        plan = make_plan(Method.GRPO, {}, scorers=build_scorer_set([judge]).versions, scorer_options={"judge": judge.options})
        journal, verdicts = tmp_path / "i2" / "work" / "rewards.jsonl", JobVerdicts()
        journal.parent.mkdir(parents=True)
        bench = Bench(planned_scorer_set(plan, verdicts), journal, (0.0,), verdicts=verdicts)
        assert bench.rewards(*logs("yes", "no", "yes")) == [1.0, 0.0, 1.0]
        assert bench.rewards(*logs("yes")) == [1.0]
        assert stub.requests == 3
    noted = [json.loads(line)["judge_tokens"] for line in journal.read_text().splitlines()]
    assert min(noted) > 0
    assert sum(noted) == verdicts.tokens
    assert spent(tmp_path, journal) == sum(noted)
    (tmp_path / "i1").mkdir()
    Events(tmp_path / "i1" / "events.jsonl", 1, 10).write("progress", 1, judge_tokens=40.0)
    assert spent(tmp_path, journal) == sum(noted) + 40
