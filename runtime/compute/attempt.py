"""Calls a function for one item, and carries its result or its error from a worker to the caller."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from ratchet.contracts import errors
from ratchet.contracts.errors import Permanent, RatchetError, Retryable


class Outcome(NamedTuple):
    """What a call gave. An exception is carried as text, because not all exceptions survive pickling."""

    value: Any = None
    error: str = ""
    """Name of the class in contracts/errors.py; empty if the call gave a value."""
    message: str = ""


def attempt(function: Callable[[Any], Any], content: Any) -> Outcome:
    """Call the function. The message of an exception that Ratchet does not raise is left out, because it may quote a user."""
    try:
        return Outcome(function(content))
    except RatchetError as error:
        return Outcome(None, type(error).__name__, str(error))
    except (OSError, MemoryError) as error:
        return Outcome(None, Retryable.__name__, _unforeseen(error))
    except Exception as error:
        return Outcome(None, Permanent.__name__, _unforeseen(error))


def value_of(outcome: Outcome, name: str) -> Any:
    """Return the value of an outcome, or raise its error, whose message begins with the name of the item."""
    outcome = Outcome(*outcome)  # a worker without Ratchet returns a plain tuple
    if not outcome.error:
        return outcome.value
    kind = getattr(errors, outcome.error, None)
    if not (isinstance(kind, type) and issubclass(kind, RatchetError)) or kind is errors.Rejected:
        kind = Permanent
    raise kind(f"{name}: {outcome.message}")


def _unforeseen(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"unforeseen {type(error).__name__} at {place.filename.rsplit('/', 2)[-2]}/{place.name}:{place.lineno}"
