"""Tests of the estimated cost of a training attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.contracts.loop import Loop
from ratchet.flows.composition.cost import estimate_cost
from ratchet.trainers.sifting import DOUBTED_LEAST

RECIPE = {"steps": "auto", "most_steps": 100}


def a_loop() -> Loop:
    source = {"name": "in", "kind": "receiver"}
    return Loop.model_validate({"line": {"name": "a", "served_model": "a"}, "sources": [source], "rewards": [{"name": "exact_match"}]})


def estimated(loop: Loop, method: str, cross_validated: int, taught: int) -> dict[str, Any]:
    return estimate_cost(loop, Path(), method, RECIPE, 1000, cross_validated, taught)


def test_the_comparison_of_answers_of_teachers_is_counted_as_a_run() -> None:
    few, many = (estimated(a_loop(), "sft", 500, taught) for taught in (DOUBTED_LEAST - 1, DOUBTED_LEAST))
    assert (few["folds"], few["compares"], many["folds"], many["compares"]) == (1, False, 1, True)
    assert many["tokens"] == 1.5 * few["tokens"]
    assert not estimated(a_loop(), "dpo", 500, DOUBTED_LEAST)["compares"], "only SFT compares them"


def test_without_folds_nothing_is_compared() -> None:
    assert not estimated(a_loop(), "sft", 0, 500)["compares"]
