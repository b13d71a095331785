"""Tests of suites: from the file of tasks and the answers of simulated models to the verdict of the gate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.evaluation import CheckResult, EvalReport, Result
from ratchet.contracts.fakes import FakeRewards, MemoryArtifacts, fake_model
from ratchet.contracts.loop import GateSettings, RewardSettings, SuiteSettings
from ratchet.gates.checks import Suites
from ratchet.gates.evaluation.evaluator import PairedEvaluator
from ratchet.gates.suites.asking import pass_at_k
from ratchet.gates.suites.tasks import read_suite
from ratchet.rewards.scorer_set import build_scorer_set
from tests.unit.gates.scripted import Scripted, edition, name_of

EXACT = RewardSettings(name="exact_match")
Answer = Callable[[Any], str | None]


def suite_file(folder: Path, tasks: int = 200, group: int = 1) -> str:
    """Write tasks whose right answer is their number; `group` of them belong together."""
    rows = [
        {"prompt": f"task {n}", "reference": str(n), "id": f"t{n}", **({"group": f"g{n // group}"} if group > 1 else {})}
        for n in range(tasks)
    ]
    (folder / "suite.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "suite.jsonl"


def solves(share: float, missing: int = 0, tasks: int = 200) -> Answer:
    """Return a model that solves so large a share of the tasks, and does not answer the first `missing` ones."""

    def answer(request: Any) -> str | None:
        name = name_of(request)
        if not name.startswith("task "):
            return "yes"
        number = int(name.removeprefix("task "))
        if number < missing:
            return None
        return str(number) if number >= (1 - share) * tasks else "wrong"

    return answer


def judged(folder: Path, old: Answer, new: Answer, **settings: Any) -> tuple[EvalReport, CheckResult, MemoryArtifacts]:
    suite = SuiteSettings.model_validate({"file": "suite.jsonl", "reward": EXACT, **settings})
    gate, artifacts = GateSettings(suites={"math": suite}, looks=1), MemoryArtifacts()
    evaluator = PairedEvaluator(artifacts, FakeRewards(), gate, folder=folder, suites={"math": build_scorer_set([EXACT])})
    sides = [(fake_model(name), Scripted(one)) for name, one in (("old", old), ("new", new))]
    report = evaluator.evaluate(edition(artifacts, 60), sides[0], sides[1], lambda *_: None, 0.95)
    return report, Suites(gate).check(report), artifacts


def test_a_candidate_that_solves_as_much_passes(tmp_path: Path) -> None:
    suite_file(tmp_path)
    report, found, _ = judged(tmp_path, solves(0.8), solves(0.8))
    assert found.result is Result.PASS
    assert found.reason.startswith("math, pass@1: 80.0% → 80.0% (n 200)")
    assert report.suites[0].count.asked == 200


@pytest.mark.parametrize(
    ("share", "margin", "result"),
    [(0.6, 0.05, Result.FAIL), (0.77, 0.05, Result.INCONCLUSIVE), (0.77, 0.2, Result.PASS), (0.95, 0.05, Result.PASS)],
)
def test_a_loss_is_judged_by_the_margin_of_the_suite(tmp_path: Path, share: float, margin: float, result: Result) -> None:
    suite_file(tmp_path)
    assert judged(tmp_path, solves(0.8), solves(share), margin=margin)[1].result is result


def test_tasks_that_the_candidate_alone_does_not_answer_are_not_solved(tmp_path: Path) -> None:
    suite_file(tmp_path)
    report, found, _ = judged(tmp_path, solves(1.0), solves(1.0, missing=3), margin=0.3)
    assert report.suites[0].comparison is not None
    assert report.suites[0].comparison.candidate == pytest.approx(197 / 200)
    assert report.suites[0].count.candidate_failed == 3
    assert found.result is Result.PASS


def test_many_missing_answers_are_no_evidence(tmp_path: Path) -> None:
    suite_file(tmp_path)
    for old, new in ((solves(1.0, missing=50), solves(1.0)), (solves(0.0), solves(0.0, missing=50))):
        found = judged(tmp_path, old, new)[1]
        assert found.result is Result.INCONCLUSIVE
        assert "tasks without an answer or a score" in found.reason


def test_variants_of_one_question_are_one_observation(tmp_path: Path) -> None:
    """With 200 tasks in 25 groups, a loss of 5 % is not ruled out as with 200 independent tasks."""
    suite_file(tmp_path)
    alone = judged(tmp_path, solves(0.8), solves(0.8), margin=0.05)
    suite_file(tmp_path, group=8)
    grouped = judged(tmp_path, solves(0.8), solves(0.8), margin=0.05)
    narrow, wide = (one[0].suites[0].comparison for one in (alone, grouped))
    assert narrow is not None
    assert wide is not None
    assert (narrow.n, wide.n) == (200, 25)
    assert wide.difference.low < narrow.difference.low
    assert grouped[1].result is Result.INCONCLUSIVE


def test_the_answers_are_kept_with_their_tasks(tmp_path: Path) -> None:
    suite_file(tmp_path)
    report, _, artifacts = judged(tmp_path, solves(0.5), solves(1.0), samples=2, temperature=1.0)
    rows = [json.loads(line) for line in artifacts.get(report.suites[0].answers).splitlines()]
    assert len(rows) == 400
    assert rows[0]["id"] == "t0"
    assert (rows[0]["champion"]["reward"], rows[0]["candidate"]["reward"]) == (0.0, 1.0)


def test_without_suites_nothing_is_asked_and_the_check_passes(tmp_path: Path) -> None:
    gate, artifacts = GateSettings(looks=1), MemoryArtifacts()
    sides = [(fake_model(name), Scripted(solves(1.0))) for name in ("old", "new")]
    report = PairedEvaluator(artifacts, FakeRewards(), gate, folder=tmp_path).evaluate(
        edition(artifacts, 60), *sides, lambda *_: None, 0.95
    )
    assert report.suites == ()
    assert Suites(gate).check(report).result is Result.PASS


def test_a_suite_that_was_not_asked_is_no_evidence(tmp_path: Path) -> None:
    suite_file(tmp_path)
    report = judged(tmp_path, solves(1.0), solves(1.0))[0]
    both = {name: SuiteSettings(file="suite.jsonl", reward=EXACT) for name in ("math", "code")}
    found = Suites(GateSettings(suites=both)).check(report)
    assert found.result is Result.INCONCLUSIVE
    assert "suite:code: its tasks were not asked" in found.reason


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_without_replacement_that_contain_a_pass(drawn: tuple[int, int, int]) -> None:
    samples, passed, k = drawn
    failing = 1.0
    for n in range(k):
        failing *= max(0, samples - passed - n) / (samples - n)
    assert pass_at_k(samples, passed, k) == pytest.approx(1 - failing)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', "line 21: .*set either prompt or messages"),
        ("{}", "line 21: .*set either prompt or messages"),
        ('{"prompt": "task 3", "id": "again"}', "line 21: the same question is also that of t3"),
        ('{"prompt": "new", "id": "t3"}', "line 21: the id 't3' is also that of t3"),
        ("not json", "line 21"),
    ],
)
def test_a_task_that_cannot_be_asked_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / suite_file(tmp_path, 20)
    path.write_text(path.read_text() + text + "\n")
    with pytest.raises(ConfigError, match=problem):
        read_suite(path, "math")


def test_too_few_groups_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 5 groups of tasks; a comparison needs 20"):
        read_suite(tmp_path / suite_file(tmp_path, 40, group=8), "math")
    with pytest.raises(ConfigError, match=r"gate\.suites\.math\.file: .*none\.jsonl cannot be read"):
        read_suite(tmp_path / "none.jsonl", "math")


@pytest.mark.parametrize("change", [{"k": 4}, {"samples": 4}, {"margin": 0}, {"passes": 0}])
def test_settings_that_contradict_each_other_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SuiteSettings.model_validate({"file": "x", "reward": EXACT, **change})
