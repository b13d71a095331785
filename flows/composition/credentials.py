"""Opens the credentials of a line's receiver: in the home folder, or in the database of the ledger where receivers are pods."""

from __future__ import annotations

from datetime import UTC, datetime

from ratchet.flows.config.home import Home
from ratchet.materializer.receive.credentials import CredentialStore
from ratchet.runtime.documents import FolderDocuments, copy_documents, open_documents
from ratchet.runtime.serving.exchange import is_in_pods


def open_credentials(home: Home, line: str) -> CredentialStore:
    """Return the store of the line's credentials. Nothing is created, except a copy of a file of an earlier release in the database.

    A receiver on this machine reads the file. Receivers in pods get the credentials through the exchange. Raises Retryable if the database
    cannot be reached.
    """
    file = home.credentials(line)
    if not is_in_pods():
        return CredentialStore(file, _now)
    documents = open_documents(file.parent, home.database(line), "receiver")
    if file.exists():
        copy_documents(FolderDocuments(file.parent), documents, [file.name])
    return CredentialStore(file, _now, documents)


def _now() -> datetime:
    return datetime.now(UTC)
