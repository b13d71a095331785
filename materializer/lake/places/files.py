"""Port `LakeFiles`: lists and deletes the files of a lake's tables. Two implementations, for a folder and for a bucket."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.materializer.lake.places.place import LakePlace
from ratchet.runtime.bucket import Bucket

_SCHEME = "file://"


class LakeFile(NamedTuple):
    """One file of a lake."""

    place: str
    """Its path, or its s3:// URL."""
    name: str
    """Its path relative to the lake's folder, or its key relative to the warehouse, with a version that is not the current one."""
    size: int
    """Bytes."""
    former: bool = False
    """Whether it is a former version of an object, or the mark of a deletion, in a bucket with versioning."""
    version: str | None = None
    """Its version in a bucket; `null` without versioning."""


class LakeFiles(Protocol):
    """The files below the folders of a lake's tables. Methods raise OSError or Retryable if the storage fails."""

    def below(self, location: str) -> list[LakeFile]:
        """Return all files below the location of a table, as its metadata names it."""

    def place(self, location: str) -> str:
        """Return the place of the file that a table's metadata names."""

    def delete(self, file: LakeFile) -> None:
        """Delete a file so that nobody can read it any more. Does nothing if it does not exist."""


class FolderFiles:
    """`LakeFiles` in the folder of a local lake."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def below(self, location: str) -> list[LakeFile]:
        """Return all files below the location of a table, as its metadata names it."""
        found = []
        for path in sorted(Path(location.removeprefix(_SCHEME)).rglob("*")):
            try:
                size = path.stat().st_size if path.is_file() else None
            except FileNotFoundError:  # deleted meanwhile
                size = None
            if size is not None:
                found.append(LakeFile(str(path.resolve()), str(path.relative_to(self._root)), size))
        return found

    def place(self, location: str) -> str:
        """Return the place of the file that a table's metadata names."""
        return str(Path(location.removeprefix(_SCHEME)).resolve())

    def delete(self, file: LakeFile) -> None:
        """Delete a file. Does nothing if it does not exist."""
        Path(file.place).unlink(missing_ok=True)


class BucketFiles:
    """`LakeFiles` in a bucket. In one with versioning, former versions are files of their own, to which nothing refers."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._root = f"s3://{bucket.bucket}/{bucket.prefix}"

    def below(self, location: str) -> list[LakeFile]:
        """Return all files below the location of a table, as its metadata names it."""
        under = f"{location}/".removeprefix(self._root)
        found = []
        for one in self._bucket.versions(under):
            name = under + one.key
            former = not one.is_latest or one.is_mark
            shown = f"{name}@{one.version}" if former else name
            found.append(LakeFile(self._root + name, shown, one.size, former, one.version))
        return found

    def place(self, location: str) -> str:
        """Return the place of the file that a table's metadata names."""
        return location

    def delete(self, file: LakeFile) -> None:
        """Delete an object, with this version of it in a bucket with versioning. Does nothing if it does not exist."""
        self._bucket.delete(file.place.removeprefix(self._root), file.version)


def files_of(place: LakePlace) -> LakeFiles:
    """Return the files of a lake."""
    return BucketFiles(bucket_of(place.warehouse)) if place.is_shared else FolderFiles(place.folder.resolve())


@lru_cache(maxsize=4)
def bucket_of(url: str) -> Bucket:
    """Return this process's client of a bucket. Credentials, region and endpoint follow the AWS SDK's lookup order."""
    return Bucket(BucketSettings(url=url))
