"""Builds values of contracts for tests, with defaults where a test does not depend on them."""

from __future__ import annotations

from datetime import date
from typing import Any

from ratchet.contracts.data.datasets import Facts
from ratchet.extend.testkit import START, make_plan

__all__ = ["JSONL_RECORD", "START", "make_facts", "make_plan"]

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


def teacher_section(**changes: Any) -> dict[str, Any]:
    """A section [teacher] with a teacher on this machine. `changes` replace fields; None removes one."""
    fields: dict[str, Any] = {
        **{"url": "http://127.0.0.1:9/v1", "model": "big", "region": "eu", "regions": ["eu"], "input_price": 2.0, "output_price": 8.0},
        **{"max_requests": 100, "max_cost": 1.0, "max_tokens": 100},
        "terms": {"text": "terms", "accepted_by": "Ada", "accepted_on": date(2026, 1, 15)},
    }
    return {name: value for name, value in (fields | changes).items() if value is not None or name == "temperature"}
