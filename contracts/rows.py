"""Reads the content of ledger rows with their types."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from ratchet.contracts.cycle import Entry
from ratchet.contracts.errors import Permanent
from ratchet.contracts.model import Frozen
from ratchet.contracts.wording import first_problem

_Content = TypeVar("_Content", bound=Frozen)


def content_of(kind: type[_Content], row: Entry) -> _Content:
    """Return the content of a row. Raises Permanent, which names the row and the field, if the row does not fit its type."""
    try:
        return kind.model_validate(row.data)
    except ValidationError as error:
        raise Permanent(
            f"row {row.seq} of {row.stream} ({f'{row.kind} {row.key}'.strip()}) is not a valid {kind.__name__}: {first_problem(error)}; "
            "`ratchet verify` shows whether the ledger was changed"
        ) from error
