"""Tests of the suites that `ratchet check` looks at."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.contracts.loop import GateSettings
from ratchet.flows.cli.setup.suite_check import suites
from ratchet.gates.suites.lm_eval import LmEvalLook, LmEvalSuite
from tests.simulation.simulated_line import Scenario, SimulatedLine


def checked(folder: Path, reference: str | None, reward: str, some: str | None = None) -> list[tuple[str, str]]:
    """Return the findings about a suite of twenty tasks with this reference, the last one with another."""
    rows = [{"prompt": f"task {n}", **({"reference": reference} if reference is not None else {})} for n in range(20)]
    if some is not None:
        rows[-1]["reference"] = some
    (folder / "suite.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    context = SimulatedLine(Scenario(seed=1)).context
    gate = GateSettings.model_validate({"suites": {"own": {"file": "suite.jsonl", "reward": {"name": reward}}}})
    found = suites(replace(context, folder=folder, loop=context.loop.model_copy(update={"gate": gate})))
    return [(level, text) for level, _, text in found]


@pytest.mark.parametrize(
    ("reference", "reward", "some", "level", "told"),
    [
        ("4", "final_number", None, "ok", "suite own: 20 tasks, pass@1, scored by final_number"),
        (None, "final_number", "4", "error", "final_number cannot score 19 of 20 tasks; add their references"),
        (None, "final_number", None, "error", "cannot score 20 of 20 tasks"),
        ("x", "user_feedback", None, "error", "user_feedback needs feedback, which new answers do not have"),
        ("x", "nosuch", None, "error", "nosuch"),
    ],
)
def test_a_suite_that_cannot_be_scored_is_an_error(
    tmp_path: Path, reference: str | None, reward: str, some: str | None, level: str, told: str
) -> None:
    [(found, text)] = checked(tmp_path, reference, reward, some)
    assert found == level
    assert told in text


def test_a_task_of_lm_eval_is_loaded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimulatedLine(Scenario(seed=1, people="auto")).context
    gate = GateSettings.model_validate({"suites": {"own": {"lm_eval": {"task": "even", "limit": 30}}}})
    context = replace(context, loop=context.loop.model_copy(update={"gate": gate}))
    for documents, groups, expected in (
        (30, 30, ("ok", "gate", "suite own: 30 documents of the task even, asked and scored by lm-eval")),
        (30, 20, ("ok", "gate", "suite own: 30 documents in 20 groups of the task even, asked and scored by lm-eval")),
        (
            30,
            15,
            ("error", "gate", "gate.suites.own: the task even has 30 documents in 15 groups; a comparison needs 20 groups"),
        ),
    ):
        found = LmEvalLook(version="0.4.13", documents={"even": documents}, groups={"even": groups})
        monkeypatch.setattr(LmEvalSuite, "look", lambda _, found=found: found)
        assert suites(context) == [expected]
    monkeypatch.undo()
    [finding] = suites(context)
    assert finding[0] == "error"
    assert "has no lm-eval" in finding[2]
