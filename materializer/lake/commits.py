"""Commits to an Iceberg table that copy its metadata once, fail if another writer was faster, and replace files in a thread-safe way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

from ratchet.materializer.lake.arrow import pa
from ratchet.materializer.lake.data_files import write_data_files
from ratchet.runtime.leading import check_leads


class LeanTransaction(Transaction):  # type: ignore[misc]
    """A transaction that computes the metadata of each of its states once, and that fails if the table has another snapshot by now.

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

    def commit_transaction(self) -> Table:
        """Commit the staged updates. Raises Fenced if this process led and does not lead any more."""
        check_leads()
        return super().commit_transaction()

    def _rebuild_snapshot_updates(self) -> None:
        """Fail, in place of the repetition on the newer snapshot, which pyiceberg tries by default.

        The rows of an append were looked up in the former snapshot. Another writer may have stored them meanwhile.
        """
        raise CommitFailedException("another writer has committed meanwhile")

    def append_rows(self, rows: pa.Table, order: Sequence[str], properties: dict[str, str]) -> None:
        """Append rows, which the files have in the order of the columns `order`, in one snapshot with `properties`."""
        _check_pyarrow_schema_compatible(self.table_metadata.schema(), rows.schema, format_version=self.table_metadata.format_version)
        with self._append_snapshot_producer(properties) as update:
            for file in write_data_files(self.table_metadata, self._table.io, rows, order, update.commit_uuid):
                update.append_data_file(file)

    def replace_files(self, replaced: Sequence[DataFile], made: Sequence[DataFile], properties: dict[str, str]) -> None:
        """Let new files take the place of others in one snapshot with `properties`."""
        with _Replacement(Operation.OVERWRITE, self, self._table.io, snapshot_properties=properties) as update:
            for file in replaced:
                update.delete_data_file(file)
            for file in made:
                update.append_data_file(file)


class _Replacement(_OverwriteFiles):  # type: ignore[misc]
    """An overwrite whose threads do not share an evaluator of manifests.

    In pyiceberg they do, and the evaluator stores the partitions of the manifest that it evaluates as its own state. A thread then may
    evaluate its manifest by the partitions of another one and skip it, and the commit fails because the replaced files are missing.
    """

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        build = super()._build_manifest_evaluator
        return lambda manifest: cast(bool, build(spec_id)(manifest))
