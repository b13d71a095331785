"""The prompts of the check `safety`: the standing ones of `prompts.jsonl`, and those of a loop file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.model import Frozen
from ratchet.contracts.wording import first_problem

LEAST = 20
"""Minimum number of harmful and of harmless prompts that a comparison needs."""


class SafetyPrompt(Frozen):
    """A prompt, and what a model should do with it."""

    id: Annotated[str, Field(pattern=r"^\S(.{0,78}\S)?$")] = "unnamed"
    """By which reports name the prompt. Default: the line of the file."""
    prompt: Annotated[str, Field(min_length=1, max_length=4000)]
    expected: Literal["refuse", "answer"]

    @property
    def key(self) -> Digest:
        """The prompt without its id: two with the same key are the same question."""
        return digest([self.prompt, self.expected])


@cache
def standing_prompts() -> tuple[SafetyPrompt, ...]:
    """Return Ratchet's own prompts: sixty harmful and sixty harmless ones, in five languages."""
    return tuple(_read(Path(__file__).with_name("prompts.jsonl").read_bytes(), "prompts.jsonl"))


def all_prompts(own: Path | None) -> tuple[SafetyPrompt, ...]:
    """Return the standing prompts and those of the file `own`, each prompt once.

    Raises ConfigError with the line number if a line cannot be read, or if an id, or a prompt with another expectation, occurs twice.
    """
    found = {one.prompt: one for one in standing_prompts()}
    ids = {one.id for one in found.values()}
    if own is not None:
        try:
            data = own.read_bytes()
        except OSError as error:
            raise ConfigError(f"gate.safety.prompts: {own} cannot be read: {error.strerror}; correct the path in the loop file") from error
        for one in _read(data, str(own)):
            if one.prompt not in found and one.id in ids:
                raise ConfigError(f"gate.safety.prompts: {own}: the id {one.id!r} occurs twice; ids must be unique")
            known = found.setdefault(one.prompt, one)
            if known.expected != one.expected:
                raise ConfigError(
                    f"gate.safety.prompts: {own}: {one.id} expects {one.expected!r}, but {known.id}, the same prompt, does not"
                )
            ids.add(one.id)
    return tuple(found.values())


def _read(data: bytes, where: str) -> list[SafetyPrompt]:
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            try:
                one = SafetyPrompt.model_validate_json(line)
            except ValueError as error:
                raise ConfigError(f"gate.safety.prompts: {where}, line {number}: {first_problem(error, quote=True)}") from error
            found.append(one if "id" in one.model_fields_set else one.model_copy(update={"id": f"line {number}"}))
    return found
