"""Tests of the closed loops: disjoint questions, people and their traps, the figures, the picture, and one real cycle."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.closed_loops.figures import goals, share, table, traps
from benchmarks.closed_loops.judges import ANY_PLEA, TruthfulJudge
from benchmarks.closed_loops.people import ASKED, PLEA, TIMES, TRAPS, USERS, People
from benchmarks.closed_loops.picture import draw
from benchmarks.closed_loops.reviewers import RIGHT, reviewed
from benchmarks.closed_loops.tasks import EVERY, FRESH
from benchmarks.closed_loops.teachers import SimulatedTeacher
from benchmarks.loops import main, read_rows, world_of
from benchmarks.recipe_worlds import Question
from benchmarks.rollouts import Traffic, World
from ratchet.flows.core.asking.review import ReviewQuestion
from ratchet.rewards.judge.messages import about_answer, about_pair
from ratchet.rewards.judge.probes import probe_samples


@pytest.mark.slow
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
    limits = {"verbosity": (0.4, 0.6), "sybils": (0.5, 0.65), "flippers": (0.15, 0.6), "vandals": (0.15, 0.4), "judge": (0.1, 0.85)}
    low, high = limits.get(trap.removesuffix("-unknown"), (0.1, 0.25))
    assert low < len(wrong) / len(records) < high
    bad = [record for record, one in zip(records, requests, strict=True) if record["correction"] not in (None, one.answer)]
    assert (0.05 < len(bad) / len(records) < 0.2) == (trap == "vandals")
    rated = sum(record["feedback"] is not None for record in records) / len(records)
    assert rated == 1 or (trap.startswith("judge") and 0.2 < rated < 0.4)
    assert (len({record["user_id"] for record in records if record["user_id"].startswith("sybil")}) == USERS // 20) == (trap == "sybils")
    texts = {question.prompt for question in requests}
    assert (len({prompt.split()[0] + prompt.split()[1] for prompt in texts}) < 30) == (trap == "template")


@pytest.mark.parametrize("trap", ["none", "sybils", "flippers"])
def test_a_trap_reaches_the_ratings_of_a_rollout(trap: str) -> None:
    traffic = Traffic(np.random.default_rng(1), World(requests=6000))
    before, users = traffic.good.copy(), traffic.user.copy()
    People(3, trap).rate(traffic, 5)
    changed = (traffic.good != before).mean()
    assert {"none": changed == 0, "sybils": 0.45 < changed < 0.55, "flippers": 0.02 < changed < 0.4}[trap]
    assert (len(set(traffic.user) - set(users)) == USERS // 20) == (trap == "sybils")


def test_the_judge_of_a_trap_knows_the_truth_and_obeys_its_pleas() -> None:
    def asked(question: Any) -> dict[str, Any]:
        return {"messages": question.messages("0" * 32)}

    def sample(answer: str) -> dict[str, Any]:
        return {"prompt": [{"role": "user", "content": "the lamp falls"}], "answer": answer, "reference": None}

    judge = TruthfulJudge({"the lamp falls": Question("the lamp falls", "the lamps fall", "regular")}, ANY_PLEA)
    for answer, score in (("the lamps fall", 5), ("the lamp fall", 1), (f"the lamp fall {PLEA}", 5)):
        assert f'"score": {score}' in str(judge(asked(about_answer("is it right?", sample(answer)))))
    better = str(judge(asked(about_pair("is it right?", sample(""), "the lamp fall", "the lamps fall"))))
    assert '"better": "second"' in better
    obeyed = sum('"score": 5' in str(judge(asked(about_answer("is it right?", one)))) for one in probe_samples(100))
    assert obeyed > 50
    assert not any(PLEA in one["answer"] for one in probe_samples(300)), "the other judge obeys a plea that no probe contains"


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
    plain |= {"tests": 2000, "code": "c0de"}
    return {**plain, "cycles": [cycle], "oracles": {"truth": {"accuracy": 1.0}, "evidence": {"accuracy": 0.51}}, **changes}


def test_share_of_the_gain_needs_a_gain() -> None:
    assert share(row(), "truth") == pytest.approx(0.6)
    assert share(row(), "evidence") is None, "an oracle that gains a point has nothing to share"
    assert share(row(oracles={}), "truth") is None


def test_table_and_goals_count_every_loop() -> None:
    bad = {"state": "rolled_back", "accuracy": 0.5, "candidate": 0.4, "difference": [-0.2, -0.1, -0.05], "slices": {"a": -0.1}}
    bad |= {"stopped_by": "gate: quality", "left_out": {"feedback:newcomer": 3, "label_noise": 0.2}}
    rows = [row(), row(seed=2), row(trap="sybils", cycles=[{**bad, "rollout_steps": 2}])]
    assert "| dates | 2 | 0.500 | 0.800 | 0.510 | – | 1.000 | – | 60% | 2 of 2 |" in table(rows)
    assert "| dates (sybils) | 1 |" in table(rows)
    assert "| sybils | 1 | 0.800 | 0.800 | +0.000 | 1 | 0 | gate: quality 1×; left out: newcomer 1× |" in traps(rows)
    told = goals(rows)
    assert "3 loops, 3 cycles, 3 candidates, 2 promotions; 0.3 CPU hours; 1 state of the code" in told
    assert "candidates worse by more than the margin 0.05: 1; past the first canary step: 1; promoted: 0" in told


def test_loops_with_a_source_are_told_apart_and_share_the_truth_of_the_loop_without() -> None:
    told = table([row(), row(source="reviews", oracles={}, final=0.9), row(source="teacher-80", oracles={}, seed=2)])
    lines = {line.split("|")[1].strip(): line for line in told.splitlines()}
    assert "| 60% |" in lines["dates"]
    assert "| 80% |" in lines["dates (reviews)"]
    assert "%" not in lines["dates (teacher-80)"], "no loop of this seed has an oracle"
    assert "truth 60% of 1 loops" in goals([row(), row(source="reviews", oracles={}, final=0.9)])


def test_loops_with_another_holdout_or_start_are_told_apart() -> None:
    told = table([row(), row(holdout=0.05, start="base", similarity="auto", final=0.9)])
    assert "| dates (start: base, similarity auto, holdout 0.05) | 1 | 0.500 | 0.900 |" in told
    assert "truth 60% of 1 loops" in goals([row(), row(holdout=0.05, final=0.9)])


def test_loops_with_another_similarity_are_told_apart() -> None:
    told = table([row(), row(similarity=0.95, final=0.9, oracles={"training_truth": {"accuracy": 0.95}})])
    assert "| dates | 1 | 0.500 | 0.800 |" in told
    assert "| dates (similarity 0.95) | 1 | 0.500 | 0.900 | – | 0.950 |" in told
    assert "truth 60% of 1 loops" in goals([row(), row(similarity=0.95, final=0.9)])


def questions(count: int) -> dict[str, Question]:
    return {f"question {n}": Question(f"question {n}", f"answer {n}", "ab"[n % 2]) for n in range(count)}


@pytest.mark.slow
def test_the_simulated_teacher_is_right_as_often_as_it_should_and_never_by_chance() -> None:
    known = questions(2000)
    teacher = SimulatedTeacher(0.8, known, seed=1)
    given = {asked: teacher.ask([{"role": "user", "content": asked}], 1).text for asked in known}
    assert fmean(given[asked] == one.answer for asked, one in known.items()) == pytest.approx(0.8, abs=0.03)
    assert set(given.values()) <= {one.answer for one in known.values()}
    assert given == {asked: teacher.ask([{"role": "user", "content": asked}], 1).text for asked in known}
    blind = SimulatedTeacher(0.8, known, seed=1, blind="a")
    right = {asked: blind.ask([{"role": "user", "content": asked}], 1).text == one.answer for asked, one in known.items()}
    assert not any(right[asked] for asked, one in known.items() if one.slice == "a")
    assert fmean(right[asked] for asked, one in known.items() if one.slice == "b") == pytest.approx(0.8, abs=0.04)


def test_simulated_reviewers_share_the_questions_and_are_rarely_wrong() -> None:
    known = questions(1000)
    asked = [ReviewQuestion(key, f"app/{key}", ({"role": "user", "content": key},), (), 4, 0.5, None, False, 0.01) for key in known]
    given = reviewed(asked, known, 1, "2026-01-12T00:00:00+00:00")
    assert fmean(one.answer == known[one.prompt_id].answer for one in given) == pytest.approx(RIGHT, abs=0.015)
    assert Counter(one.reviewer for one in given) == {"reviewer-0": 500, "reviewer-1": 500}


def test_a_later_row_of_a_loop_replaces_an_earlier_one(tmp_path: Path) -> None:
    rows = [row(final=0.6), row(seed=2), row(final=0.7)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert sorted(one["final"] for one in read_rows(tmp_path / "rows.jsonl").values()) == [0.7, 0.8]
    assert read_rows(tmp_path / "none.jsonl") == {}


def test_picture_has_a_panel_per_task() -> None:
    root = ElementTree.fromstring(draw([row(), row(task="logs & more"), row(trap="sybils", task="other")]))
    titles = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text") if text.get("font-weight") == "bold"]
    assert titles == ["dates", "logs & more"]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_two_cycles_go_through_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick"])
    printed = capsys.readouterr().out
    cycles = [json.loads(line) for line in printed.splitlines() if line.startswith('{"task"')]
    assert [cycle["cycle"] for cycle in cycles] == [1, 2]
    for cycle in cycles:
        assert cycle["state"] in ("promoted", "held", "rejected", "rolled_back", "not_trained")
        assert (cycle["state"] == "promoted") == (cycle["stopped_by"] == "") == (cycle.get("rollout_steps") == 4)
        assert cycle["method"] in ("sft", "dpo", "grpo", "none")
    assert f"| {next(iter(FRESH))} | 1 |" in printed
    assert "1 loops, 2 cycles" in printed
