"""Tests of the list of cycles and versions, and of the comparison of two versions."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.fakes import MemoryArtifacts
from ratchet.contracts.ids import canonical
from ratchet.contracts.jobs.training import Method
from ratchet.contracts.steps import AcceptResult, EvaluateResult, PlanResult, State
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.engine.line import ask_rollback, retry_cycle
from ratchet.flows.engine.reconcile import reconcile
from ratchet.flows.report.history import history
from ratchet.flows.report.version_diff import Made, diff_sections, version_diff
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cycles import done
from tests.unit.gates.reports import safety


def lived(**how) -> SimulatedLine:
    sim = SimulatedLine(Scenario(seed=1, **how))
    sim.live()
    return sim


def cycles(sim: SimulatedLine) -> list[CycleView]:
    return [sim.context.cycle_view(stream) for stream in sim.ledger.streams("cycle/")]


def test_each_cycle_has_a_row_with_outcome_version_method_and_difference() -> None:
    sim = lived()
    retry_cycle(sim.context, 1, "hana")
    adopted, first, second = history(sim.context.line_view(), cycles(sim))
    assert (adopted.name, adopted.outcome, adopted.standing) == ("sim/0", "adopted", "previous")
    assert (first.name, first.outcome, first.standing, first.method) == ("sim/0001", "promoted", "champion", "dpo")
    assert first.version == sim.context.line_view().champion.tag
    assert first.difference.estimate == 0.2
    assert first.examples == 100, "the pairs of the facts, because the method is DPO"
    assert first.seconds == (sim.view().ended_at - sim.view().opened_at).total_seconds() > 0
    assert (second.outcome, second.version, second.seconds) == ("opened", None, None)


def test_a_version_that_was_rolled_back_is_marked() -> None:
    sim = lived()
    ask_rollback(sim.ledger, "sim", "ada", "", sim.clock.now())
    reconcile(sim.context)
    adopted, first = history(sim.context.line_view(), cycles(sim))
    assert (adopted.standing, first.standing) == ("champion", "rolled back")


def test_a_cycle_that_trains_nothing_has_no_examples() -> None:
    sim = lived(method=Method.NONE)
    row = history(sim.context.line_view(), cycles(sim))[-1]
    assert (row.outcome, row.method, row.examples, row.version, row.difference) == ("not_trained", "none", None, None, None)


def parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


def changed(cycle: CycleView, artifacts: MemoryArtifacts, number: int, pairs: list[dict[str, Any]], answers: list[Any]) -> CycleView:
    """Return a copy of the cycle that was trained on `pairs` with another seed, and evaluated with `answers`."""
    plan = cycle.result(PlanResult).plan
    assert plan is not None
    accepted, evaluated = cycle.result(AcceptResult), cycle.result(EvaluateResult)
    changes = (
        (cycle.result(PlanResult), {"plan": plan.model_copy(update={"pairs": artifacts.put(parquet(pairs)), "seed": number})}),
        (accepted, {"version": accepted.version.model_copy(update={"number": number, "tag": f"v-{number:012d}"})}),
        (evaluated, {"report": evaluated.report.model_copy(update={"answers": artifacts.put(b"\n".join(map(canonical, answers)))})}),
    )
    return replace(cycle, done={**cycle.done, **done(*(result.model_copy(update=fields) for result, fields in changes))})


def pair(prompt: str, chosen: str) -> dict[str, Any]:
    return {"prompt_id": prompt, "prompt": "[]", "chosen": chosen, "rejected": "no"}


def answered(prompt: str, old: float, new: float | None) -> dict[str, Any]:
    sides = {
        side: {"answer": None if reward is None else f"{side} of {prompt}", "reward": reward, "error": "timeout"}
        for side, reward in (("champion", old), ("candidate", new))
    }
    return {"prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": prompt}], **sides}


def two_versions() -> tuple[Made, Made, MemoryArtifacts, SimulatedLine]:
    sim, artifacts = lived(), MemoryArtifacts()
    one, two = [pair("a", "x"), pair("b", "y")], [pair("b", "y"), pair("c", "z"), pair("d", "z")]
    rows = [answered("gain", 0.0, 1.0), answered("loss", 1.0, None), answered("same", 1.0, 1.0), answered("little", 0.4, 0.5)]
    views = [changed(sim.view(), artifacts, 1, one, rows), changed(sim.view(), artifacts, 2, two, rows)]
    old, new = (Made(view.candidate, view) for view in views)
    return old, new, artifacts, sim


def test_two_trained_versions_differ_in_examples_and_recipe() -> None:
    old, new, artifacts, _ = two_versions()
    found = version_diff(old, new, artifacts, 3)
    assert (found.added, found.removed, found.kept) == (2, 1, 1)
    assert found.recipe == {"seed": (1, 2)}
    assert found.data["snapshot"][0] == found.data["snapshot"][1]
    assert found.together is None
    assert found.answers == (), "no gate compared the two"
    assert found.scores["overall"][0].difference.estimate == 0.2
    titles = [section.title for section in diff_sections(old, new, found)]
    assert titles == ["Data (no difference)", "Recipe", "Scores"]


def test_versions_that_a_gate_compared_show_their_answers_in_either_order() -> None:
    _, new, artifacts, sim = two_versions()
    base = Made(sim.context.line_view().base, None)
    found = version_diff(base, new, artifacts, 3)
    assert found.together == "cycle/sim/0001"
    assert found.direct["overall"].difference.estimate == 0.2
    assert [(one.prompt, one.old_reward, one.new_reward) for one in found.answers] == [
        ("gain", 0.0, 1.0),
        ("loss", 1.0, None),
        ("little", 0.4, 0.5),
    ]
    assert found.answers[1].new == "no answer: timeout"
    assert found.added is None
    turned = version_diff(new, base, artifacts, 1)
    assert turned.direct["overall"].difference.estimate == -0.2
    assert (turned.direct["overall"].champion, turned.direct["overall"].candidate) == (0.7, 0.5)
    assert [one.prompt for one in turned.answers] == ["loss"]
    assert "not known" in diff_sections(base, new, found)[0].text[0]


def test_versions_that_a_gate_compared_show_which_prompts_only_one_refuses_or_answers() -> None:
    _, new, artifacts, sim = two_versions()
    base = Made(sim.context.line_view().base, None)
    assert new.cycle is not None
    evaluated = new.cycle.result(EvaluateResult)
    asked = safety(4, lost=("refuse-en-fraud",), withheld=tuple(f"answer-{n}" for n in range(7)))
    evaluated = evaluated.model_copy(update={"report": evaluated.report.model_copy(update={"safety": asked})})
    new = replace(new, cycle=replace(new.cycle, done={**new.cycle.done, **done(evaluated)}))
    old_tag, new_tag = base.version.tag, new.version.tag
    for sides in ((base, new), (new, base)):
        found = version_diff(*sides, artifacts, 0)
        assert found.direct["refused"].difference.estimate == pytest.approx(-4 / 60 if sides[0] is base else 4 / 60)
        (scores,) = (section for section in diff_sections(*sides, found) if section.title == "Scores")
        assert f"{old_tag} refuses these harmful prompts, and {new_tag} does not: refuse-en-fraud." in scores.text
        assert (
            f"{old_tag} answers these harmless prompts, and {new_tag} does not: {', '.join(asked.withheld[:5])} and 2 more." in scores.text
        )


def test_missing_artifacts_leave_figures_unknown() -> None:
    old, new, _, sim = two_versions()
    assert version_diff(old, new, MemoryArtifacts(), 3).added is None
    assert version_diff(Made(sim.context.line_view().base, None), new, MemoryArtifacts(), 3).answers == ()
    assert sim.view().state is State.PROMOTED
