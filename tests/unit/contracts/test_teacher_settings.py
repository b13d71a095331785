"""Tests of the section [teacher]: what keeps a loop file with a teacher from being valid, and the identity of a teacher."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contracts.data.teaching import cost_of, highest_cost, teacher_version
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop, TeacherSettings
from ratchet.flows.config.load import parse_loop
from tests.builders import teacher_section

LOOP: dict[str, Any] = {
    "line": {"name": "math", "served_model": "m"},
    "sources": [{"name": "app", "kind": "jsonl", "path": "app"}],
    "rewards": [{"name": "exact_match"}],
}


def parsed(**changes: Any) -> Loop:
    return parse_loop({**LOOP, "teacher": teacher_section(**changes)}, "loop.toml")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"region": "us"}, "the teacher is in the region 'us', and regions permits eu only"),
        ({"regions": []}, "regions"),
        ({"terms": None}, "terms"),
        ({"terms": {"text": "t", "accepted_by": "a"}}, "accepted_on"),
        ({"url": "http://teacher.example/v1"}, "must begin with https"),
        ({"url": "https://user:pw@teacher.example/v1"}, "url"),
        ({"key_env": "A", "key_file": "/k"}, "exclude each other"),
        ({"key_file": "k"}, "absolute"),
        ({"key": "sk-1"}, "key"),
        ({"max_cost": float("inf")}, "max_cost"),
        ({"min_agreement": 0.5}, "min_agreement"),
    ],
)
def test_a_section_that_must_not_send_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parsed(**changes)


def test_a_line_without_masks_sends_nothing_unless_that_is_acknowledged() -> None:
    off = {**LOOP, "privacy": {"mask": []}}
    with pytest.raises(ConfigError, match=r"privacy\.mask is empty"):
        parse_loop({**off, "teacher": teacher_section()}, "loop.toml")
    assert parse_loop({**off, "teacher": teacher_section(unmasked="acknowledged")}, "loop.toml").teacher is not None


def test_no_loop_file_has_a_teacher_by_itself() -> None:
    assert parse_loop(LOOP, "loop.toml").teacher is None


def test_a_teacher_is_what_its_answers_depend_on() -> None:
    def version(**changes: Any) -> str:
        return teacher_version(TeacherSettings(**teacher_section(**changes)))

    assert version() == version(max_cost=9.0, key_env="OTHER", input_price=1.0)
    assert len({version(), version(model="b"), version(version="2"), version(max_tokens=7), version(temperature=None)}) == 5


def test_costs_are_prices_of_a_million_tokens_and_the_highest_one_bounds_them() -> None:
    settings = TeacherSettings(**teacher_section(max_tokens=100))
    assert cost_of(settings, 1_000_000, 500_000) == 2.0 + 4.0
    text = "Wie spät ist es? " * 20
    assert highest_cost(settings, ({"role": "user", "content": text},)) > cost_of(settings, len(text) // 3, 100)
