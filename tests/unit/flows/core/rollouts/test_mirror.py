"""Tests of the mirrored prompts of a rollout, as its rows tell them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ratchet.contracts.cycle import Entry
from ratchet.contracts.errors import Permanent
from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.schema import SCHEMA_VERSION
from ratchet.contracts.serving import SequentialTest, StepJudgement, StepResult
from ratchet.flows.core.rollouts.mirror import BATCH, batches, is_wanted, left, mirrored, turns

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(kind: str, key: str, data: dict[str, Any]) -> Entry:
    return Entry(
        stream="rollout/l/0001",
        seq=1,
        kind=kind,
        key=key,
        data=data,
        at=NOW,
        epoch=0,
        previous="0" * 64,
        hash="0" * 64,
        schema_version=SCHEMA_VERSION,
    )


def begun(number: int, *prompts: tuple[str, str], secret: str = "s") -> Entry:
    return row("mirror_intended", str(number), {"secret": secret, "prompts": [list(one) for one in prompts]})


def ended(number: int, *pairs: tuple[str, float], failed: int = 0, unscored: int = 0) -> Entry:
    result = {"asked": len(pairs) + failed + unscored, "failed": failed, "unscored": unscored, "pairs": [list(one) for one in pairs]}
    return row("mirrored", str(number), {"mirrored": result})


def test_complete_batches_are_evidence_and_the_open_one_is_not() -> None:
    known = batches([begun(1, ("a", "p"), ("b", "q")), ended(1, ("p", 0.5), failed=1), begun(2, ("c", "p"))])
    found = mirrored(known)
    assert (found.asked, found.failed, found.pairs) == (2, 1, (("p", 0.5),))
    assert known[-1].result is None
    assert turns(known) == {"p": 2, "q": 1}


def test_pairs_of_another_key_do_not_count() -> None:
    """The same person would look like two."""
    known = batches([begun(1, ("a", "p")), ended(1, ("p", 0.5)), begun(2, ("c", "x"), secret="t"), ended(2, ("x", 1.0))])
    assert mirrored(known).pairs == (("x", 1.0),)


def test_without_rows_there_is_no_evidence() -> None:
    assert mirrored([]).asked == 0


@pytest.mark.parametrize("pairs", [[["p", 1.5]], [["p", float("nan")]], [["p", 0.5], ["p", 0.5]]])
def test_rows_with_invalid_figures_are_refused(pairs: list[list[Any]]) -> None:
    bad = row("mirrored", "1", {"mirrored": {"asked": 1, "failed": 0, "unscored": 0, "pairs": pairs}})
    with pytest.raises(Permanent, match="is not a valid MirrorEnd: mirrored"):
        batches([begun(1, ("a", "p")), bad])


def test_all_chosen_prompts_count_towards_the_limit_also_those_that_were_not_asked() -> None:
    known = batches([begun(1, *[(f"k{n}", "p") for n in range(5)]), ended(1)])
    assert [left(known, RolloutSettings(mirror=most)) for most in (0, 5, 8, 1000)] == [0, 0, 3, BATCH]


def judgement(result: StepResult = StepResult.WAIT, **test: Any) -> StepJudgement:
    limits = {"equal": 4.0, "equal_at": 3.0, "harm": -4.0, "harm_at": 4.0}
    figures = {"estimate": 0.0, "error": 0.1, "margin": 0.05, "n": 100, "people": 12, **limits}
    tests = {"mirrored": SequentialTest(**(figures | test))} if test else {}
    return StepJudgement(result=result, reasons=("waits",), tests=tests)


@pytest.mark.parametrize(
    ("given", "index", "mirror", "wanted"),
    [
        (judgement(), 0, 100, True),
        (judgement(), 2, 100, False),
        (judgement(), 0, 0, False),
        (judgement().model_copy(update={"unavailable": True}), 0, 100, False),
        (None, 0, 100, False),
        (judgement(StepResult.ADVANCE), 0, 100, False),
        (judgement(equal=2.9), 1, 100, True),
        (judgement(equal=3.1), 1, 100, False),
        (judgement(equal=3.1, people=7.5), 1, 100, True),
        (judgement(equal=3.1, n=49), 1, 100, True),
    ],
)
def test_prompts_are_asked_while_the_step_waits_for_pairs(given: StepJudgement | None, index: int, mirror: int, wanted: bool) -> None:
    assert is_wanted(RolloutSettings(mirror=mirror), given, index, 1) is wanted
