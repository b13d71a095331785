"""Opens the credentials of a line's receiver: in the home folder, or in the database of the ledger where receivers are pods."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from ratchet.flows.config.home import Home
from ratchet.materializer.receive.credentials import CredentialStore, merged
from ratchet.runtime.documents import Documents, open_documents
from ratchet.runtime.secrets.files import replace_secret
from ratchet.runtime.serving.exchange import is_in_pods

_MIRRORED = "credentials.mirrored"
"""Document with the time of the newest state that `mirror_credentials` has written to the file."""


def open_credentials(home: Home, line: str) -> CredentialStore:
    """Return the store of the line's credentials. Nothing is created, except a copy in the database of a file of an earlier release.

    A receiver on this machine reads the file. Receivers in pods get the credentials through the exchange. Raises Retryable if the database
    cannot be reached.
    """
    file = home.credentials(line)
    if not is_in_pods():
        return CredentialStore(file, _now)
    _take_over(home.root, line)
    return CredentialStore(file, _now, _documents(home, line))


def mirror_credentials(home: Home, line: str, content: bytes, at: datetime) -> None:
    """Write the credentials as they were at a time to the file, for an earlier release to which an operator goes back."""
    replace_secret(home.credentials(line), content)
    # last: a crash in between must not make the file look newer
    _documents(home, line).change(_MIRRORED, lambda _: at.isoformat().encode())


@lru_cache(maxsize=1024)
def _take_over(root: Path, line: str) -> None:
    """Take what an earlier release has changed in its file, once in a process."""
    home = Home(root)
    file, documents = home.credentials(line), _documents(home, line)
    if not file.exists():
        return
    there, mirrored = file.read_bytes(), documents.read(_MIRRORED)
    since = datetime.fromisoformat(mirrored.decode()) if mirrored else datetime.min.replace(tzinfo=UTC)
    documents.change(file.name, lambda known: there if known is None else merged(known, there, since))


def _documents(home: Home, line: str) -> Documents:
    return open_documents(home.credentials(line).parent, home.database(line), "receiver")


def _now() -> datetime:
    return datetime.now(UTC)
