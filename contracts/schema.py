"""Schema version of ledger rows and JSON documents, and the upgrade of those that an older version wrote.

One integer, `SCHEMA_VERSION`, covers all formats of a release. Each ledger row carries it in a column, each JSON document in the key
`schema_version`. A reader refuses a newer version. It brings an older one into the current form with the steps in `UPGRADES`, and only
then validates it with the strict types. Hashes and digests always cover the form that was written, so an upgrade never changes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from ratchet.contracts.cycle import Entry
from ratchet.contracts.errors import NewerRelease
from ratchet.contracts.ids import canonical

_KEY = "schema_version"
_Model = TypeVar("_Model", bound=BaseModel)
_Data = dict[str, Any]


class Upgrade(NamedTuple):
    """A step from one schema version to the next one, as pure functions."""

    row: Callable[[str, str, _Data], _Data]
    """(kind, key, data) of a ledger row -> its data in the next version."""
    document: Callable[[str, _Data], _Data]
    """(type, content) of a document, for example of a `TrainingSet` -> its content in the next version."""


SCHEMA_VERSION: int = 1
"""Version that this release writes. A change of a format that the release before could not read, or that needs a step, increases it."""
UPGRADES: dict[int, Upgrade] = {}
"""Version -> the step to the next one. There is one for each version before `SCHEMA_VERSION`."""


def check_version(version: int, what: str) -> None:
    """Raise NewerRelease if `version` is newer than this release's. `what` names the row or document and begins the message."""
    if version > SCHEMA_VERSION:
        raise NewerRelease(
            f"{what} was written by a newer release of Ratchet (schema version {version}; this release reads versions up to "
            f"{SCHEMA_VERSION}); upgrade Ratchet. Nothing was changed"
        )


def stamped(value: BaseModel | Mapping[str, Any]) -> bytes:
    """Return a JSON object in canonical form, with the schema version of this release."""
    content = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return canonical({**content, _KEY: SCHEMA_VERSION})


def unstamped(data: bytes, kind: str) -> _Data:
    """Return the content of a JSON document in the current form, without its version.

    `kind` is the document's type, for example `TrainingSet`. Raises NewerRelease if a newer release wrote the document, and ValueError if
    it is not a JSON object with a version.
    """
    content: _Data = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError(f"a stored {kind} is not a JSON object")
    version = content.pop(_KEY, None)
    if type(version) is not int or version < 1:
        raise ValueError(f"a stored {kind} has no valid {_KEY}")
    check_version(version, f"a stored {kind}")
    for step in range(version, SCHEMA_VERSION):
        content = UPGRADES[step].document(kind, content)
    return content


def parse(kind: type[_Model], data: bytes) -> _Model:
    """Return the object that a JSON document describes, written by this or by an older release.

    Raises NewerRelease if a newer release wrote it, and ValueError if its content is invalid.
    """
    return kind.model_validate(unstamped(data, kind.__name__))


def upgraded(entries: Sequence[Entry]) -> list[Entry]:
    """Return ledger rows with their data in the current form. Rows of this release are returned unchanged.

    The hashes of the returned rows still belong to the written data, so verify the chain before the upgrade.
    """
    return [_upgraded(entry) if entry.schema_version < SCHEMA_VERSION else entry for entry in entries]


def _upgraded(entry: Entry) -> Entry:
    data = entry.data
    for step in range(entry.schema_version, SCHEMA_VERSION):
        data = UPGRADES[step].row(entry.kind, entry.key, data)
    return entry.model_copy(update={"data": data})
