"""The stores of a line, which are in the home folder, or in the database of the ledger if that is Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.config.home import Home
from ratchet.runtime.documents import Documents, FolderDocuments, MovedDocuments, copy_documents, open_documents
from ratchet.runtime.jobs.job_protocol import JOB_RECORDS
from ratchet.runtime.sql_store import StoreLayout

_SHARED = "is_shared"
"""Document that says that the database has all of a line."""


def copy_files(home: Home, line: str) -> None:
    """Copy the content of the line's files to the database, if there is one and it does not have it. Raises Retryable.

    A store does this itself at its first change. It may be long until then, and the home folder may be lost before.
    """
    from ratchet.materializer.erasure.pending import PendingErasure
    from ratchet.materializer.mirror import copy_key

    database = home.database(line)
    if database is None:
        return
    PendingErasure(home.erasing(line), database).move_file()
    _copy_job_documents(home, line)
    for layout, file in _stores(home, line):
        if file.exists():
            with database.store(layout, file).changing():
                pass
    copy_key(home.lake(line).folder, database)
    open_credentials(home, line)
    shared = open_documents(home.root, database, "service")
    if shared.read(_SHARED) is None:
        shared.change(_SHARED, lambda _: b"1")


def is_shared(home: Home, line: str) -> bool:
    """Return whether `copy_files` has copied the line's content, from whichever volume. Raises Retryable."""
    database = home.database(line)
    return database is not None and open_documents(home.root, database, "service").read(_SHARED) is not None


def job_documents(home: Home, line: str) -> Documents:
    """Open the records of the line's jobs and gangs on a cluster, and their costs. Sends no request yet.

    With a ledger in Postgres, they are in its database, so that another pod with an empty home folder continues the jobs. Files of an
    earlier release are read until they are copied.
    """
    files, database = FolderDocuments(home.jobs(line)), home.database(line)
    return files if database is None else MovedDocuments(_stored_job_documents(home, line), files)


def _stored_job_documents(home: Home, line: str) -> Documents:
    return open_documents(home.jobs(line), home.database(line), "jobs")


def _copy_job_documents(home: Home, line: str) -> None:
    """Copy the records of jobs and gangs on a cluster. Those of jobs on this machine stay in the folder, beside their processes."""
    from ratchet.k8s.gangs.submissions import DEATHS, ENDING, FOLDER, INSTALLATION, METERS

    files, target = FolderDocuments(home.jobs(line)), _stored_job_documents(home, line)
    if files.read(INSTALLATION) is None:
        return
    missing = [INSTALLATION]
    for folder in (FOLDER, METERS, DEATHS, JOB_RECORDS):
        missing += set(files.names(folder, ENDING)) - set(target.names(folder, ENDING))
    copy_documents(files, target, missing)


def _stores(home: Home, line: str) -> Iterator[tuple[StoreLayout, Path]]:
    """Yield each store of a line that has a SQLite file without a database, with that file."""
    from ratchet.materializer.quarantine import kept
    from ratchet.materializer.training_sets import prompt_sides
    from ratchet.rewards.judge import records

    folder = home.lake(line).folder
    yield prompt_sides.LAYOUT, folder / prompt_sides.FILE
    yield records.LAYOUT, home.judgements
    yield kept.LAYOUT, folder / kept.FILE
