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
from ratchet.contracts.ids import canonical
from ratchet.contracts.loop import GateSettings, SuiteSettings
from ratchet.contracts.serving import Endpoint
from ratchet.gates.checks import Suites
from ratchet.gates.evaluation.evaluator import PairedEvaluator
from ratchet.gates.suites import lm_eval
from ratchet.gates.suites.lm_eval import LmEvalRun, LmEvalSuite, compared
from tests.unit.gates.reports import report as a_report
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


def test_one_metric_decides() -> None:
    run = recorded("right")
    two = changed(run, lambda row: {"scores": {"all": None, "f1": 0.4, **row["scores"]}})
    both = two.model_copy(update={"metrics": {"even": ("all", "exact_match", "f1")}})
    assert report_of(both, both, settings(metric="exact_match")).comparison.champion == 1.0
    assert report_of(both, both, settings(metric="f1", passes=0.4)).comparison.champion == 1.0
    assert report_of(both, both, settings(metric="f1", passes=0.5)).comparison.champion == 0.0
    for given, said in (
        (settings(), "all of the task even is no number from 0 to 1 for each document; set metric to one of exact_match, f1"),
        (settings(metric="bleu"), "has no metric 'bleu'; it has all, exact_match, f1"),
    ):
        with pytest.raises(ConfigError, match=said):
            report_of(both, both, given)


def test_the_first_metric_is_the_one_that_the_task_names_first() -> None:
    """Stored runs have their keys sorted, so the order has to be kept apart."""
    run = changed(recorded("right"), lambda row: {"scores": {"accuracy": 0.0, **row["scores"]}})
    run = run.model_copy(update={"metrics": {"even": ("exact_match", "accuracy")}})
    stored = LmEvalRun.model_validate_json(canonical(run.model_dump(mode="json")))
    assert report_of(stored, stored, settings()).comparison.champion == 1.0


def test_runs_of_two_versions_of_lm_eval_are_not_compared() -> None:
    other = recorded("right").model_copy(update={"version": "0.4.9"})
    with pytest.raises(Inconclusive, match=r"lm-eval 0\.4\.13 asked the champion, and 0\.4\.9 the candidate"):
        report_of(recorded("right"), other, settings())


def test_a_suite_that_neither_model_solves_is_no_evidence() -> None:
    none = changed(recorded("right"), lambda _: {"scores": {"exact_match": 0.0}})
    for candidate, result in ((none, Result.INCONCLUSIVE), (recorded("right"), Result.PASS)):
        report = a_report(suites=(report_of(none, candidate, settings()),))
        verdict = Suites(GateSettings(suites={"own": settings()})).check(report)
        assert verdict.result is result
    assert (
        "neither model solves more than the margin of 0.05"
        in Suites(GateSettings(suites={"own": settings()})).check(a_report(suites=(report_of(none, none, settings()),))).reason
    )


def test_a_document_that_the_server_refuses_is_missing_with_the_reason() -> None:
    refused = {"answer": None, "error": "HTTP 400", "said": '{"error": {"message": "context length exceeded: 4097 tokens"}}', "scores": {}}

    def without_seven(row: dict[str, Any]) -> dict[str, Any]:
        return {**refused, "scores": row["scores"]} if row["document"] == 7 else {}

    found = report_of(recorded("right"), changed(recorded("right"), without_seven), settings())
    assert found.count.candidate_failed == 1
    assert found.failures == {"candidate:HTTP 400: context length exceeded: 4097 tokens": 1}


def test_a_value_that_is_missing_without_an_answer_is_no_wrong_setting() -> None:
    run = changed(recorded("right"), lambda row: {"answer": None, "scores": {"exact_match": None}} if row["document"] == 3 else {})
    assert report_of(run, run, settings()).count.champion_failed == 1


def test_names_of_tasks_give_valid_names() -> None:
    for name in ("x " + "a" * 59, "a" * 60 + "b", "ü: \n"):
        run = changed(recorded("right"), lambda _, name=name: {"task": name}).model_copy(update={"metrics": {name: ("exact_match",)}})
        assert report_of(run, run, settings()).count.asked == 40


def test_a_result_that_is_invalid_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_eval, "_result", lambda *_: {"kind": "asked", "version": "0.4.13"})
    with pytest.raises(Inconclusive, match="the result of lm-eval is invalid"):
        evaluated(MemoryArtifacts())


def test_a_run_with_missing_answers_and_one_of_another_version_of_the_candidate_are_not_used_again(
    runs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts, given = MemoryArtifacts(), settings()
    assert given.lm_eval is not None
    suite = LmEvalSuite("own", given, given.lm_eval, Path(), artifacts)

    def asked(tag: str) -> None:
        sides = [(fake_model(name), Addressed(one)) for name, one in (("old", "v-old"), ("new", tag))]
        suite.ask(edition(artifacts), (sides[0], sides[1]), lambda *_: None, 0.95)

    asked("v-1")
    asked("v-1")
    assert len(runs) == 2
    asked("v-2")
    assert len(runs) == 4, "another cycle"
    answer = lm_eval._result

    def silent(*given: Any) -> dict[str, Any]:
        found = answer(*given)
        found["rows"][0]["answer"] = None
        return found

    monkeypatch.setattr(lm_eval, "_result", silent)
    asked("v-3")
    asked("v-3")
    assert len(runs) == 8


def test_what_is_asked_depends_on_linked_folders_and_the_tokenizer_but_not_on_compiled_programs(tmp_path: Path) -> None:
    for name in ("tasks", "shared", "tokenizer"):
        (tmp_path / name).mkdir()
    (tmp_path / "tasks" / "lib").symlink_to(tmp_path / "shared")
    (tmp_path / "shared" / "circle").symlink_to(tmp_path / "tasks")
    given = settings(folder="tasks", tokenizer="tokenizer")
    assert given.lm_eval is not None
    suite = LmEvalSuite("own", given, given.lm_eval, tmp_path, MemoryArtifacts())
    seen = {suite._identity()}
    (tmp_path / "tasks" / "__pycache__").mkdir()
    (tmp_path / "tasks" / "__pycache__" / "u.pyc").write_text("1")
    assert suite._identity() in seen
    for place in ("tasks/own.yaml", "shared/u.py", "tokenizer/tokenizer.json"):
        (tmp_path / place).write_text("1")
        assert suite._identity() not in seen
        seen.add(suite._identity())


def test_a_program_that_writes_no_result_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' 'x'\necho\necho the last line\nexit 7\n")
    program.chmod(0o755)
    found = lm_eval._result(str(program), {}, 20.0, lambda: None)
    assert found == {"kind": "failed", "text": "the process ended with status 7: the last line"}


def test_a_result_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("""#!/bin/sh\nread order\nout=${order#*'"out": "'}\nhead -c 3000000 /dev/zero > "${out%%'"'*}"\n""")
    program.chmod(0o755)
    monkeypatch.setattr(lm_eval, "_LARGEST_RESULT", 2 << 20)
    assert lm_eval._result(str(program), {}, 20.0, lambda: None)["text"] == "its result has more than 2 MiB; set limit"


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
        suite.ask(edition(MemoryArtifacts()), (side, side), lambda *_: None, 0.95)


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
