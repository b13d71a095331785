"""Writes rows as data files, one or several for each partition.

pyiceberg does it, too, but it filters all rows once for each partition, and copies what it has found. Here the rows are sorted by their
partition, so that each partition is a slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from uuid import UUID

from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import bin_pack_arrow_table, pyarrow_to_schema, write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import TableProperties, WriteTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.properties import property_as_int

from ratchet.materializer.lake.arrow import pa


def write_data_files(metadata: TableMetadata, io: FileIO, rows: pa.Table, order: Sequence[str], write_uuid: UUID) -> Iterable[DataFile]:
    """Write `rows`, sorted by the columns `order` within each partition. No snapshot refers to the files yet."""
    size = property_as_int(
        metadata.properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    )
    schema = pyarrow_to_schema(rows.schema, name_mapping=metadata.schema().name_mapping, format_version=metadata.format_version)
    numbers = count()
    tasks = (
        WriteTask(write_uuid=write_uuid, task_id=next(numbers), record_batches=batches, partition_key=key, schema=schema)
        for key, part in _partitions(metadata, rows, order)
        for batches in bin_pack_arrow_table(part, size)
    )
    files: Iterable[DataFile] = write_file(io=io, table_metadata=metadata, tasks=tasks)
    return files


def _partitions(metadata: TableMetadata, rows: pa.Table, order: Sequence[str]) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """Yield the key of each partition and its rows in their order."""
    spec, schema, keyed = metadata.spec(), metadata.schema(), rows
    names = [f"_partition_{field.name}" for field in spec.fields]
    for name, field in zip(names, spec.fields, strict=True):
        source = schema.find_field(field.source_id)
        keyed = keyed.append_column(name, field.transform.pyarrow_transform(source.field_type)(rows[source.name]))
    if names or order:
        keyed = keyed.sort_by([(name, "ascending") for name in (*names, *order)])
    if not names:
        yield None, keyed
        return
    begin, rows = 0, keyed.drop_columns(names)
    for group in keyed.select(names).group_by(names, use_threads=False).aggregate([([], "count_all")]).to_pylist():
        values = [PartitionFieldValue(field=field, value=group[name]) for name, field in zip(names, spec.fields, strict=True)]
        yield PartitionKey(field_values=values, partition_spec=spec, schema=schema), rows.slice(begin, group["count_all"])
        begin += group["count_all"]
