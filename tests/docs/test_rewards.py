"""Tests of the page about rewards: its examples build, and the answers get the scores that the page states."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.loop import RewardSettings
from ratchet.rewards.code.sandbox import unavailable
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.extensions import ExtensionKind, offers
from tests.needs import Need, lacks

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "rewards.md").read_text()
EXAMPLES: list[tuple[str, str | None]] = re.findall(r"```toml\n(\[\[rewards\]\].*?)```(?:\n\n```json\n(.*?)\n```\n)?", PAGE, re.DOTALL)


def _settings(example: str) -> RewardSettings:
    (settings,) = tomllib.loads(example)["rewards"]
    return RewardSettings.model_validate(settings)


def test_the_page_has_an_example_of_each_built_in_reward() -> None:
    shown = {_settings(example).name for example, _ in EXAMPLES}
    assert set(offers(ExtensionKind.REWARD)) - {"exact_match", "user_feedback", "mentions_ticket"} <= shown


@pytest.mark.parametrize("example", EXAMPLES, ids=[_settings(example).name for example, _ in EXAMPLES])
def test_the_answers_of_an_example_get_the_stated_scores(example: tuple[str, str]) -> None:
    settings, answers = _settings(example[0]), [json.loads(line) for line in example[1].splitlines()]
    isolation: Any = settings.options.get("isolation", "namespaces")
    if settings.name == "code" and (reason := unavailable(isolation)):
        if isolation == "process":
            return  # an accepted loss of isolation, which this machine cannot run, has no answers to check
        lacks(Need.NAMESPACES, reason)
    labels = build_scorer_set([settings]).label_unseen([{"prompt": [], "reference": None, **answer} for answer in answers])
    assert [label.reward for label in labels] == [answer["score"] for answer in answers]
