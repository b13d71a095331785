"""Tests of suites of lm-eval with runs that the real one wrote (`tests/contract/test_lm_eval.py` records them)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ratchet.contracts.errors import ConfigError, Inconclusive, Retryable
from ratchet.contracts.evaluation import EvalReport, Result
from ratchet.contracts.fakes import FakeRewards, MemoryArtifacts, fake_model
from ratchet.contracts.loop import GateSettings, SuiteSettings
from ratchet.contracts.serving import Endpoint
from ratchet.gates.checks import Suites
from ratchet.gates.evaluation.evaluator import PairedEvaluator
from ratchet.gates.suites import lm_eval
from ratchet.gates.suites.lm_eval import LmEvalRun, LmEvalSuite, compared
from tests.unit.gates.scripted import Scripted, edition

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> LmEvalRun:
    return LmEvalRun.model_validate_json((RECORDED / f"{name}.json").read_bytes())


def settings(**changes: Any) -> SuiteSettings:
    more = {key: changes.pop(key) for key in ("margin", "passes", "max_tokens", "temperature") if key in changes}
    return SuiteSettings.model_validate({"lm_eval": {"task": "even", **changes}, **more})


def report_of(old: LmEvalRun, new: LmEvalRun, given: SuiteSettings) -> Any:
    assert given.lm_eval is not None
    return compared("own", given, given.lm_eval, (old, new), MemoryArtifacts(), 0.95)


def changed(run: LmEvalRun, change: Callable[[dict[str, Any]], dict[str, Any]]) -> LmEvalRun:
    return run.model_copy(update={"rows": tuple(row.model_copy(update=change(row.model_dump())) for row in run.rows)})


class Addressed(Scripted):
    """A model with an address."""

    def __init__(self, tag: str) -> None:
        super().__init__(lambda _: "yes")
        self.endpoint = Endpoint(tag=tag, url="http://127.0.0.1:1", model="m")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the process of lm-eval by the recorded runs, and return the orders that it gets."""
    orders: list[dict[str, Any]] = []

    def result(_python: str, order: dict[str, Any], _seconds: float, _alive: Any) -> dict[str, Any]:
        orders.append(order)
        found = json.loads((RECORDED / ("constant.json" if len(orders) == 2 else "right.json")).read_text())
        return {**found, "kind": "asked"}

    monkeypatch.setattr(lm_eval, "_result", result)
    return orders


def evaluated(artifacts: MemoryArtifacts, **changes: Any) -> EvalReport:
    gate = GateSettings(suites={"own": settings(**changes)}, looks=1)
    evaluator = PairedEvaluator(artifacts, FakeRewards(), gate)
    sides = [(fake_model(name), Addressed(f"v-{name}")) for name in ("old", "new")]
    return evaluator.evaluate(edition(artifacts, 60), sides[0], sides[1], lambda *_: None, 0.95)


def test_the_result_is_part_of_the_report_and_of_the_check(runs: list[dict[str, Any]]) -> None:
    report = evaluated(MemoryArtifacts())
    assert [order["url"] for order in runs] == ["http://127.0.0.1:1"] * 2
    [found] = report.suites
    assert (found.count.asked, found.count.clusters) == (40, 20)
    verdict = Suites(GateSettings(suites={"own": settings()})).check(report)
    assert verdict.result is Result.FAIL
    assert "own (lm-eval 0.4.13, even exact_match (none)): 100.0% → 50.0% (n 20)" in verdict.reason


def test_a_repeat_asks_nothing_again(runs: list[dict[str, Any]]) -> None:
    artifacts = MemoryArtifacts()
    first = evaluated(artifacts)
    assert (evaluated(artifacts).suites, len(runs)) == (first.suites, 2)
    evaluated(artifacts, few_shot=3)
    assert len(runs) == 4, "another task is another run"


def test_documents_of_a_group_are_one_observation() -> None:
    found = report_of(recorded("right"), recorded("constant"), settings(group="topic"))
    assert (found.count.clusters, found.comparison.n) == (20, 20)
    alone = [changed(recorded(name), lambda _: {"group": None}) for name in ("right", "constant")]
    assert report_of(alone[0], alone[1], settings()).comparison.n == 40


def test_only_settings_that_the_suite_has_change_the_generation(runs: list[dict[str, Any]]) -> None:
    evaluated(MemoryArtifacts())
    assert runs[-1]["generation"] == {}
    evaluated(MemoryArtifacts(), temperature=0.5, max_tokens=64)
    assert runs[-1]["generation"] == {"temperature": 0.5, "do_sample": True, "max_gen_toks": 64}


def test_one_metric_and_one_filter_decide() -> None:
    run = recorded("right")
    two = changed(run, lambda row: {"scores": {"all": None, "f1": 0.4, **row["scores"]}})
    both = two.model_copy(update={"rows": (*two.rows, *changed(two, lambda _: {"filter": "other", "scores": {"f1": 0.0}}).rows)})
    assert report_of(both, both, settings(metric="exact_match")).comparison.champion == 1.0
    assert report_of(both, both, settings(metric="f1", passes=0.4)).comparison.champion == 1.0
    assert report_of(both, both, settings(metric="f1", passes=0.5)).comparison.champion == 0.0
    assert report_of(both, both, settings(filter="other", passes=0.1)).comparison.champion == 0.0
    for given, said in (
        (settings(), "all of the task even is no number from 0 to 1 for each document; set metric to one of exact_match, f1"),
        (settings(metric="bleu"), "has no metric 'bleu'; it has all, exact_match, f1"),
        (settings(filter="flexible"), "has no filter 'flexible'; it has none, other"),
    ):
        with pytest.raises(ConfigError, match=said):
            report_of(both, both, given)


def test_models_that_were_asked_otherwise_are_not_compared() -> None:
    other = changed(recorded("right"), lambda row: {"target": row["target"] + "!"})
    with pytest.raises(Inconclusive, match="were not asked the same documents"):
        report_of(recorded("right"), other, settings())


def test_a_model_without_an_address_and_a_program_that_is_missing_are_said(tmp_path: Path) -> None:
    given = settings(python="no-such-python")
    assert given.lm_eval is not None
    suite = LmEvalSuite("own", given, given.lm_eval, tmp_path, MemoryArtifacts())
    with pytest.raises(Retryable, match=r"gate\.suites\.own\.lm_eval\.python: there is no program 'no-such-python'"):
        suite.look()
    side = (fake_model("old"), Scripted(lambda _: "yes"))
    with pytest.raises(ConfigError, match="the client of the champion has no address"):
        suite.ask(edition(MemoryArtifacts()), side, side, lambda *_: None, 0.95)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "set either file or lm_eval"),
        ({"file": "x", "lm_eval": {"task": "t"}, "reward": {"name": "exact_match"}}, "set either file or lm_eval"),
        ({"file": "x"}, "needs a reward"),
        ({"lm_eval": {"task": "t"}, "reward": {"name": "exact_match"}}, "scores the answers itself; remove reward"),
        ({"lm_eval": {"task": "t"}, "samples": 2, "temperature": 1.0}, "asks each document once"),
        ({"lm_eval": {"task": ""}}, "at least 1 character"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SuiteSettings.model_validate(given)
