"""Tests that what pydantic finds is worded for people, whatever it finds."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core._pydantic_core import list_all_errors

from ratchet.contracts.wording import first_problem, problems

PYDANTIC = re.compile(
    r"Input should|Field required|Value error|Extra inputs|should be|should have|valid (string|integer|number)|pydantic", re.I
)
"""Words of pydantic's own messages."""


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    share: float = Field(0.5, gt=0, lt=1)
    url: str = Field("", max_length=10)


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    count: int = 1
    mode: Literal["person", "auto"] = "auto"
    parts: list[Inner] = []
    own: int = 0
    length: Literal["auto"] | Annotated[int, Field(gt=0)] = "auto"

    @field_validator("own")
    @classmethod
    def _own(cls, value: int) -> int:
        if value:
            raise ValueError("set `own` to 0")
        return value


def wrong(**values: Any) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"name": "x", **values})
    return caught.value


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"count": "many"}, "count: a whole number is required (found 'many')"),
        ({"count": 1.5}, "count: a whole number is required (found 1.5)"),
        ({"mode": "none"}, "mode: it must be 'person' or 'auto' (found 'none')"),
        ({"parts": [{}, {"share": 2}]}, "parts[2].share: it must be less than 1 (found 2)"),
        ({"parts": 3}, "parts: a list is required (found 3)"),
        ({"parts": ["x"]}, "parts[1]: a table of keys and values is required (found 'x')"),
        ({"own": 1}, "own: set `own` to 0 (found 1)"),
        ({"length": 0}, "length: it must be 'auto', or it must be more than 0 (found 0)"),
        ({"name": None}, "name: text is required"),
        ({"more": 1}, "more: it is not known (found 1)"),
        ({"parts": [{"url": "https://me:secret@host"}]}, "parts[1].url: at most 10 characters are allowed"),
    ],
)
def test_a_problem_is_said_in_words(values: dict[str, Any], said: str) -> None:
    assert [one.sentence() for one in problems(wrong(**values))] == [said]


def test_stored_values_are_not_quoted() -> None:
    assert first_problem(wrong(count="a text of a user")) == "count: a whole number is required"


def test_another_error_says_it_itself() -> None:
    assert first_problem(ValueError("the file is empty")) == "the file is empty"


@pytest.mark.parametrize("kind", [one["type"] for one in list_all_errors()])
def test_no_kind_of_problem_is_said_in_the_words_of_pydantic(kind: str) -> None:
    example = next(one for one in list_all_errors() if one["type"] == kind)
    context = example.get("example_context")
    error = ValidationError.from_exception_data(
        "Settings",
        [{"type": kind, "loc": ("key",), "input": [1], "ctx": context or {}}],  # type: ignore[arg-type, list-item]
    )
    said = first_problem(error)
    assert said.startswith("key: ")
    assert not PYDANTIC.search(said), said
    assert "None" not in said, said
