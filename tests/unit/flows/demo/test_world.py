"""The demo is honest: its sets do not overlap, its seeds give the same world, its bad recipe is a change of the loop file."""

from __future__ import annotations

import tomllib

from flows.config.load import parse_loop
from flows.demo.play import demo_loop, spoil
from flows.demo.task import INTENTS, NEW_INTENTS, capacity, requests
from flows.demo.world import build_world, traffic


def test_no_golden_question_is_asked_by_users_or_learnt_by_the_base() -> None:
    world = build_world()
    golden = {r.prompt for r in world.golden}
    assert len(golden) == 400
    assert not golden & {r.prompt for r in world.asked}
    assert not golden & {r.prompt for r in world.learnt}


def test_the_base_gets_only_a_hint_of_what_users_begin_to_ask_for() -> None:
    new = [r for r in build_world().learnt if r.intent in NEW_INTENTS]
    assert len(new) < 10
    assert {r.intent for r in build_world().asked} == set(INTENTS)


def test_the_same_seed_gives_the_same_traffic_with_repeats() -> None:
    world = build_world()
    asked = traffic(world, 300, 5)
    assert asked == traffic(world, 300, 5)
    assert len({r.prompt for r in asked}) < 300


def test_every_prompt_has_one_reference() -> None:
    every = requests(1, capacity(("undo", "restart")), ("undo", "restart"))
    assert len({r.prompt for r in every}) == len(every)


def test_the_bad_recipe_is_a_valid_loop_file_that_differs_in_three_lines() -> None:
    good, bad = demo_loop(), spoil(demo_loop())
    assert sum(a != b for a, b in zip(good.splitlines(), bad.splitlines(), strict=True)) == 3
    before, after = (parse_loop(tomllib.loads(text), "demo").training for text in (good, bad))
    assert (before.methods, after.methods) == (("sft", "dpo", "grpo"), ("dpo",))
    assert {key for key in before.dpo if before.dpo[key] != after.dpo[key]} == {"losses", "learning_rate"}
