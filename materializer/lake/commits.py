"""Commits to an Iceberg table that copy its metadata once, and that fail if another writer was faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count, pairwise

import numpy as np
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Transaction, WriteTask
from pyiceberg.table.metadata import TableMetadata

from ratchet.materializer.lake.arrow import pa

_FILE_BYTES = 512 << 20
"""Bytes of rows in memory after which a data file ends, as in pyiceberg."""


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

    def _rebuild_snapshot_updates(self) -> None:
        """Fail, in place of the repetition on the newer snapshot, which pyiceberg tries by default.

        The rows of an append were looked up in the former snapshot. Another writer may have stored them meanwhile.
        """
        raise CommitFailedException("another writer has committed meanwhile")

    def append_rows(self, rows: pa.Table, order: tuple[str, ...], properties: Mapping[str, str]) -> None:
        """Append rows. Those of each data file are sorted by `order`, and otherwise keep their order.

        pyiceberg filters all rows once for each partition, and a batch may have many days. Here they are sorted by partition. Raises
        ValueError if the rows have not the schema of the table.
        """
        from pyiceberg.io import pyarrow as writing  # after arrow.py, so that it does not load pandas

        metadata = self.table_metadata
        writing._check_pyarrow_schema_compatible(metadata.schema(), provided_schema=rows.schema, format_version=metadata.format_version)
        schema = writing.pyarrow_to_schema(rows.schema, name_mapping=metadata.schema().name_mapping, format_version=metadata.format_version)
        is_small = rows.nbytes <= _FILE_BYTES  # to add up the bytes of each part costs as much as to write it
        with self._append_snapshot_producer(dict(properties)) as made:
            numbers = count()
            tasks = (
                WriteTask(write_uuid=made.commit_uuid, task_id=next(numbers), schema=schema, record_batches=batches, partition_key=key)
                for key, part in self._partitions(rows, order)
                for batches in ([part.to_batches()] if is_small else writing.bin_pack_arrow_table(part, _FILE_BYTES))
            )
            for file in writing.write_file(io=self._table.io, table_metadata=metadata, tasks=tasks):
                made.append_data_file(file)

    def _partitions(self, rows: pa.Table, order: tuple[str, ...]) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
        """Yield the rows of each partition."""
        spec, schema = self.table_metadata.spec(), self.table_metadata.schema()
        names = [f"_partition_{field.name}" for field in spec.fields]
        for field, name in zip(spec.fields, names, strict=True):
            source = schema.find_field(field.source_id)
            rows = rows.append_column(name, field.transform.pyarrow_transform(source.field_type)(rows.column(source.name)))
        if keys := (*names, *order):
            rows = rows.sort_by([(key, "ascending") for key in keys])  # keeps the order of rows with equal keys
        values, rows = rows.select(names), rows.drop_columns(names).combine_chunks()
        changes = [0, len(rows)]
        for column in values.columns:
            encoded = column.combine_chunks().dictionary_encode("encode").indices.to_numpy(zero_copy_only=False)
            changes += (np.flatnonzero(np.diff(encoded)) + 1).tolist()
        for begin, end in pairwise(sorted(set(changes))):
            found = [PartitionFieldValue(field, values.column(name)[begin].as_py()) for field, name in zip(spec.fields, names, strict=True)]
            yield PartitionKey(found, spec, schema) if names else None, rows.slice(begin, end - begin)
