"""Spans whose answers cannot be used, and texts that are near-duplicates of each other on chosen sides of the holdout."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.ids import root_id
from ratchet.materializer.training_sets.holdout import held_out
from tests.unit.materializer.records import attribute, span

FAULTS = ("truncated", "partial_answer", "failed_request", "long_answer", "masked_answer")


def faulty(n: int, prompt: str, reason: str, events: tuple[Any, ...] = (), **more: Any) -> dict[str, Any]:
    """Return a span whose answer cannot be used for this reason."""
    answers = {"long_answer": "x" * 5000, "masked_answer": "write to help@example-mail.com"}
    made = span(n, prompt, answers.get(reason, "half an ans"), events, **more)
    if reason == "truncated":
        ended = {"arrayValue": {"values": [{"stringValue": "length"}]}}
        made["attributes"].append({"key": "gen_ai.response.finish_reasons", "value": ended})
    if reason == "partial_answer":
        made["attributes"].append(attribute("ratchet.partial", True))
    if reason == "failed_request":
        made["status"] = {"code": 2, "message": "no"}
    return made


def _root(text: str) -> str:
    return root_id([{"role": "user", "content": text}])


def sided(base: list[str], place: int, held: bool) -> str:
    """Return a text with four other words than `base` from `place` on, whose side of the holdout is the wanted one."""
    texts = (" ".join([*base[:place], *(f"w{place}x{n}y{k}" for k in range(4)), *base[place + 4 :]]) for n in range(100))
    return next(text for text in texts if held_out(_root(text), "ratchet", 0.2) is held)


LONG = [f"{word}{n}" for n in range(12) for word in ("order", "invoice", "parcel", "refund", "voucher")]
GOLDEN_TEXT = sided(LONG[::-1], 0, False)
LEFT, RIGHT = sided(LONG, 0, False), sided(LONG, 50, True)
BETWEEN = next(
    text
    for text in (" ".join([*LONG[:25], f"z{n}", *LONG[26:]]) for n in range(100))
    if _root(text) > max(_root(LEFT), _root(RIGHT))  # prompts of one freeze get their sides in the order of their roots
)
"""A near-duplicate of `LEFT`, which is for training, and of `RIGHT`, which is in the holdout. Those two are none of each other."""
