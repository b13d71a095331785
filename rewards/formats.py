"""Scorers of the form of an answer: JSON that follows a schema, and regular expressions. They need no reference.

The answers are untrusted, and matching a pattern with one of them can take unlimited time. `rewards/bounded` therefore evaluates them in a
process with limits. An answer that exceeds the limits gets no score. On a busy machine, this can happen to a right answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from pydantic import Field

from ratchet.contracts.data.records import Tier
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.model import Frozen
from ratchet.rewards.bounded.worker import bounded_score
from ratchet.rewards.code_blocks import only_block
from ratchet.rewards.options import check_options


class JsonSchemaOptions(Frozen):
    """Options of the scorer `JsonSchema`."""

    json_schema: dict[str, Any] | str
    """The JSON schema, as a table or as JSON text. Without `$schema`, it is of draft 2020-12. References must stay inside the schema."""
    fenced: bool = True
    """Whether the answer may contain other text around one fenced code block. Then the block is checked instead of the whole answer."""
    timeout: float = Field(default=1.0, gt=0, le=60)
    """Maximum CPU time per answer in seconds. An answer that exceeds it gets no score."""


class JsonSchema:
    """Score 1 if the answer is JSON that follows a schema, otherwise 0. Abstain if the check takes too long."""

    name = "json_schema"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer"})

    def __init__(self, **options: Any) -> None:
        self.options = check_options(self.name, JsonSchemaOptions, options)
        self._schema = _checked_schema(self.options.json_schema)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Check the JSON of each answer."""
        return [self._score(sample.get("answer")) for sample in samples]

    def _score(self, answer: str | None) -> float | None:
        if answer is None:
            return None
        text = only_block(answer) if self.options.fenced else answer
        return bounded_score(self.name, self.options.timeout, schema=self._schema, text=text)


class RegexOptions(Frozen):
    """Options of the scorer `Regex`."""

    pattern: str
    """Regular expression of Python's module `re`. Flags are part of it, for example `(?i)`."""
    whole: bool = False
    """Whether the expression must match the whole answer and not only a part of it."""
    forbid: bool = False
    """Whether a match is wrong: the score is then 0 for an answer that matches, and 1 for any other."""
    timeout: float = Field(default=1.0, gt=0, le=60)
    """Maximum CPU time per answer in seconds. An answer that exceeds it gets no score."""


class Regex:
    """Score 1 if the answer matches a regular expression, otherwise 0. Abstain if the match takes too long."""

    name = "regex"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer"})

    def __init__(self, **options: Any) -> None:
        self.options = check_options(self.name, RegexOptions, options)
        try:
            re.compile(self.options.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(f"reward 'regex', option 'pattern': {error}; correct the loop file") from error

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Match the expression with each answer."""
        return [self._score(sample.get("answer")) for sample in samples]

    def _score(self, answer: str | None) -> float | None:
        if answer is None:
            return None
        found = bounded_score(self.name, self.options.timeout, pattern=self.options.pattern, text=answer, whole=self.options.whole)
        return 1.0 - found if found is not None and self.options.forbid else found


def _checked_schema(given: dict[str, Any] | str) -> str:
    """Return the schema as JSON text. Raises ConfigError if it is not a valid schema, or if it refers to another document."""
    try:
        schema = json.loads(given) if isinstance(given, str) else given
        validator_for(schema).check_schema(schema)
    except (ValueError, RecursionError, SchemaError) as error:
        reason = error.message if isinstance(error, SchemaError) else str(error)
        raise ConfigError(f"reward 'json_schema', option 'json_schema': not a JSON schema: {reason}; correct the loop file") from error
    outside = next((link for link in _links(schema) if not link.startswith("#")), None)
    if outside is not None:
        raise ConfigError(
            f"reward 'json_schema', option 'json_schema': the reference {outside!r} leaves the schema; copy its target into `$defs`"
        )
    return json.dumps(schema)


def _links(schema: Any) -> Iterator[str]:
    """Yield the targets of all references in a schema."""
    if isinstance(schema, dict):
        yield from (value for key, value in schema.items() if key in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str))
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for part in inner:
        yield from _links(part)
