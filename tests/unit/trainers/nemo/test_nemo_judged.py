"""Tests of a judge that fails over HTTP, with a real local Ray.

Unscored answers get no advantage, are counted, and never count as bad answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec
from ratchet.contracts.loop import RewardSettings
from ratchet.rewards.scorer_set import build_scorer_set
from tests.unit.trainers.judge import Judge, verdict
from tests.unit.trainers.nemo.advantages import advantages, logs

pytestmark = pytest.mark.slow

PROMPTS, ANSWERS, STEPS = 4, 6, 2
BATCH = PROMPTS * ANSWERS


@pytest.mark.slow
def test_a_run_continues_without_the_unscored_answers(
    workshop: Any, job: Callable[..., JobSpec], judge: Judge, judged: tuple[RewardSettings, ...]
) -> None:
    """In the first batch, the judge is down for all answers. The actor asks again after its first pause."""
    judge.away = BATCH
    spec = job(rewards=judged, steps=STEPS, generations=ANSWERS)
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert (status.outcome, status.step) == (Outcome.DONE, STEPS), (status, workshop.log(spec))
    assert not judge.away
    assert len(judge.asked) == STEPS * BATCH
    rows = [json.loads(line) for line in (workshop.run_folder(spec) / "i1" / "answers.jsonl").read_text().splitlines()]
    batches = [rows[at : at + BATCH] for at in range(0, STEPS * BATCH, BATCH)]
    scores = [[verdict(row["answer"]) for row in batch] for batch in batches]
    for batch, own in zip(batches, scores, strict=True):
        judge_batch([row["prompt"] for row in batch], [row["reward"] for row in batch], own)
    first, second = (own.count(None) for own in scores)
    told = [event.data.get("abstained") for event in workshop.executor.events(spec.name) if event.kind == "progress"]
    both = (first + second) / (STEPS * BATCH)  # the journal may be ahead of the metrics that are read with it
    assert told in ([first / BATCH, second / BATCH], [both, None], [None, both])


def judge_batch(prompts: Sequence[str], rewards: Sequence[float], scores: Sequence[float | None]) -> None:
    """Check the rewards of one batch by the release's arithmetic.

    Scored answers keep their scores. Relative to the mean of their group, they have the advantage that they would have without the unscored
    answers. Unscored answers have no advantage.
    """
    numbers = [sorted(set(prompts)).index(prompt) for prompt in prompts]
    known = [at for at, score in enumerate(scores) if score is not None]
    assert 0 < len(known) < len(scores)
    assert [rewards[at] for at in known] == [scores[at] for at in known]
    unscored = [at for at, score in enumerate(scores) if score is None]
    for leave_one_out, normalise in product((False, True), repeat=2):
        found = advantages(numbers, rewards, leave_one_out, normalise)
        assert max(abs(found[at]) for at in unscored) < 1e-5
    found = advantages(numbers, rewards, False, False)
    alone = advantages([numbers[at] for at in known], [rewards[at] for at in known], False, False)
    assert [found[at] for at in known] == pytest.approx(alone, abs=1e-6)
    noughts = advantages(numbers, [score or 0.0 for score in scores], False, False)
    assert min(noughts[at] for at in unscored) < -0.2, "a reward of zero would count as a bad answer"


def test_a_bench_whose_judge_stays_down_fails_and_writes_no_journal(
    tmp_path: Path, stub_path: Path, judge: Judge, judged: tuple[RewardSettings, ...]
) -> None:
    from ratchet.trainers.job.nemo.reward import Bench

    journal = tmp_path / "journal.jsonl"
    bench = Bench(build_scorer_set(judged), journal, (0.0, 0.0))
    judge.away = 9
    with pytest.raises(Retryable, match="every scorer abstained on all 3 answers"):
        bench.rewards(*logs("yes", "no", "down"))
    assert not journal.exists()
    assert bench.rewards(*logs("yes", "no", "down")) == [1.0, 0.0, 0.5]
    noted = json.loads(journal.read_text())
    assert noted.pop("seconds") >= 0
    assert noted == {"answers": 3, "abstained": 1}
