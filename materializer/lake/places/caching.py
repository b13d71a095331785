"""A catalog in a database that reads each metadata file once.

pyiceberg reads and checks the metadata of a table each time that it loads the table, and an ingest loads a table about fourteen times. A
metadata file never changes: a commit writes a new one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

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

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        if not orm_table.metadata_location:
            return super()._convert_orm_to_iceberg(orm_table)
        location = str(orm_table.metadata_location)
        metadata = self._read(location)
        identifier = (*self.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        return Table(identifier, metadata, location, self._load_file_io(metadata.properties, location), self)
