"""Where a lake lies: in one folder, or with its files in a bucket and its catalog in Postgres or behind the REST protocol of Iceberg.

Looks at databases without pyiceberg.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.materializer.lake.places.rest import is_rest, rest_tables, shown_rest
from ratchet.runtime.sql_store import SqlStore, StoreDatabase, StoreLayout, open_store
from ratchet.runtime.watched_file import stamp_of

if TYPE_CHECKING:
    import sqlalchemy as sa

CATALOG = "catalog.sqlite"
"""Name of the catalog's database in the folder of a local lake."""
CATALOG_NAME = "ratchet"
"""Name of the catalog in its database, by which other engines find it."""


@dataclass(frozen=True)
class LakePlace:
    """The place of a lake. Without `catalog` and `warehouse`, the lake is local: both are below `folder`."""

    folder: Path
    """Folder of the locks, of the deduplication index and of caches."""
    namespace: str = "ratchet"
    """Namespace of the tables in the catalog."""
    catalog: str = field(default="", repr=False)
    """SQLAlchemy URL of the Postgres database with the catalog, or the https URL of a REST catalog. It may have a password."""
    warehouse: str = ""
    """s3://BUCKET/PREFIX of the files. Those of the tables are below PREFIX/NAMESPACE."""
    database: StoreDatabase | None = None
    """Database of what the lake remembers beside its tables and cannot compute again. None: SQLite files in the folder."""

    @property
    def is_shared(self) -> bool:
        """Whether catalog and files are outside of the folder."""
        return bool(self.warehouse)

    @property
    def remedy(self) -> str:
        """Advice for a person if the lake cannot be read or written."""
        what = "check the catalog of RATCHET_CATALOG_URL and the bucket" if self.is_shared else "free disk space"
        return f"{what}, then try again"

    def __str__(self) -> str:
        """Return the place for messages."""
        return f"{self.warehouse}/{self.namespace}" if self.is_shared else str(self.folder)

    def exists(self) -> bool:
        """Return whether there is a lake. Nothing is created. Raises Retryable if its catalog cannot be read."""
        return bool(self.tables()) if self.is_shared else self.folder.exists()

    def tables(self) -> dict[str, str]:
        """Return the location of the current metadata file of each table; none if there is no lake yet.

        Raises Retryable if the catalog cannot be read.
        """
        if not self.is_shared:
            return _local_tables(self.folder.resolve() / CATALOG)
        return (_rest_tables if is_rest(self.catalog) else _database_tables)(self.catalog, self.namespace)

    def store(self, layout: StoreLayout, file: str) -> SqlStore:
        """Return a store of the lake. Without a database, it is in the file of that name in the folder."""
        return open_store(layout, self.folder.resolve() / file, self.database)

    def state(self) -> object:
        """Return a value that each commit changes, for comparisons. Raises Retryable if the catalog cannot be read."""
        if self.is_shared:
            return tuple(sorted(self.tables().items()))
        try:
            return stamp_of(self.folder / CATALOG)
        except OSError:
            return None


def place_of(where: LakePlace | Path) -> LakePlace:
    """Return the place of a lake; a path is the folder of a local one."""
    return where if isinstance(where, LakePlace) else LakePlace(where)


def _local_tables(catalog: Path) -> dict[str, str]:
    if not catalog.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"{catalog.as_uri()}?mode=rw", uri=True, timeout=30)) as connection:
            rows = connection.execute("SELECT table_name, metadata_location FROM iceberg_tables").fetchall()
    except sqlite3.Error as error:
        raise Retryable(f"the catalog of the lake {catalog} cannot be read: {error}") from error
    return {str(name): str(file) for name, file in rows}


def _rest_tables(url: str, namespace: str) -> dict[str, str]:
    from pydantic import ValidationError
    from pyiceberg.exceptions import RESTError

    try:
        return rest_tables(url, CATALOG_NAME, namespace)
    except ValidationError:  # its text may quote a token
        raise Retryable(f"the catalog of the lake at {shown_rest(url)} answers otherwise than the REST protocol says") from None
    except (RESTError, OSError) as error:
        raise Retryable(f"the catalog of the lake at {shown_rest(url)} cannot be read: {reason(error)}") from error


def _database_tables(url: str, namespace: str) -> dict[str, str]:
    import sqlalchemy as sa

    engine = catalog_engine(url)
    tables = sa.table("iceberg_tables", *map(sa.column, ("catalog_name", "table_namespace", "table_name", "metadata_location")))
    asked = sa.select(tables.c.table_name, tables.c.metadata_location)
    asked = asked.where(tables.c.catalog_name == CATALOG_NAME, tables.c.table_namespace == namespace)
    try:
        with engine.connect() as connection:
            try:
                rows = connection.execute(asked).all()
            except sa.exc.ProgrammingError:
                connection.rollback()
                if sa.inspect(connection).has_table("iceberg_tables"):
                    raise
                return {}  # no lake of the installation has been opened yet
    except sa.exc.SQLAlchemyError as error:
        raise Retryable(f"the catalog of the lake in {shown(url)} cannot be read: {reason(error)}") from error
    return {str(name): str(file) for name, file in rows}


@lru_cache(maxsize=4)
def catalog_engine(url: str) -> sa.Engine:
    """Return the connections of this process to a catalog. Raises ConfigError if no driver for the URL is installed."""
    import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
        if "connect_timeout" not in parsed.query:  # otherwise a database that does not answer would hold up the service for minutes
            parsed = parsed.update_query_dict({"connect_timeout": "10"})
        return sa.create_engine(parsed, pool_pre_ping=True)
    except (ImportError, sa.exc.NoSuchModuleError) as error:
        raise ConfigError(
            f"RATCHET_CATALOG_URL: no driver is installed: {error}; use postgresql+psycopg://, and install ratchet[postgres]"
        ) from error
    except sa.exc.ArgumentError as error:
        raise ConfigError("RATCHET_CATALOG_URL is not a SQLAlchemy URL; use postgresql+psycopg://USER@HOST/NAME") from error


def shown(url: str) -> str:
    """Return the URL of a catalog without password and options, for messages."""
    import sqlalchemy as sa

    parsed = sa.make_url(url)
    return f"{parsed.host or 'a local database'}/{parsed.database or ''}"


def reason(error: Exception) -> str:
    """Return the reason of a failure in one line, without the statement and the parameters that SQLAlchemy adds."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
