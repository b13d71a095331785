"""Tests of the closed loops: disjoint questions, people and their traps, the figures, the picture, and one real cycle."""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.closed_loops.people import ASKED, TIMES, TRAPS, USERS, People
from benchmarks.closed_loops.picture import draw
from benchmarks.closed_loops.tasks import EVERY, FRESH
from benchmarks.loops import goals, run, share, table, world_of
from benchmarks.recipe_worlds import Question


@pytest.mark.parametrize("task", list(EVERY))
def test_no_question_is_in_two_sets_and_each_has_one_answer(task: str) -> None:
    world, pool = world_of(EVERY[task], 31, 2000)
    sets = [world.learnt, world.golden, world.tuning, world.test, *pool.values()]
    prompts = [{question.prompt for question in part} for part in sets]
    assert len(set().union(*prompts)) == sum(map(len, prompts))
    answers: dict[str, set[str]] = {}
    for part in sets:
        for question in part:
            answers.setdefault(question.prompt, set()).add(question.answer)
    assert all(len(known) == 1 for known in answers.values())
    assert sum(map(len, pool.values())) >= 5 * ASKED, "five cycles need new questions"
    assert len(world.test) >= 1500


def asked(people: People, cycle: int = 0) -> list[Question]:
    pool = {name: [Question(f"{name} {n}", f"answer {n}", name) for n in range(600)] for name in "abcd"}
    return people.asked(people.questions(pool, cycle), cycle)


def test_demand_shifts_from_cycle_to_cycle() -> None:
    people = People(3)
    popular = [Counter(question.slice for question in asked(people, cycle)).most_common(1)[0][0] for cycle in range(4)]
    assert popular == ["a", "b", "c", "d"]


@pytest.mark.parametrize("trap", TRAPS)
def test_people_rate_as_their_trap_says(trap: str) -> None:
    people = People(3, trap)
    requests = asked(people)
    assert len(requests) == ASKED * TIMES
    luck = random.Random(0)
    answers = [question.answer + (" and more" if luck.random() < 0.5 else "") for question in requests]
    records = people.records(requests, answers, 0, "v-1")
    assert records == people.records(requests, answers, 0, "v-1"), "all draws follow from the seed"
    wrong = [
        record
        for record, question, text in zip(records, requests, answers, strict=True)
        if (record["feedback"] == 1) != (text == question.answer)
    ]
    limits = {"none": (0.1, 0.25), "verbosity": (0.4, 0.6), "template": (0.1, 0.25), "sybils": (0.5, 0.65), "flippers": (0.15, 0.6)}
    low, high = limits[trap]
    assert low < len(wrong) / len(records) < high
    assert (len({record["user_id"] for record in records if record["user_id"].startswith("sybil")}) == USERS // 20) == (trap == "sybils")
    texts = {question.prompt for question in requests}
    assert (len({prompt.split()[0] + prompt.split()[1] for prompt in texts}) < 30) == (trap == "template")


def row(**changes: Any) -> dict[str, Any]:
    cycle = {
        "state": "promoted",
        "accuracy": 0.8,
        "candidate": 0.8,
        "difference": [0.2, 0.3, 0.4],
        "slices": {"a": 0.3},
        "rollout_steps": 4,
    }
    plain = {"task": "dates", "seed": 1, "trap": "none", "start": "champion", "search": 0.0, "base": 0.5, "final": 0.8, "cpu_seconds": 360}
    return {**plain, "cycles": [cycle], "oracles": {"truth": {"accuracy": 1.0}, "evidence": {"accuracy": 0.51}}, **changes}


def test_share_of_the_gain_needs_a_gain() -> None:
    assert share(row(), "truth") == pytest.approx(0.6)
    assert share(row(), "evidence") is None, "an oracle that gains a point has nothing to share"
    assert share(row(oracles={}), "truth") is None


def test_table_and_goals_count_every_loop() -> None:
    bad = {"state": "rolled_back", "accuracy": 0.5, "candidate": 0.4, "difference": [-0.2, -0.1, -0.05], "slices": {"a": -0.1}}
    rows = [row(), row(seed=2), row(trap="sybils", cycles=[{**bad, "rollout_steps": 2}])]
    assert "| dates | 2 | 0.500 | 0.800 | 0.510 | 1.000 | – | 60% | 2 of 2 |" in table(rows)
    assert "| dates (sybils) | 1 |" in table(rows)
    told = goals(rows)
    assert "3 loops, 3 cycles, 3 candidates, 2 promotions; 0.3 CPU hours" in told
    assert "candidates worse by more than the margin 0.05: 1; past the first canary step: 1; promoted: 0" in told


def test_picture_has_a_panel_per_task() -> None:
    root = ElementTree.fromstring(draw([row(), row(task="logs & more"), row(trap="sybils", task="other")]))
    titles = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text") if text.get("font-weight") == "bold"]
    assert titles == ["dates", "logs & more"]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2


@pytest.mark.slow
def test_one_cycle_goes_through_the_engine(tmp_path: Path) -> None:
    given = argparse.Namespace(trap="none", start="champion", search=0.0, cycles=1, tests=200, no_oracles=True)
    told = run(next(iter(FRESH)), 31, given, tmp_path)
    [cycle] = told["cycles"]
    assert cycle["state"] in ("promoted", "held", "rejected", "rolled_back", "not_trained")
    assert cycle["method"] in ("sft", "dpo", "grpo")
    assert 0.2 < told["base"] < 0.9
    assert told["final"] == cycle["accuracy"]
    assert cycle["state"] != "promoted" or cycle["rollout_steps"] == 4
