"""Tests of losses that have added up, of which a candidate wins back a part."""

from __future__ import annotations

import pytest

from ratchet.contracts.evaluation import ChatRequest, EarlierAnswers, EvalReport
from ratchet.contracts.fakes import FakeRewards, MemoryArtifacts, fake_model
from ratchet.contracts.loop import GateSettings
from ratchet.gates.evaluation.evaluator import PairedEvaluator
from tests.unit.gates.scripted import Answer, Scripted, edition, name_of


def right_on(golden: int, held: bool) -> Answer:
    """A model that is right on `golden` of ten golden prompts, in each slice, and on all or none of the others."""

    def answer(request: ChatRequest) -> str:
        name = name_of(request)
        right = int(name[1:]) // 2 % 10 < golden if name.startswith("g") else held
        return "yes" if right else "no"

    return answer


@pytest.mark.parametrize(
    ("golden", "held", "parts"),
    [
        (8, True, {"golden", "slice:s0", "slice:s1"}),
        (7, True, {"golden", "slice:s0", "slice:s1"}),
        (9, False, set()),
    ],
    ids=["it only wins elsewhere", "it loses more", "it wins back a half"],
)
def test_only_golden_answers_win_back_a_loss(golden: int, held: bool, parts: set[str]) -> None:
    artifacts, settings = MemoryArtifacts(), GateSettings(looks=1)
    held_out = edition(artifacts, held=60, golden=400)
    evaluator = PairedEvaluator(artifacts, FakeRewards(), settings)

    def evaluate(old: Answer, new: Answer, earlier: tuple[EarlierAnswers, ...] = ()) -> EvalReport:
        sides = (fake_model("old"), Scripted(old)), (fake_model("new"), Scripted(new))
        return evaluator.evaluate(held_out, *sides, lambda *_: None, 0.95, earlier)

    best = evaluate(right_on(10, held=False), right_on(10, held=False))
    report = evaluate(right_on(8, held=False), right_on(golden, held), (EarlierAnswers(version="v-best", answers=best.answers),))
    assert {one.comparison.name for one in report.eroded} == parts
