"""Commits to an Iceberg table that copy its metadata once."""

from __future__ import annotations

from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata


class LeanTransaction(Transaction):  # type: ignore[misc]
    """A transaction that computes the metadata of each of its states once.

    pyiceberg computes it at each access, with a copy of the metadata, which has all snapshots. An append accesses it about twenty times,
    so that a third of the CPU time of a small batch would go into copies. Nothing changes the computed metadata.
    """

    _computed: tuple[TableMetadata, tuple[object, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata of the table with the staged updates."""
        base, updates = self._table.metadata, self._updates
        computed = self._computed
        if computed is None or computed[0] is not base or computed[1] is not updates:
            self._computed = computed = base, updates, super().table_metadata
        return computed[2]
