"""`Artifacts` port in a folder: content-addressed files, and names that are bound once.

It is in `runtime` because training jobs, which do not import the service, write their drop folders with it. It uses only the standard
library. Layout below the root: `sha256/ab/abcd…` (content), `names/<sha256 of the name>` (JSON: name, digest, schema version) and
`erased/<digest>` (JSON: what replaced an artifact from which rows of a person were erased). Every file is written to a temporary file in
the target folder, synced and then renamed. A crash therefore leaves either no file or the complete file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import Digest, canonical, digest, digest_file
from ratchet.contracts.model import Frozen
from ratchet.contracts.schema import parse, stamped, unstamped
from ratchet.runtime.file_errors import unwritable
from ratchet.runtime.jobs.job_files import open_job_file, regular_files


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically: after a crash, and for concurrent readers, the file is either the old or the new one.

    The umask decides whether the group may use the file; others may not. Raises `Retryable` if writing fails.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".part-{secrets.token_hex(8)}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)
    except OSError as error:
        raise unwritable(f"write {path}", error) from error


def copy_atomic(source: Path, target: Path, expected: Digest) -> None:
    """Copy `source` to `target` atomically. Several processes may copy to the same target at the same time.

    Raises `Retryable` if the copied bytes do not have the digest `expected`. Propagates `OSError`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.parent / f".part-{secrets.token_hex(8)}"
    try:
        shutil.copyfile(source, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        if digest_file(part) != expected:
            raise Retryable(f"{source} changed during the copy; try again when no process writes to it")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    sync(target.parent)


def sync(path: Path) -> None:
    """Write a file, or a folder with the renames in it, to the disk, so that it survives a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_CHUNK = 1 << 20
_MANIFEST = b'{"files":'
DIGEST = re.compile("[0-9a-f]{64}")
"""Text of a digest."""
MANIFEST_BYTES = 16 << 20
"""Maximum size of the manifest of a stored folder."""


def _copied(source: BinaryIO, target: BinaryIO, size: int, key: Digest) -> bool:
    """Copy a file and return whether it had exactly `size` more bytes with the digest `key`."""
    seen = hashlib.sha256()
    while chunk := source.read(min(size + 1, _CHUNK)):
        size -= len(chunk)
        if size < 0:
            return False
        seen.update(chunk)
        target.write(chunk)
    return size == 0 and seen.hexdigest() == key


class Erased(Frozen):
    """What replaced an artifact from which rows were erased."""

    replacement: Digest
    """The artifact with the rows that are left."""
    removed: int
    """Number of rows that were removed."""
    left: int
    """Number of rows that are left."""


class Deleted(NamedTuple):
    """What was deleted from a folder or a bucket."""

    files: int = 0
    """Number of files, or of objects and their former versions."""
    bytes: int = 0
    left: str = ""
    """What could not be deleted and why, with the remedy; empty if nothing is left."""


class FolderArtifacts:
    """`Artifacts` below one folder of a local or shared file system."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def here(self, key: Digest) -> Path:
        """Return the path of the content with digest `key` in the folder, whether or not it exists."""
        return self.root / "sha256" / key[:2] / key

    def path(self, key: Digest) -> Path:
        """Return the path of the content with digest `key`, whether or not it exists. An implementation may fetch it first."""
        return self.here(key)

    def adopt(self, key: Digest) -> Digest:
        """Take over a content that was written to the folder by other means, and return `key`."""
        return key

    def forget(self, key: Digest) -> None:
        """Take note that a content was deleted from the folder."""

    def put(self, data: bytes) -> Digest:
        """Store `data` and return its digest."""
        key = digest(data)
        if not self._keep(key):
            write_atomic(self.here(key), data)
        return self.adopt(key)

    def _keep(self, key: Digest) -> bool:
        """Return whether the content exists. Its age begins again, so that a garbage collection does not delete it as forgotten."""
        try:
            os.utime(self.here(key))
        except FileNotFoundError:
            return False
        except PermissionError:  # the file of another user of a shared folder
            return self.here(key).exists()
        return True

    def current(self, key: Digest) -> Digest:
        """Return the digest of the content that stands for `key` now: `key` itself, or what replaced it when rows were erased from it."""
        seen: set[Digest] = set()
        while key not in seen and not self.here(key).exists():
            seen.add(key)
            record = self.erased(key)
            key = record.replacement if record else key
        return key

    def erased(self, key: Digest) -> Erased | None:
        """Return what replaced the artifact when rows were erased from it; None if no rows were."""
        try:
            return parse(Erased, (self.root / "erased" / key).read_bytes())
        except FileNotFoundError:
            return None

    def replace(self, key: Digest, data: bytes, removed: int, left: int) -> Digest:
        """Replace an artifact by `data`, which has `left` of its rows, and delete it. Readers of `key` get `data` from now on.

        A call that is repeated after a crash completes the first one. Returns the digest of `data`. Raises `Retryable` if writing fails.
        """
        new = self.put(data)
        if new != key:
            write_atomic(self.root / "erased" / key, stamped(Erased(replacement=new, removed=removed, left=left)))
            self.here(key).unlink(missing_ok=True)
            self.forget(key)
        return new

    def erased_keys(self) -> set[Digest]:
        """Return the artifacts from which rows were erased, without those that were stored again since."""
        found = (path.name for path in (self.root / "erased").glob("*") if DIGEST.fullmatch(path.name))
        return {key for key in found if not self.here(key).exists()}

    def delete_former(self, keys: Collection[Digest] | None) -> Deleted:  # noqa: ARG002
        """Delete former versions of deleted contents: of `keys`, or of all if that is None. A folder keeps none."""
        return Deleted()

    def contents(self) -> Iterator[tuple[Digest, Path]]:
        """Yield the digest and the path of each stored content."""
        for path in sorted((self.root / "sha256").glob("??/*")):
            if DIGEST.fullmatch(path.name):
                yield path.name, path

    def names(self) -> Iterator[tuple[str, Digest]]:
        """Yield each bound name with its digest."""
        for path in sorted((self.root / "names").glob("*")):
            if DIGEST.fullmatch(path.name):
                bound = unstamped(path.read_bytes(), "name binding")
                yield str(bound["name"]), str(bound["digest"])

    def put_file(self, path: Path) -> Digest:
        """Store a file and return its digest. Raises `Permanent` if the file does not exist or cannot be read."""
        try:
            key = digest_file(path)
            if not self._keep(key):
                copy_atomic(path, self.here(key), key)
        except FileNotFoundError as error:
            raise Permanent(f"cannot store {error.filename}: it does not exist") from error
        except OSError as error:
            if isinstance(error, PermissionError) and str(error.filename) == str(path):
                raise Permanent(f"cannot read {path}: this user must not; give it the right to, for example by `chmod a+r`") from error
            raise unwritable(f"store {path}", error) from error
        return self.adopt(key)

    def take(self, source: BinaryIO, size: int, key: Digest) -> bool:
        """Store an open file if it has `size` more bytes with the digest `key`. Return whether it does; otherwise nothing is stored.

        Bytes are stored exactly as they were hashed, also if the file changes meanwhile. Raises `Retryable` if the file system fails.
        """
        path = self.here(key)
        if self._keep(key):
            with Path(os.devnull).open("wb") as nothing:
                return _copied(source, nothing, size, key)
        part = path.parent / f".part-{secrets.token_hex(8)}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as target:
                if not _copied(source, target, size, key):
                    return False
                target.flush()
                os.fsync(target.fileno())
            part.replace(path)
            sync(path.parent)
        except OSError as error:
            raise unwritable(f"store {path}", error) from error
        finally:
            part.unlink(missing_ok=True)
        self.adopt(key)
        return True

    def put_folder(self, path: Path, follow_links: bool = False) -> Digest:
        """Store all files below `path` and their manifest; return the manifest's digest.

        Raises `Permanent` if there are no files, or if there is a FIFO, a socket or a device below `path`, or a symbolic link that is not
        followed. With `follow_links`, a link to a file is stored as that file.
        """
        files = regular_files(path, follow_links)
        if not files:
            raise Permanent(f"{path} is not a folder that contains files")
        stored = {file.relative_to(path).as_posix(): self.put_file(file.resolve() if follow_links else file) for file in files}
        return self.put(canonical({"files": stored}))

    def get(self, digest: Digest) -> bytes:
        """Return the content, without erased rows. Raises `Permanent` if it is missing or does not match its digest."""
        digest = self.current(digest)
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise Permanent(f"artifact {digest[:12]} is not in {self.root}; restore the folder from a backup") from None
        self._verify(digest, path)
        return data

    def _verify(self, key: Digest, path: Path) -> None:
        if digest_file(path) != key:
            raise Permanent(f"artifact {key[:12]} in {self.root} is corrupt: content and digest do not match; restore it from a backup")

    def fetch(self, digest: Digest, into: Path) -> Path:
        """Copy a file or a folder to `into`, verify its content and return `into`.

        Files that already exist with the right content are kept. Raises `Permanent` if an existing file has different content, if the
        artifact is missing or corrupt, or if it names a path outside its folder.
        """
        manifest = self.files(digest)
        if manifest is None:
            self._lay(self.current(digest), into)
            return into
        for name, key in manifest.items():
            target = (into / name).resolve()
            if not target.is_relative_to(into.resolve()):
                raise Permanent(f"artifact {digest[:12]} contains a path outside its folder: {name!r}")
            self._lay(key, target)
        return into

    def files(self, key: Digest) -> dict[str, Digest] | None:
        """Return the manifest of a stored folder: relative name -> digest of the content. None if the artifact is a file or missing.

        An artifact is a manifest only if `put_folder` could have written exactly its bytes. A file that merely starts like one is a file.
        """
        path = self.path(key)
        if not path.exists() or path.stat().st_size > MANIFEST_BYTES:
            return None
        with path.open("rb") as file:
            if file.read(len(_MANIFEST)) != _MANIFEST:
                return None
        content = self.get(key)
        try:
            files = json.loads(content)["files"]
            written = canonical({"files": files}) == content and all(map(DIGEST.fullmatch, files.values()))
            return dict(files) if files and written else None
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None

    def _lay(self, key: Digest, into: Path) -> None:
        if os.path.lexists(into):
            with open_job_file(into, depth=1) as file:  # a job may have put something else there
                same = hashlib.file_digest(file, "sha256").hexdigest() == key
            if not same:
                raise Permanent(f"{into} already exists and its content differs from artifact {key[:12]}; remove it")
            return
        source = self.path(key)
        if not source.exists():
            raise Permanent(f"artifact {key[:12]} is not in {self.root}; restore the folder from a backup")
        self._verify(key, source)
        try:
            copy_atomic(source, into, key)
        except OSError as error:
            raise unwritable(f"write {into}", error) from error

    def bind(self, name: str, digest: Digest) -> Digest:
        """Bind a name once and return the digest that it is bound to; the first binding wins.

        Raises `Retryable` if the file system fails.
        """
        path = self.place(name)
        part = path.parent / f".part-{secrets.token_hex(8)}"
        write_atomic(part, stamped({"name": name, "digest": digest}))
        try:
            os.link(part, path)  # link, unlike rename, fails if the name is already bound
        except FileExistsError:
            pass
        except OSError as error:
            raise unwritable(f"bind {name!r} in {self.root}", error) from error
        finally:
            part.unlink(missing_ok=True)
        sync(path.parent)
        bound = self.resolve(name)
        if bound is None:
            raise Retryable(f"the name {name!r} was removed during binding; try again")
        return bound

    def place(self, name: str) -> Path:
        """Return the path of the file that binds `name`, whether or not it exists."""
        return self.root / "names" / digest(name.encode())

    def resolve(self, name: str) -> Digest | None:
        """Return the digest that `name` is bound to, or None."""
        try:
            return str(unstamped(self.place(name).read_bytes(), "name binding")["digest"])
        except FileNotFoundError:
            return None
