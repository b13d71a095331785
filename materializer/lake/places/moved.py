"""Makes a lake usable after its folder was moved or copied.

The specification of Iceberg wants absolute paths in a table's metadata: in the metadata file, in the lists of manifests and in the
manifests. This module replaces their beginning. Each file is replaced as a whole, and the catalog changes last, so an interrupted call is
completed by the next one. The content of a data file names no path.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from ratchet.materializer.lake.places.place import CATALOG
from ratchet.materializer.lake.places.size import here
from ratchet.runtime.artifacts import write_atomic

_SCHEME = "file://"


def was_moved(root: Path) -> bool:
    """Return whether the catalog of the lake in the folder `root` (absolute, resolved) names another folder."""
    catalog = root / CATALOG
    if not catalog.exists():
        return False
    with closing(sqlite3.connect(catalog, timeout=30)) as connection:
        return bool(_former(root, _locations(connection)))


def adopt_place(root: Path) -> None:
    """Replace the former place of the lake in the folder `root` by `root` in all metadata. One process calls it at a time."""
    with closing(sqlite3.connect(root / CATALOG, timeout=30, isolation_level=None)) as connection:
        locations = _locations(connection)
        for place in _former(root, locations):
            for location in locations:
                if location.startswith(place):
                    _table(here(root, location), partial(_moved, former=place, root=root))
            for column in ("metadata_location", "previous_metadata_location"):
                changed = f"UPDATE iceberg_tables SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"  # noqa: S608
                connection.execute(changed, (f"{_SCHEME}{root}/", len(place) + 1, len(place), place))


def _locations(connection: sqlite3.Connection) -> list[str]:
    """Return the metadata files that the catalog names; none if it has no tables yet."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone():
        return []
    return [str(location) for (location,) in connection.execute("SELECT metadata_location FROM iceberg_tables")]


def _former(root: Path, locations: Iterable[str]) -> list[str]:
    """Return the former places of the lake: what precedes "warehouse/" in the paths that lead to another folder than `root`."""
    away = [one for one in locations if not _local(one).resolve().is_relative_to(root)]
    return sorted({one.rpartition("warehouse/")[0] for one in away})


def _moved(path: str, former: str, root: Path) -> str:
    return f"{_SCHEME}{root}/{path.removeprefix(former)}" if path.startswith(former) else path


def _table(file: Path, moved: Callable[[str], str]) -> None:
    """Rewrite the metadata file of a table, after the lists of manifests and the manifests of all its snapshots."""
    metadata = json.loads(file.read_bytes())
    manifests = set[Path]()
    for snapshot in metadata.get("snapshots") or ():
        found = _local(moved(snapshot["manifest-list"]))
        for path in _column(found, "manifest_path"):
            manifest = _local(moved(path))
            if manifest not in manifests:
                _rewrite(manifest, ("data_file", "file_path"), moved)
                manifests.add(manifest)
        _rewrite(found, ("manifest_path",), moved, sized=True)
    write_atomic(file, json.dumps(_replaced(metadata, moved)).encode())


def _replaced(value: Any, moved: Callable[[str], str]) -> Any:
    """Return JSON with all texts replaced that begin with the former place."""
    if isinstance(value, dict):
        return {key: _replaced(item, moved) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, moved) for item in value]
    return moved(value) if isinstance(value, str) else value


def _local(path: str) -> Path:
    return Path(path.removeprefix(_SCHEME))


def _column(file: Path, name: str) -> Iterable[str]:
    """Return the values of a top-level text field of an Avro file."""
    with AvroFile[Record](PyArrowFileIO().new_input(str(file))) as opened:
        place = _place(opened.schema.as_struct(), name)
        return [str(record[place]) for record in opened]


def _rewrite(file: Path, field: tuple[str, ...], moved: Callable[[str], str], sized: bool = False) -> None:
    """Replace a path in each record of an Avro file; with `sized`, also the length of the manifest that the record is about."""
    io = PyArrowFileIO()
    with AvroFile[Record](io.new_input(str(file))) as opened:
        records, schema, header = list(opened), opened.schema, dict(opened.header.meta)
    changed = False
    for record in records:
        inner, struct = record, schema.as_struct()
        for name in field[:-1]:
            place = _place(struct, name)
            inner, struct = inner[place], _struct(struct, place)
        place = _place(struct, field[-1])
        path = moved(inner[place])
        changed = changed or path != inner[place]
        inner[place] = path
        if sized:
            record[_place(schema.as_struct(), "manifest_length")] = _local(path).stat().st_size
    if changed:
        name = json.loads(header.pop("avro.schema"))["name"]
        made = file.with_name(f".{file.name}.moved")
        with AvroOutputFile[Record](io.new_output(str(made)), Schema(*schema.fields), name, metadata=header) as output:
            output.write_block(records)
        made.replace(file)


def _place(struct: StructType, name: str) -> int:
    return [one.name for one in struct.fields].index(name)


def _struct(struct: StructType, place: int) -> StructType:
    found = struct.fields[place].field_type
    assert isinstance(found, StructType)
    return found
