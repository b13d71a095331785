"""Tests how `ratchet plan` shows a search."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.contracts.jobs.training import Method, Search, Variant
from ratchet.contracts.loop import SearchSettings
from ratchet.flows.cli.operate.plan import _searched, _show_search
from ratchet.flows.core.searches.highest_cost import highest_cost
from ratchet.flows.core.searches.search import OWN
from tests.simulation.simulated_line import loop_for

RECIPES = {
    name: {"learning_rate": "auto", "rate_scale": scale, "most_steps": 250} for name, scale in (("SFT", 1.0), ("SFT, rate × 3", 3.0))
}
SEARCH = Search(
    variants=tuple(Variant(name=name, method=Method.SFT, recipe=recipe) for name, recipe in RECIPES.items()), budget=600.0, first=OWN
)


def context(budget: float) -> Any:
    found = loop_for("yes")
    training = found.training.model_copy(update={"search": SearchSettings(budget=budget), "timeout": 1500.0, "gpus": 4})
    return SimpleNamespace(loop=found.model_copy(update={"training": training}), price=lambda seconds: seconds / 100)


def test_plan_shows_the_recipes_of_a_search_and_its_highest_cost(capsys: pytest.CaptureFixture[str]) -> None:
    line = context(600.0)
    highest = highest_cost(line.loop, SEARCH.budget, line.price)
    found: Any = SimpleNamespace(search=SEARCH)
    _show_search(found, line, highest)
    shown = capsys.readouterr().out
    assert "A search may then spend 600 s of job time on 1 more recipes." in shown
    assert "SFT, rate × 3   auto × 3        250" in shown
    assert highest.text in shown
    assert "1.00 hours of job time (2 attempts of at most 1,500 s for the first recipe and 600 s for all other recipes)" in shown
    assert "4.00 GPU hours on 1 × 4 GPUs, 36.00 by the price table." in shown
    told = _searched(SEARCH, highest)
    assert told["variants"] == [{"name": "SFT"}, {"name": "SFT, rate × 3"}]
    assert (told["highest"]["seconds"], told["highest"]["gpu_hours"], told["highest"]["price"]) == (3600.0, 4.0, 36.0)


def test_plan_says_why_a_budget_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    found: Any = SimpleNamespace(search=None, data=SimpleNamespace(development_prompts=7))
    _show_search(found, context(600.0), None)
    assert "training.search.budget = 600 s is not used" in capsys.readouterr().out
    _show_search(found, context(0.0), None)
    assert capsys.readouterr().out == ""
