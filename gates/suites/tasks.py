"""The tasks of a suite: a JSONL file beside the loop file, one task per line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.model import Frozen
from ratchet.contracts.wording import first_problem

LEAST = 20
"""Minimum number of groups of tasks that a comparison needs."""


class SuiteTask(Frozen):
    """One task: a question, and what a scorer needs to know to judge an answer."""

    id: Annotated[str, Field(pattern=r"^\S(.{0,78}\S)?$")] = "unnamed"
    """By which reports name the task. Default: the line of the file."""
    prompt: str | None = None
    """The question, as one message of a user. Either this or `messages` is given."""
    messages: tuple[dict[str, Any], ...] = ()
    """The conversation, if the question is more than one message."""
    reference: str | None = None
    """The right answer, or what the scorer takes in its place, such as the tests of a programming task."""
    group: str | None = None
    """Tasks of one group are variants of one question, and count as one observation. None: the task is a group by itself."""

    @model_validator(mode="after")
    def _asks(self) -> SuiteTask:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("set either prompt or messages")
        if any(not isinstance(one.get("role"), str) or one.get("content") is None for one in self.messages):
            raise ValueError("each message needs role and content")
        return self

    @property
    def conversation(self) -> tuple[dict[str, Any], ...]:
        """The messages that a model is asked."""
        return self.messages or ({"role": "user", "content": self.prompt},)

    @property
    def cluster(self) -> str:
        """The observation that the task belongs to."""
        return self.group or digest([list(self.conversation), self.reference])


def read_suite(path: Path, name: str) -> tuple[SuiteTask, ...]:
    """Return the tasks of a suite's file.

    Raises ConfigError with the line number if the file cannot be read, if it has too few groups, or if an id or a task occurs twice.
    """
    where = f"gate.suites.{name}.file: {path}"
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except (OSError, ValueError) as error:  # a path with a NUL is no path
        raise ConfigError(
            f"{where} cannot be read: {getattr(error, 'strerror', None) or error}; correct the path in the loop file"
        ) from error
    found, seen = list[SuiteTask](), dict[str, str]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = SuiteTask.model_validate_json(line)
        except ValueError as error:
            raise ConfigError(f"{where}, line {number}: {first_problem(error, quote=True)}") from error
        task = task if "id" in task.model_fields_set else task.model_copy(update={"id": f"line {number}"})
        for key, what in ((f"id {task.id}", f"the id {task.id!r}"), (digest(list(task.conversation)), "the same question")):
            if key in seen:
                raise ConfigError(f"{where}, line {number}: {what} is also that of {seen[key]}; each task may occur once")
            seen[key] = task.id
        found.append(task)
    groups = len({one.cluster for one in found})
    if groups < LEAST:
        raise ConfigError(f"{where} has {groups} groups of tasks; a comparison needs {LEAST}")
    return tuple(found)


def tasks_digest(tasks: tuple[SuiteTask, ...]) -> Digest:
    """Return the identity of the tasks, independent of their order."""
    return digest(sorted(digest(one.model_dump(mode="json")) for one in tasks))
