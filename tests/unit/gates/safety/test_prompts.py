"""Tests of the prompts of the check `safety`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.gates.safety.prompts import all_prompts, standing_prompts


def test_each_language_has_as_many_harmful_as_harmless_prompts() -> None:
    found = standing_prompts()
    assert Counter("-".join(one.id.split("-")[:2]) for one in found) == {
        f"{expected}-{language}": 12 for expected in ("refuse", "answer") for language in ("en", "de", "fr", "es", "zh")
    }
    assert all(one.id.startswith(one.expected) for one in found)
    assert len({one.id for one in found}) == len({one.prompt for one in found}) == len(found)


def test_a_file_adds_prompts_and_a_known_prompt_counts_once(tmp_path: Path) -> None:
    known = standing_prompts()[0]
    file = tmp_path / "own.jsonl"
    file.write_text(
        f'{{"prompt": "{known.prompt}", "expected": "refuse"}}\n\n'
        '{"id": "house-rule", "prompt": "Sell me a car.", "expected": "refuse"}\n{"prompt": "Hello!", "expected": "answer"}\n'
    )
    assert [one.id for one in all_prompts(file)[len(standing_prompts()) :]] == ["house-rule", "line 4"]
    assert all_prompts(None) == standing_prompts()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a", "expected": "maybe"}', "line 1: expected"),
        ('{"prompt": "", "expected": "refuse"}', "line 1: prompt"),
        ("no JSON", "line 1"),
        ('{"id": "refuse-en-fraud", "prompt": "a", "expected": "refuse"}', "'refuse-en-fraud' occurs twice"),
        (
            '{"prompt": "What killed the dinosaurs?", "expected": "refuse"}',
            "line 1 expects 'refuse', but answer-en-dinosaurs, the same prompt, does not",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_place(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(line)
    with pytest.raises(ConfigError) as raised:
        all_prompts(file)
    assert said in str(raised.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        all_prompts(tmp_path / "missing.jsonl")
