"""Validates the options of scorers in a loop file. Does not depend on any particular scorer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.model import Frozen
from ratchet.contracts.wording import problems
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
        first = problems(error)[0]
        about = f"option {first.key!r}: " if first.key else ""
        told = first.said(quote=first.kind not in ("missing", "value_error"))
        raise ConfigError(f"reward {scorer!r}, {about}{told}; correct the loop file") from error
