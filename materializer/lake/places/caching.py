"""A catalog in a database that reads each metadata file once.

pyiceberg reads and checks the metadata of a table each time that it loads the table, and an ingest loads a table about twenty times. A
metadata file never changes: a commit writes a new one. So a load needs only the location of the current file, by one statement, which is
built once: pyiceberg builds the same one for each load, which takes ten times as long as SQLite needs for it.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier
from sqlalchemy import Select, bindparam, select

_FILES = 64
"""Number of metadata files that are kept in memory."""


class CachingCatalog(SqlCatalog):  # type: ignore[misc]
    """A catalog in SQLite or Postgres that keeps the metadata which it has read."""

    def __init__(self, name: str, **properties: Any) -> None:
        self._read = lru_cache(maxsize=_FILES)(self._read_metadata)
        super().__init__(name, **properties)

    def _read_metadata(self, location: str) -> TableMetadata:
        from pyiceberg.serializers import FromInputFile

        return FromInputFile.table_metadata(self._load_file_io(location=location).new_input(location))

    @cached_property
    def _current(self) -> Select[tuple[str | None]]:
        """The query for the location of a table's metadata file. It finds tables only: other engines may add views to the catalog."""
        found = select(IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == bindparam("namespace"),
            IcebergTables.table_name == bindparam("table"),
        )
        of_tables = self._iceberg_type_filter()
        return found if of_tables is None else found.where(of_tables)

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return a table as it is now. Raises NoSuchTableError."""
        *levels, name = self.identifier_to_tuple(identifier)
        namespace = self.namespace_to_string(tuple(levels))
        with self.engine.connect() as connection:
            location = connection.scalar(self._current, {"namespace": namespace, "table": name})
        if not location:
            raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
        metadata = self._read(location)
        return Table((*levels, name), metadata, location, self._load_file_io(metadata.properties, location), self)
