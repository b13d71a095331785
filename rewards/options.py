"""Validates the options of scorers in a loop file. Does not depend on any particular scorer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.model import Frozen
from ratchet.runtime.extensions import nearest

Options = TypeVar("Options", bound=Frozen)


def check_options(scorer: str, kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Return the options `given` in the loop file as an instance of `kind`.

    Raises `ConfigError` for an invalid value or an unknown key. The message suggests the nearest known key.
    """
    known = sorted(kind.model_fields)
    for key in given:
        if key not in known:
            raise ConfigError(
                f"reward {scorer!r} has no option {key!r}" + nearest(key, known) + f"; its options: {', '.join(known) or 'none'}"
            )
    try:
        return kind(**given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        about = f"option {where!r}: " if where else ""
        shown = first["type"] not in ("missing", "value_error") and "://" not in str(first["input"])  # a URL may contain a password
        got = f", got {first['input']!r}" if shown else ""
        problem = "it is required" if first["type"] == "missing" else first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"reward {scorer!r}, {about}{problem}{got}; correct the loop file") from error
