"""Builds values of contracts for tests, with defaults where a test does not depend on them."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.data.datasets import Facts
from ratchet.contracts.jobs.training import Method, TrainingPlan
from ratchet.contracts.model import ModelRef

START = ModelRef(weights="a" * 64, tokenizer="b" * 64, chat_template="c" * 64, generation_config="d" * 64, files="e" * 64)
"""A start model without files."""


JSONL_RECORD: dict[str, Any] = {
    "id": "1",
    "timestamp": "2026-01-01T00:00:00Z",
    "user_id": "u",
    "session_id": "s",
    "messages": [{"role": "user", "content": "2+2?"}],
    "response": "A: 4",
    "model": "m",
    "latency_ms": 1,
    "input_tokens": 1,
    "output_tokens": 1,
    "region": "eu",
    "consent": True,
    "reference": "4",
}
"""A record of the JSON Lines format with all usual keys."""


def make_facts(**changes: Any) -> Facts:
    """Return the facts of a line with enough data for every method, with `changes`."""
    plenty: dict[str, Any] = {
        "pairs": 300,
        "pairs_by_tier": {"verifiable": 200, "feedback": 100},
        "pairs_dropped": {},
        "prompts": 400,
        "prompts_with_reference": 300,
        "corrections": 40,
        "demonstrations": {"correction": 40, "verifiable": 60},
        "teachable": 50,
        "samples": 900,
        "group_coverage": 0.4,
        "label_noise": 0.1,
        "champion_reward": 0.6,
        "best_of_k": 0.85,
        "off_policy": 0.2,
    }
    return Facts(**(plenty | changes))


def make_plan(method: Method, recipe: dict[str, Any], **changes: Any) -> TrainingPlan:
    """Return a plan of the line `l` with a complete recipe and placeholder digests, with `changes` to its fields."""
    names = ("dataset", "pairs", "prompts", "demonstrations", "code")
    placeholders: dict[str, Any] = {name: str(number) * 64 for number, name in enumerate(names, 1)}
    fields = {"line": "l", "cycle": "cycle/l/0001", "start": START, "seed": 1, "scorers": (), **placeholders, **changes}
    return TrainingPlan(method=method, recipe=recipe, **fields)
