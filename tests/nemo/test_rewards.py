"""Scorers that abstain, raise, hang, are slow or ask a model, in the reward actor of a real run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.loop import RewardSettings
from tests.judge_stub import Stub, grade, parts, serving
from tests.nemo.comparison import summary
from tests.nemo.runs import Bench
from tests.unit.trainers.judge import install

SOURCE = Path(__file__).with_name("unreliable.py")


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the scorer for this process and for the jobs."""
    folder = tmp_path / "site"
    install(folder, "1.0", source=SOURCE, scorer="Unreliable")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    return folder


def unreliable(way: str, **options: Any) -> tuple[RewardSettings, ...]:
    return (RewardSettings(name="unreliable", options={"way": way, **options}),)


def test_answers_without_a_score_are_counted_and_training_continues(bench: Bench, told: dict[str, Any]) -> None:
    run = bench.job(develop=False, rewards=unreliable("abstain")).done()
    figures = run.figures()
    told |= summary(figures) | {"abstained": [known["abstained"] for known in figures.values()]}
    assert all(0 < known["abstained"] < 1 for known in figures.values())
    assert all((16 * known["abstained"]).is_integer() for known in figures.values())
    assert figures[6]["reward"] > figures[1]["reward"]


def test_a_scorer_that_raises_abstains_and_ends_the_run_if_it_is_the_only_one(bench: Bench, told: dict[str, Any]) -> None:
    """The exception itself is in the log of the job."""
    run = bench.job(develop=False, rewards=unreliable("raise", after=2))
    status = run.failed()
    told |= {"steps": len(run.figures()), "reason": status.reason[-90:]}
    assert status.outcome == Outcome.FAILED
    assert "every scorer abstained on all 16 answers" in status.reason
    assert "the scorer's database is gone" in (run.work().parent / "trainer.log").read_text()
    assert list(run.figures()) == [1, 2]


def test_a_scorer_that_hangs_is_a_stall(bench: Bench, told: dict[str, Any]) -> None:
    health = {"stall_times": 5.0, "stall_least_seconds": 15.0}
    run = bench.job(develop=False, steps=8, save_every=8, rewards=unreliable("sleep", after=5, seconds=3600.0), health=health)
    status = run.failed()
    told |= {"steps": len(run.figures()), "reason": status.reason}
    assert status.outcome == Outcome.FAILED
    assert "the run is stalled" in status.reason
    assert status.proposal is not None
    assert status.proposal.rule == "stall"
    assert list(run.figures()) == [1, 2, 3, 4, 5]


def test_the_time_of_a_slow_scorer_is_a_figure(bench: Bench, told: dict[str, Any]) -> None:
    run = bench.job(develop=False, steps=3, save_every=3, rewards=unreliable("sleep", seconds=2.0)).done()
    figures = run.figures()
    told |= {"reward_seconds": [round(known["reward_seconds"], 2) for known in figures.values()]}
    assert all(2.0 <= known["reward_seconds"] < known["generation_seconds"] for known in figures.values())


def test_a_judge_is_the_reward_and_its_key_is_in_no_file_of_the_job(bench: Bench, told: dict[str, Any], tmp_path: Path) -> None:
    """The judge is a real server whose model is simulated. The actor of the first incarnation and that of the second share one budget."""
    key, file = "sk-secret-of-the-judge", tmp_path / "judge.key"
    file.write_text(key)
    with serving(Stub(model=lambda body: grade(5 if "yes" in parts(body)["answer"].split() else 1), key=key)) as stub:
        options = {"url": stub.url, "model": "m", "in_jobs": True, "key_file": str(file), "job_budget": 200_000}
        run = bench.job(develop=False, steps=8, save_every=2, rewards=(RewardSettings(name="judge", options=options),))
        run.submit()
        run.preempt(2)
        run.submit(2)
        status = run.wait()
        assert status.outcome == Outcome.DONE, (status, run.log())
        figures = run.figures()
        tokens = [known["judge_tokens"] for known in figures.values()]
        told |= summary(figures) | {"requests": stub.requests, "judge_tokens": [min(tokens), max(tokens)]}
        assert min(tokens) > 100
        assert stub.requests <= 8 * 16 + 2 * 16 + 2  # an interrupted step is asked again, and each incarnation asks once before it trains
        assert figures[8]["reward"] > figures[1]["reward"]
    folder = run.work().parents[1]
    assert not [path for path in folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
