"""Conversion of the rows of tables: what a column with rewards becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from ratchet.contracts.model import Frozen
from ratchet.materializer.dialects.jsonl import Record
from ratchet.materializer.dialects.values import number
from ratchet.materializer.receive.files.reading import Convert


class RewardColumn(Frozen):
    """A column with a number that says how good the answer of its row is."""

    column: str = "final_reward"
    """Name of the column; dots for nested ones."""
    good: float = 0.7
    """Values from this on are good."""
    bad: float = 0.5
    """Values below this are bad. Between the two, nothing is said about the answer."""
    becomes: Literal["rating", "reference"] = "rating"
    """rating: 1 for good and 0 for bad answers. reference: good answers are right answers to their prompts, which also the gate uses.
    Choose it only if somebody has checked that they are right."""

    @model_validator(mode="after")
    def _in_order(self) -> RewardColumn:
        if self.bad > self.good:
            raise ValueError(f"`bad` ({self.bad}) must not be above `good` ({self.good})")
        return self

    def converter(self, mapping: Mapping[str, str]) -> Convert:
        """Return the conversion of rows, which adds a rating or a reference. `mapping` is that of the source."""
        target = "feedback" if self.becomes == "rating" else "reference"

        def convert(row: dict[str, Any]) -> dict[str, Any]:
            reward = number(Record(row, {"reward": self.column}).get("reward"))
            if reward is None or self.bad <= reward < self.good:
                return row
            if self.becomes == "rating":
                return row | {target: 1 if reward >= self.good else 0}
            return row | {target: _text(Record(row, dict(mapping)).get("response"))} if reward >= self.good else row

        return convert


def _text(answer: Any) -> Any:
    """Return the text of an answer, which may be an assistant message."""
    return answer.get("content") if isinstance(answer, dict) else answer
