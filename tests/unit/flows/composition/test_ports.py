"""Tests of the ports that a loop file selects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop
from ratchet.flows.composition.ports import build_line_context
from ratchet.flows.config.home import Home
from tests.unit.materializer.conftest import make_loop


def _judged(methods: tuple[str, ...]) -> Loop:
    options: dict[str, Any] = {"url": "http://judge:8000/v1", "model": "m", "in_jobs": True, "key_env": "JUDGE_KEY"}
    return make_loop(rewards=[{"name": "judge", "options": options}], training={"methods": methods})


def test_a_line_whose_jobs_cannot_get_the_key_of_their_judge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use key_file instead of key_env"):
        build_line_context(_judged(("grpo",)), tmp_path, Home(tmp_path / "home"), lambda *_: None)


def test_a_line_without_grpo_has_no_jobs_that_ask_a_judge(tmp_path: Path) -> None:
    context = build_line_context(_judged(("sft",)), tmp_path, Home(tmp_path / "home"), lambda *_: None)
    assert [version.name for version in context.rewards.versions] == ["judge"]
