"""Schema version of ledger rows and JSON documents, and the upgrade of what an older release wrote.

One integer, `SCHEMA_VERSION`, covers all formats of a release. Each ledger row carries it in a column, each JSON document in the key
`schema_version`. A reader refuses a newer version. It brings an older one into the current form with the pure functions of this module,
and only then validates it with the strict types. Hashes and digests always cover the form that was written, so an upgrade never changes
them.

The first release wrote no version. Its rows and documents have version 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from ratchet.contracts.cycle import Entry, Step
from ratchet.contracts.errors import NewerRelease
from ratchet.contracts.ids import canonical, digest

SCHEMA_VERSION: Final = 4
"""Version that this release writes. A change that an older release cannot read, or that needs an upgrade function, increases it."""
UNVERSIONED: Final = 1
"""Version of rows and documents that carry no version."""

_KEY: Final = "schema_version"
_Model = TypeVar("_Model", bound=BaseModel)
_Data = dict[str, Any]


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
    it is not a JSON object.
    """
    content = json.loads(data)
    version = int(content.pop(_KEY, UNVERSIONED)) if isinstance(content, dict) else UNVERSIONED
    check_version(version, f"a stored {kind}")
    for upgrade in _DOCUMENTS[version - UNVERSIONED :]:
        content = upgrade(kind, content)
    if not isinstance(content, dict):
        raise ValueError(f"a stored {kind} is not a JSON object")
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
    for upgrade in _ROWS[entry.schema_version - UNVERSIONED :]:
        data = upgrade(entry.kind, entry.key, data)
    return entry.model_copy(update={"data": data})


def _row_from_1(kind: str, key: str, data: _Data) -> _Data:
    """Plans that were made before SFT existed name no demonstrations."""
    if kind == "done" and key == Step.PLAN:
        return {name: _with_demonstrations(value) if name in ("plan", "dataset") and value else value for name, value in data.items()}
    return data


def _document_from_1(kind: str, content: Any) -> Any:
    """Event logs were a list of events, and training sets and plans that were made before SFT existed name no demonstrations."""
    if kind == "EventLog" and isinstance(content, list):
        return {"events": content}
    return _with_demonstrations(content) if kind in ("TrainingSet", "TrainingPlan") else content


def _with_demonstrations(content: _Data) -> _Data:
    return {"demonstrations": digest(b""), **content}


def _row_from_2(_kind: str, _key: str, data: _Data) -> _Data:
    """Versions 3 and 4 only add keys with defaults. They make an older router and receiver recognisable, so that they are replaced."""
    return data


def _document_from_2(_kind: str, content: Any) -> Any:
    """As `_row_from_2`."""
    return content


_ROWS: tuple[Callable[[str, str, _Data], _Data], ...] = (_row_from_1, _row_from_2, _row_from_2)
"""Upgrades of a row's data, given its kind and key. The element at index n upgrades from version n + 1 to n + 2."""
_DOCUMENTS: tuple[Callable[[str, Any], Any], ...] = (_document_from_1, _document_from_2, _document_from_2)
"""Upgrades of a document's content, given its type. The element at index n upgrades from version n + 1 to n + 2."""
