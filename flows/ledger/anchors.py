"""Signs exports of the ledger's heads, keeps them outside the database, and reads them again.

Each export is one file that is never changed: `NUMBER-DIGEST.json`, where DIGEST is the SHA-256 digest of the file. It contains the digest
of the previous file. The newest number is also kept next to the key, so that missing exports at the end are noticed, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from ratchet.contracts.cycle import Head
from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import Digest, canonical, digest
from ratchet.contracts.model import Frozen
from ratchet.contracts.ports import Ledger
from ratchet.contracts.schema import parse, stamped
from ratchet.contracts.wording import first_problem
from ratchet.flows.core.anchors import FIRST_PREVIOUS, Damage, Export, anchor_damage
from ratchet.flows.ledger.anchor_key import AnchorKey, write_new
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.file_errors import unwritable

LAST = ".last"
"""Suffix of the file next to the key that names the newest export."""
_NAME = re.compile(r"(\d{8,})-([0-9a-f]{64})\.json")
_SIGNATURE = "signature"


class ExportStore(Protocol):
    """Place of the exports. Files are only added."""

    where: str
    """Folder or URL, for messages."""

    def names(self) -> list[str]:
        """Return the names of all files."""

    def get(self, name: str) -> bytes:
        """Return the content of a file. Raises Retryable if it cannot be read."""
        ...

    def add(self, name: str, data: bytes) -> None:
        """Write a new file. Raises Retryable if it cannot be written."""


class FolderExports:
    """Exports in a folder, which must support hard links."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.where = str(folder)

    def names(self) -> list[str]:
        """Return the names of all files; none if the folder does not exist."""
        try:
            return [path.name for path in self._folder.iterdir()] if self._folder.exists() else []
        except OSError as error:
            raise Retryable(f"cannot read {self._folder}: {error.strerror}; check its permissions") from error

    def get(self, name: str) -> bytes:
        """Return the content of a file. Raises Retryable if it cannot be read."""
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise Retryable(f"cannot read {self._folder / name}: {error.strerror}; check its permissions") from error

    def add(self, name: str, data: bytes) -> None:
        """Write a new file, which has its name only when it is complete. Raises Retryable if it cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_new(self._folder / name, data, 0o600)
        except OSError as error:
            raise unwritable(
                f"write {self._folder / name}", error, "make the folder writable, or name another one in RATCHET_ANCHORS"
            ) from error


class Last(Frozen):
    """The newest export, as recorded next to the key."""

    number: int
    """Number of the export."""
    export: Digest
    """Digest of its file."""
    heads: Digest
    """Digest of its heads."""


class ExportsRead(NamedTuple):
    """All exports that are signed with the key, oldest first, and what is wrong with the others."""

    exports: list[Export]
    damage: list[Damage]


class Anchors:
    """Writes and reads the exports of one ledger."""

    def __init__(self, store: ExportStore, key: AnchorKey) -> None:
        self._store = store
        self._key = key
        self._last_file = key.path.with_name(key.path.name + LAST)

    def export(self, ledger: Ledger, now: datetime) -> Export | None:
        """Export the heads of all streams if they differ from those of the newest export. Returns None if they do not.

        The key is created at first use. Raises Permanent if the ledger contradicts the newest export, because the new export would
        confirm the change; if the newest export or the key is missing; or if the export is not signed with the key. Raises Retryable if
        a file cannot be written.
        """
        heads = ledger.heads()
        if not heads or self._is_exported(heads):
            return None
        if not self._key.exists() and (self._numbered() or self._last() is not None):
            raise Permanent(
                f"the anchor key {self._key.path} is missing, but {self._store.where} contains exports that it signed; restore the key "
                "from a copy"
            )
        self._key.ensure()
        with self._key.held():
            heads = ledger.heads()
            return None if self._is_exported(heads) else self._write(ledger, heads, now)

    def _is_exported(self, heads: Sequence[Head]) -> bool:
        last = self._last()
        return last is not None and last.heads == _digest_of(heads)

    def _write(self, ledger: Ledger, heads: Sequence[Head], now: datetime) -> Export:
        newest, file = self._newest()
        if newest is not None and (damage := _contradictions(ledger, heads, newest)):
            said = "; ".join(one.text for one in damage)
            raise Permanent(f"nothing was exported, because the ledger was changed: {said}; restore a backup")
        export = Export(number=(newest.number if newest else 0) + 1, previous=file or FIRST_PREVIOUS, at=now, heads=tuple(heads))
        content = stamped(export)
        data = canonical({**json.loads(content), _SIGNATURE: self._key.sign(content)})
        self._store.add(_name(export.number, digest(data)), data)
        self._remember(Last(number=export.number, export=digest(data), heads=_digest_of(heads)))
        return export

    def _newest(self) -> tuple[Export | None, Digest | None]:
        """Return the newest export and the digest of its file. Raises Permanent if it is missing or not intact."""
        numbered, last = self._numbered(), self._last()
        if last is not None and (last.number, last.export) not in numbered:
            raise Permanent(f"export {last.number} is missing in {self._store.where}; put the exports back")
        if not numbered:
            return None, None
        number, file = numbered[-1]
        export, damage = self._read(number, file)
        if export is None:
            raise Permanent(f"{damage.text if damage else 'the newest export is damaged'}; put the exports back")
        return export, file

    def read(self) -> ExportsRead:
        """Read and verify all exports and their chain. Changes nothing. Raises Retryable if a file cannot be read."""
        exports: list[Export] = []
        damage: list[Damage] = []
        numbered, last = self._numbered(), self._last()
        if (numbered or last) and not self._key.exists():
            text = f"the anchor key {self._key.path} is missing, so no signature can be verified; restore the key or its public key"
            damage.append(Damage(what="key_missing", where=str(self._key.path), text=text))
        expected, previous = 1, FIRST_PREVIOUS
        for number, file in numbered:
            if number > expected:
                damage.append(self._missing(expected, number - 1))
            export, wrong = self._read(number, file)
            follows = number == expected and export is not None
            if wrong is None and (number < expected or (follows and export is not None and export.previous != previous)):
                text = f"{_name(number, file)} in {self._store.where} is not the successor of the export before it"
                wrong = Damage(what="export_forged", where=_name(number, file), text=text)
            if wrong is not None:
                damage.append(wrong)
            elif export is not None:
                exports.append(export)
            expected, previous = max(expected, number + 1), file
        if last is not None and last.number >= expected:
            damage.append(self._missing(expected, last.number))
        elif last is not None and (last.number, last.export) not in numbered:
            text = f"export {last.number} in {self._store.where} is not the one that was written"
            damage.append(Damage(what="export_forged", where=f"export {last.number}", text=text))
        return ExportsRead(exports, damage)

    def _missing(self, first: int, last: int) -> Damage:
        which = f"export {first}" if first == last else f"exports {first} to {last}"
        return Damage(what="export_missing", where=which, text=f"{which} {'is' if first == last else 'are'} missing in {self._store.where}")

    def _read(self, number: int, file: Digest) -> tuple[Export | None, Damage | None]:
        """Return an export, or the damage of its file. Without the key, no signature is checked."""
        name = _name(number, file)
        data = self._store.get(name)
        if digest(data) != file:
            return None, Damage(what="export_damaged", where=name, text=f"{name} in {self._store.where} was changed or is incomplete")
        try:
            content = json.loads(data)
            signature = str(content.pop(_SIGNATURE))
            signed = canonical(content)
            export = parse(Export, signed)
        except (ValueError, KeyError, AttributeError):
            return None, Damage(what="export_damaged", where=name, text=f"{name} in {self._store.where} is not an export of a ledger")
        if export.number != number or (self._key.exists() and not self._key.verifies(signed, signature)):
            text = f"{name} in {self._store.where} is not signed with the anchor key {self._key.path}"
            return None, Damage(what="export_forged", where=name, text=text)
        return export, None

    def _numbered(self) -> list[tuple[int, Digest]]:
        """Return number and digest of all exports by their names, sorted."""
        return sorted((int(found[1]), found[2]) for name in self._store.names() if (found := _NAME.fullmatch(name)))

    def _last(self) -> Last | None:
        try:
            return parse(Last, self._last_file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Permanent(f"cannot read {self._last_file}: {first_problem(error)}; restore the file from a copy") from error

    def _remember(self, last: Last) -> None:
        write_atomic(self._last_file, stamped(last))


def _name(number: int, file: Digest) -> str:
    return f"{number:08d}-{file}.json"


def _digest_of(heads: Sequence[Head]) -> Digest:
    return digest([[head.stream, head.seq, head.hash] for head in heads])


def _contradictions(ledger: Ledger, heads: Sequence[Head], newest: Export) -> list[Damage]:
    """Compare the ledger with an export. Only the rows of changed streams are read; rows before the exported head are not verified."""
    now = {head.stream: head for head in heads}
    hashes: dict[str, list[Digest]] = {}
    for old in newest.heads:
        head = now.get(old.stream)
        if head is None:
            continue
        at_old = head.hash if head.seq == old.seq else next((row.hash for row in ledger.read(old.stream, old.seq - 1)), "")
        hashes[old.stream] = [""] * (min(head.seq, old.seq) - 1) + [at_old]
    return anchor_damage(hashes, [newest])
