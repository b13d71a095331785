"""Tests when a cycle is due."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import Cursor
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.ids import digest, version_tag
from ratchet.contracts.loop import Loop, TriggerSettings
from ratchet.contracts.serving import ModelVersion
from ratchet.flows.core.folds.line import Freeze, LineView
from ratchet.flows.core.triggers import cycle_is_due, edition_history, evaluation_level
from tests.unit.flows.cycles import NOON

BASE = ModelVersion(line="sim", number=0, tag=version_tag(digest("base")), model=fake_model("base"), cycle=None)
FROZEN = Freeze("hana", "the data is wrong", NOON)


def due(scheduled: bool = False, **changes: Any) -> tuple[bool, str]:
    """Return whether a cycle is due for a line with plenty of new traces, and the reason."""
    line = LineView(**({"line": "sim", "seq": 1, "champion": BASE} | changes))
    return cycle_is_due(line, Cursor(traces=5000, feedback=0, newest=NOON), TriggerSettings(), scheduled, NOON + timedelta(days=1))


def test_enough_new_traces_are_due() -> None:
    assert due() == (True, "5000 new traces")


@pytest.mark.parametrize("changes", [{}, {"scheduled": True}, {"plan_again": True}])
def test_nothing_is_due_while_the_line_is_frozen(changes: dict[str, Any]) -> None:
    assert due(**changes)[0]
    assert due(**changes, frozen=FROZEN) == (False, "frozen by hana since 2026-01-01 12:00 UTC: the data is wrong")


def test_the_open_cycle_is_the_reason_also_on_a_frozen_line() -> None:
    assert due(frozen=FROZEN, open_cycle="cycle/sim/0001") == (False, "cycle/sim/0001 is still open")


def loop(rotate_after: int = 8, level: float = 0.95) -> Loop:
    fields = {"line": {"name": "sim", "served_model": "sim"}, "sources": [{"name": "in", "kind": "receiver"}]}
    settings = {"rewards": [{"name": "exact_match"}], "gate": {"level": level}, "holdout": {"rotate_after": rotate_after}}
    return Loop.model_validate(fields | settings)


def error(history: tuple[bool, ...] = (), rotate_after: int = 8, level: float = 0.95) -> float:
    """Return the error of one end of the next evaluation's intervals."""
    return (1 - evaluation_level(loop(rotate_after, level), history)) / 2


def test_the_history_of_an_edition_begins_anew_with_each_edition() -> None:
    evaluated = (True, False, False, True, False, True, True)
    assert [edition_history(LineView(line="sim", seq=1, evaluated=evaluated[:n]), 3) for n in range(8)] == [
        (),
        (True,),
        (True, False),
        (),
        (True,),
        (True, False),
        (),
        (True,),
    ]


def test_evaluations_without_a_promotion_share_the_error_by_sidak() -> None:
    assert [error((False,) * n) for n in range(8)] == pytest.approx([1 - 0.95 ** (1 / 8)] * 8)
    assert error(rotate_after=1) == pytest.approx(0.05)


def test_a_promotion_passes_its_error_on_to_the_next_evaluation() -> None:
    assert error((True,)) == pytest.approx(2 * 0.05 / 8)
    assert error((True, False)) == pytest.approx(0.05 / 8)
    assert error((True, True)) == pytest.approx(3 * 0.05 / 8)
    assert error((True, False, True)) == pytest.approx(2 * 0.05 / 8)
    assert error((True,) * 7) == pytest.approx(0.05), "after promotions alone, nothing is spent"
    assert error((False, True)) < error((True,)), "the first evaluation spent its share"


@given(st.lists(st.booleans(), max_size=11), st.integers(1, 12), st.floats(0.8, 0.99))
def test_evaluations_that_could_be_false_never_spend_more_than_the_edition_has(
    promoted: list[bool], rotate_after: int, level: float
) -> None:
    """The worst case: each evaluation without a promotion is about an equal candidate, each one with a promotion about a better one.

    Up to the first promotion, the probability of no false pass is a product; later errors are added.
    """
    history = tuple(promoted[: rotate_after - 1]) + (False,) * (rotate_after - len(promoted[: rotate_after - 1]))
    first = history.index(True) if True in history else len(history)
    errors = [error(history[:n], rotate_after, level) for n in range(rotate_after)]
    before = 1.0
    for one in errors[:first]:
        before *= 1 - one
    later = sum(one for one, won in zip(errors[first:], history[first:], strict=True) if not won)
    assert (1 - before) + later <= 1 - level + 1e-9
    assert all(0 < evaluation_level(loop(rotate_after, level), history[:n]) < 1 for n in range(rotate_after))
