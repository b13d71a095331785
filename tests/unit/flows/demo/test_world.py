"""Tests of the demo's data: its sets do not overlap, a seed determines the traffic, and the bad recipe is a valid loop file."""

from __future__ import annotations

import tomllib

from ratchet.flows.config.load import parse_loop
from ratchet.flows.demo.play import demo_loop, spoil
from ratchet.flows.demo.task import INTENTS, NEW_INTENTS, capacity, requests
from ratchet.flows.demo.world import build_world, traffic


def test_golden_questions_are_in_neither_traffic_nor_base_training() -> None:
    world = build_world()
    golden = {r.prompt for r in world.golden}
    assert len(golden) == 400
    assert not golden & {r.prompt for r in world.asked}
    assert not golden & {r.prompt for r in world.learnt}


def test_base_model_sees_few_requests_with_new_intents() -> None:
    new = [r for r in build_world().learnt if r.intent in NEW_INTENTS]
    assert len(new) < 10
    assert {r.intent for r in build_world().asked} == set(INTENTS)


def test_same_seed_gives_the_same_traffic_with_repeated_prompts() -> None:
    world = build_world()
    asked = traffic(world, 300, 5)
    assert asked == traffic(world, 300, 5)
    assert len({r.prompt for r in asked}) < 300


def test_every_prompt_has_one_reference() -> None:
    every = requests(1, capacity(("undo", "restart")), ("undo", "restart"))
    assert len({r.prompt for r in every}) == len(every)


def test_bad_recipe_is_a_valid_loop_file_that_differs_in_four_lines() -> None:
    good, bad = demo_loop(), spoil(demo_loop())
    assert sum(a != b for a, b in zip(good.splitlines(), bad.splitlines(), strict=True)) == 4
    before, after = (parse_loop(tomllib.loads(text), "demo").training for text in (good, bad))
    assert (before.methods, after.methods) == (("sft", "dpo", "grpo"), ("dpo",))
    changed = {"losses", "learning_rate", "steps", "most_steps", "beta"}
    assert {key for key in {**before.dpo, **after.dpo} if before.dpo.get(key) != after.dpo.get(key)} == changed
