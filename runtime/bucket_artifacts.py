"""`Artifacts` in a bucket on S3, with a copy in a folder, for installations whose pods read artifacts from the bucket.

The keys below the bucket's prefix are the paths below the folder of `FolderArtifacts`. The bucket has everything: a call that stores
something returns when the bucket has it. The folder may be lost; missing files are read from the bucket, with their digests verified.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import Digest, canonical, digest, digest_file
from ratchet.contracts.schema import stamped, unstamped
from ratchet.runtime.artifacts import DIGEST, Deleted, Erased, FolderArtifacts, write_atomic
from ratchet.runtime.bucket import Bucket

ARTIFACTS_URL = "RATCHET_ARTIFACTS_URL"
"""Environment variable with `s3://BUCKET/PREFIX` of the artifacts, with a copy in the home folder. Default: in the home folder only. Model
servers in pods read them there."""


class BucketArtifacts(FolderArtifacts):
    """`Artifacts` in `bucket`, with a copy below `root`. Every method raises Retryable while the bucket is needed and cannot be reached."""

    def __init__(self, bucket: Bucket, root: Path) -> None:
        super().__init__(root)
        self._bucket = bucket
        self._sent: set[Digest] = set()
        """Contents that the bucket has for certain."""

    def path(self, key: Digest) -> Path:
        """Return the path of the content with digest `key`. It is fetched from the bucket if the folder does not have it."""
        path = self.here(key)
        if not path.exists():
            self._bucket.fetch(_content(key), path, key)
        return path

    def adopt(self, key: Digest) -> Digest:
        """Send a content of the folder to the bucket unless that has it, and return `key`."""
        if key not in self._sent:
            self._bucket.send_missing(self.here(key), _content(key), key)
            self._sent.add(key)
        return key

    def forget(self, key: Digest) -> None:
        """Delete a content from the bucket, after it was deleted from the folder. A bucket with versioning keeps a former version."""
        self._sent.discard(key)
        self._bucket.delete(_content(key))

    def bind(self, name: str, digest: Digest) -> Digest:
        """Bind a name once and return the digest that it is bound to; the first binding wins."""
        self._bucket.put_new(_name(name), stamped({"name": name, "digest": digest}))
        bound = self._bound(_name(name))
        if bound is None:
            raise Retryable(f"the name {name!r} was removed during binding; try again")
        return super().bind(name, bound[1])

    def resolve(self, name: str) -> Digest | None:
        """Return the digest that `name` is bound to, or None."""
        known = super().resolve(name)
        if known is not None:
            return known
        bound = self._bound(_name(name))
        return None if bound is None else super().bind(name, bound[1])

    def names(self) -> Iterator[tuple[str, Digest]]:
        """Yield each bound name with its digest."""
        known = {path.name for path in (self.root / "names").glob("*")}
        for key in self._bucket.list("names/"):
            if key not in known and (bound := self._bound(f"names/{key}")) is not None:
                super().bind(*bound)
        yield from super().names()

    def contents(self) -> Iterator[tuple[Digest, Path]]:
        """Yield the digest and the path of each stored content. Those that only the bucket has are fetched."""
        for key in self._bucket.list("sha256/"):
            name = key.rpartition("/")[2]
            if DIGEST.fullmatch(name) and self.erased(name) is None:
                self.path(name)
        yield from super().contents()

    def erased(self, key: Digest) -> Erased | None:
        """Return what replaced the artifact when rows were erased from it; None if no rows were."""
        known = super().erased(key)
        if known is None and (record := self._bucket.get(f"erased/{key}")) is not None:
            write_atomic(self.root / "erased" / key, record)
            known = super().erased(key)
        return known

    def replace(self, key: Digest, data: bytes, removed: int, left: int) -> Digest:
        """Replace an artifact by `data`, which has `left` of its rows, and delete it. Readers of `key` get `data` from now on."""
        new = digest(data)
        if new != key:
            self.put(data)
            self._bucket.put(f"erased/{key}", stamped(Erased(replacement=new, removed=removed, left=left)))
        return super().replace(key, data, removed, left)

    def erased_keys(self) -> set[Digest]:
        """Return the artifacts from which rows were erased, without those that were stored again since."""
        known = {key for key in self._bucket.list("erased/") if DIGEST.fullmatch(key)} | super().erased_keys()
        return known - {key.rpartition("/")[2] for key in self._bucket.list("sha256/")} if known else known

    def delete_former(self, keys: Collection[Digest] | None) -> Deleted:
        """Delete former versions of deleted contents from a bucket with versioning: of `keys`, or of all if that is None."""
        if keys is not None:
            names = {_content(key) for key in keys}
            return self._bucket.delete_former("sha256/", lambda key: f"sha256/{key}" in names) if names else Deleted()
        there = self._bucket.list("sha256/").keys()
        return self._bucket.delete_former("sha256/", lambda key: key not in there)

    def _bound(self, key: str) -> tuple[str, Digest] | None:
        content = self._bucket.get(key)
        if content is None:
            return None
        bound = unstamped(content, "name binding")
        return str(bound["name"]), str(bound["digest"])


def _content(key: Digest) -> str:
    return f"sha256/{key[:2]}/{key}"


def _name(name: str) -> str:
    return f"names/{digest(name.encode())}"


def fetch_folder(bucket: Bucket, key: Digest, into: Path) -> list[str]:
    """Fetch a stored folder from the bucket to `into`, verify each file, and return the names of the files.

    For pods, which have no copy of the artifacts. Existing files with the right content are kept, so that a restarted pod fetches only what
    is missing. Raises Permanent if a file has other content than its digest says.
    """
    manifest = bucket.get(_content(key))
    if manifest is None:
        raise Permanent(f"artifact {key[:12]} is not in the bucket s3://{bucket.bucket}/{bucket.prefix}; restore it from a backup")
    if digest(manifest) != key:
        raise Permanent(f"artifact {key[:12]} has other content than its digest says; it is not used")
    try:
        files = {str(name): str(part) for name, part in json.loads(manifest)["files"].items()}
        is_folder = bool(files) and canonical({"files": files}) == manifest and all(map(DIGEST.fullmatch, files.values()))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_folder = False
    if not is_folder:
        raise Permanent(f"artifact {key[:12]} is no folder")
    for name, part in files.items():
        target = (into / name).resolve()
        if not target.is_relative_to(into.resolve()):
            raise Permanent(f"artifact {key[:12]} contains a path outside its folder: {name!r}")
        if target.exists() and digest_file(target) == part:
            continue
        if not bucket.fetch(_content(part), target, part):
            raise Permanent(f"artifact {part[:12]}, the file {name} of {key[:12]}, is not in the bucket; restore it from a backup")
    return sorted(files)
