"""The form of a judge's reply, and its strict validation. A reply of another form is no verdict."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from ratchet.contracts.model import Frozen
from ratchet.rewards.code_blocks import only_block


class Outcome(StrEnum):
    """What became of one question to a judge."""

    SCORED = "scored"
    ADDRESSED = "addressed"
    """The judge says that the text gives instructions to it. Such an answer gets no score."""
    NOT_APPLICABLE = "not_applicable"
    """The criterion does not apply, for example without documents."""
    INVALID = "invalid"
    """The reply did not follow the schema, also not after a second request."""
    REJECTED = "rejected"
    """The server rejected the request, for example because the text is too long."""


class Grade(Frozen):
    """A judge's reply about one answer."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    reason: str = Field(max_length=2000)
    addressed_to_grader: bool
    applies: bool
    score: int = Field(ge=1, le=5)

    @property
    def verdict(self) -> tuple[Outcome, float | None]:
        """The outcome, and the score in [0, 1] if there is one."""
        if self.addressed_to_grader:
            return Outcome.ADDRESSED, None
        return (Outcome.SCORED, (self.score - 1) / 4) if self.applies else (Outcome.NOT_APPLICABLE, None)


class Preference(Frozen):
    """A judge's reply about two answers. The value is that of the first one."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    reason: str = Field(max_length=2000)
    addressed_to_grader: bool
    better: Literal["first", "second", "neither"]

    @property
    def verdict(self) -> tuple[Outcome, float | None]:
        """The outcome, and 1 if the first answer is better, 0 if the second is, else 0.5."""
        if self.addressed_to_grader:
            return Outcome.ADDRESSED, None
        return Outcome.SCORED, {"first": 1.0, "second": 0.0, "neither": 0.5}[self.better]


Form = type[Grade] | type[Preference]


def read_reply(form: Form, text: str) -> Grade | Preference | None:
    """Return the reply in `text`; None if it is not exactly one JSON object of this form. A code block around the object is ignored."""
    try:
        return form.model_validate(json.loads(only_block(text.strip())))
    except (ValueError, ValidationError, RecursionError):
        return None


@cache
def response_format(form: Form) -> dict[str, Any]:
    """Return the `response_format` of a request for a reply of this form."""
    properties = {name: _plain(value) for name, value in form.model_json_schema()["properties"].items()}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": form.__name__.lower(), "strict": True, "schema": schema}}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a schema with the keywords that strict modes of servers know; a range of integers becomes a list."""
    if "minimum" in schema:
        return {"type": "integer", "enum": list(range(schema["minimum"], schema["maximum"] + 1))}
    return {key: value for key, value in schema.items() if key in ("type", "enum")}
