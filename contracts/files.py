"""`Artifacts` in a folder: content-addressed files and names bound once, on the standard library alone.

It lives among the contracts because a training job, which imports no service, publishes through it too. Layout below
the root: `sha256/ab/abcd…` (content) and `names/<sha256 of the name>` (JSON: name and digest). Every file is written
beside its place, synced and moved there, so that a crash leaves either nothing or the whole file.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from contracts.errors import Permanent, Retryable
from contracts.ids import Digest, canonical, digest, digest_file


def write_atomic(path: Path, data: bytes) -> None:
    """Writes `data` so that a reader, or a crash, sees the old file or the new one. Retryable where the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise Retryable(f"cannot write {path}: {error.strerror}; free space or fix permissions, then try again") from error


def copy_atomic(source: Path, target: Path, expected: Digest) -> None:
    """Copies a file so that `target` appears whole, with the digest `expected`, or not at all; rivals may copy at once. OSErrors pass."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.parent / f".part-{secrets.token_hex(8)}"
    try:
        shutil.copyfile(source, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        if digest_file(part) != expected:
            raise Retryable(f"{source} changed while it was copied; try again when nothing writes to it")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FolderArtifacts:
    """Artifacts below one folder of one machine (or a shared file system)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, key: Digest) -> Path:
        """Where content lies, or would."""
        return self.root / "sha256" / key[:2] / key

    def put(self, data: bytes) -> Digest:
        key = digest(data)
        if not self.path(key).exists():
            write_atomic(self.path(key), data)
        return key

    def put_file(self, path: Path) -> Digest:
        try:
            key = digest_file(path)
            if not self.path(key).exists():
                copy_atomic(path, self.path(key), key)
        except FileNotFoundError as error:
            raise Permanent(f"{error.filename} is absent; it cannot be stored") from error
        except OSError as error:
            raise Retryable(f"cannot store {path}: {error.strerror}; free space or fix permissions, then try again") from error
        return key

    def put_folder(self, path: Path) -> Digest:
        files = sorted(file for file in path.rglob("*") if file.is_file())
        if not files:
            raise Permanent(f"{path} is not a folder with files in it")
        return self.put(canonical({"files": {file.relative_to(path).as_posix(): self.put_file(file) for file in files}}))

    def get(self, digest: Digest) -> bytes:
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise Permanent(f"artifact {digest[:12]} is not in {self.root}; restore the folder from a backup") from None
        self._verify(digest, path)
        return data

    def _verify(self, key: Digest, path: Path) -> None:
        if digest_file(path) != key:
            raise Permanent(f"artifact {key[:12]} in {self.root} is corrupt: its bytes have another digest; restore it from a backup")

    def fetch(self, digest: Digest, into: Path) -> Path:
        manifest = self.files(digest)
        if manifest is None:
            self._lay(digest, into)
            return into
        for name, key in manifest.items():
            target = (into / name).resolve()
            if not target.is_relative_to(into.resolve()):
                raise Permanent(f"artifact {digest[:12]} names a file outside its folder: {name!r}")
            self._lay(key, target)
        return into

    def files(self, key: Digest) -> dict[str, Digest] | None:
        """Relative name -> content of a folder; None: it is a file."""
        path = self.path(key)
        if not path.exists() or path.stat().st_size > 16 << 20:
            return None
        with path.open("rb") as file:
            if file.read(9) != b'{"files":':
                return None
        try:
            files = json.loads(self.get(key))["files"]
        except ValueError:
            return None
        return dict(files)

    def _lay(self, key: Digest, into: Path) -> None:
        if into.exists():
            if digest_file(into) != key:
                raise Permanent(f"{into} is in the way and has other content than artifact {key[:12]}; remove it")
            return
        source = self.path(key)
        if not source.exists():
            raise Permanent(f"artifact {key[:12]} is not in {self.root}; restore the folder from a backup")
        self._verify(key, source)
        try:
            copy_atomic(source, into, key)
        except OSError as error:
            raise Retryable(f"cannot write {into}: {error.strerror}; free space, then try again") from error

    def bind(self, name: str, digest: Digest) -> Digest:
        path = self.place(name)
        part = path.parent / f".part-{secrets.token_hex(8)}"
        write_atomic(part, canonical({"name": name, "digest": digest}))
        try:
            os.link(part, path)  # fails where the name is bound: the first one wins
        except FileExistsError:
            pass
        except OSError as error:
            raise Retryable(f"cannot bind {name!r} in {self.root}: {error.strerror}; try again") from error
        finally:
            part.unlink(missing_ok=True)
        sync_folder(path.parent)
        bound = self.resolve(name)
        if bound is None:
            raise Retryable(f"the name {name!r} was removed while it was bound; try again")
        return bound

    def place(self, name: str) -> Path:
        """Where a name is bound, or would be."""
        return self.root / "names" / digest(name.encode())

    def resolve(self, name: str) -> Digest | None:
        try:
            return str(json.loads(self.place(name).read_bytes())["digest"])
        except FileNotFoundError:
            return None
