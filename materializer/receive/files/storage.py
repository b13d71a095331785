"""Lists and opens the files of a source: below a local path, or objects of a bucket on S3. Both are file systems of fsspec.

That of S3 (s3fs) finds credentials as all tools for AWS do (environment, profile, role of the machine or pod) and reads the address of
another S3-compatible store from AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import urlsplit

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ids import Digest, digest, digest_file

S3 = "s3://"
ATTEMPTS = 5
"""How often a request is sent that the store does not answer."""
_BLOCK = 4 << 20
"""Bytes that one request for a part of an object asks for beyond what is read."""
_TIMEOUT = 60
"""Seconds without a byte after which a request to the store fails."""


@dataclass(frozen=True)
class StoredFile:
    """One file, as the listing shows it."""

    name: str
    """Path below the place of the source, with slashes."""
    origin: str
    """Complete path or URL, for messages."""
    size: int
    """Bytes as stored."""
    version: str
    """Changes whenever the content changes: the ETag of an object; modification time and size of a local file."""
    open: Callable[[], BinaryIO]
    """Opens the stored bytes. Raises OSError if they cannot be read."""
    identity: Callable[[], Digest]
    """Returns a digest that identifies the bytes. An object is identified by its ETag and size, so that it is not read for this."""


class Storage(Protocol):
    """A place with files."""

    place: str
    """Path or URL, for messages."""
    remote: bool
    """Whether reading a file costs a request over the network."""

    def files(self) -> Iterator[StoredFile]:
        """Yield all files below the place, recursively, in no particular order. Raises ConfigError if the place does not exist."""


def open_storage(place: str, folder: Path, what: str) -> Storage:
    """Return the storage at `place`, a path (relative to `folder`) or a URL. `what` names the setting in errors.

    Raises ConfigError for a URL of another scheme than s3.
    """
    if place.startswith(S3):
        return BucketStorage(place, what)
    if "://" in place:
        raise ConfigError(f"{what}: {place!r} is no place that can be read; give a path, or a URL that begins with s3://")
    return FolderStorage(folder / place, what)


class FolderStorage:
    """Files below a folder, or one file."""

    remote = False

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.place, self._what = path, str(path), what

    def files(self) -> Iterator[StoredFile]:
        """Yield the files. Those whose name begins with a dot are left out, because editors and copies in progress use such names."""
        if not self.path.exists():
            raise ConfigError(f"{self._what}: {self.path} does not exist; correct the path")
        if self.path.is_file():
            yield stored(self.path, self.path.name)
            return
        root = f"{self.path.resolve()}/"
        for path, info in local_files().find(root, detail=True).items():
            name = path.removeprefix(root)
            if not name.rsplit("/", 1)[-1].startswith(".") and (info["type"] == "file" or Path(path).is_file()):
                yield stored(self.path / name, name)


@cache
def local_files() -> Any:
    """Return the file system of this machine."""
    import fsspec

    return fsspec.filesystem("file")


def stored(path: Path, name: str) -> StoredFile:
    """Return the local file at `path` under a name."""
    known = path.stat()  # the times of fsspec are rounded
    version = f"{known.st_mtime_ns}-{known.st_size}"
    return StoredFile(
        name, str(path), known.st_size, version, lambda: _buffered(local_files().open(str(path), "rb")), partial(digest_file, path)
    )


class BucketStorage:
    """Objects of a bucket below a prefix, which counts as a folder, or one object."""

    remote = True

    def __init__(self, url: str, what: str) -> None:
        parts = urlsplit(url)
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigError(f"{what}: a place on S3 has the form s3://BUCKET/PREFIX; credentials come from the environment")
        self.place, self.bucket, self._what = url, parts.netloc, what
        self._prefix = parts.path.strip("/")

    @cached_property
    def client(self) -> Any:
        """The file system of the bucket, created at first use. Nothing of it is shared or kept after this object."""
        from s3fs import S3FileSystem

        retries = {"mode": "standard", "max_attempts": ATTEMPTS}
        settings = {"connect_timeout": 10, "read_timeout": _TIMEOUT, "retries": retries}
        return S3FileSystem(config_kwargs=settings, use_listings_cache=False, skip_instance_cache=True)

    def files(self) -> Iterator[StoredFile]:
        """Yield the objects. Raises ConfigError if bucket or credentials are missing, Retryable if S3 does not answer."""
        from botocore.exceptions import BotoCoreError, NoCredentialsError, NoRegionError

        try:
            found = self.client.find(f"{self.bucket}/{self._prefix}", detail=True)
        except (NoCredentialsError, NoRegionError) as error:
            raise ConfigError(
                f"{self._what}: {self.place} cannot be listed: {error}; see AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION"
            ) from error
        except (OSError, BotoCoreError) as error:
            refused = isinstance(error, FileNotFoundError | PermissionError) or _code(error) == "PermanentRedirect"
            kind = ConfigError if refused else Retryable
            raise kind(f"{self._what}: {self.place} cannot be listed: {_code(error) or type(error).__name__}") from error
        for path, info in found.items():
            key = path.removeprefix(f"{self.bucket}/")
            name = key.rsplit("/", 1)[-1] if key == self._prefix else key.removeprefix(f"{self._prefix}/")
            if name and not name.endswith("/") and not name.rsplit("/", 1)[-1].startswith("."):
                yield self._object(path, name, int(info["size"]), str(info["ETag"]).strip('"'))

    def _object(self, path: str, name: str, size: int, etag: str) -> StoredFile:
        identity = partial(digest, f"s3 {etag} {size}".encode())
        return StoredFile(name, f"{S3}{path}", size, f"{etag}-{size}", partial(self._open, path, etag, size), identity)

    def _open(self, path: str, etag: str, size: int) -> BinaryIO:
        body = self.client.open(path, "rb", block_size=_BLOCK, size=size)  # with its size, no request asks for it
        body.read_kw = {"IfMatch": f'"{etag}"'}
        return _buffered(_Object(body, f"{S3}{path}"))


def _code(error: BaseException) -> str:
    """Return the code of an error that S3 answered; an empty text for another error."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


class _Object(io.RawIOBase):
    """An object as a stream. Every failure becomes OSError, so that the object is read again later.

    It is not read to its end if it changes meanwhile, because each range is asked for with the ETag of the listing.
    """

    def __init__(self, body: Any, origin: str) -> None:
        self._body, self._origin = body, origin

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._body.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._body.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._body.read(len(buffer))
        except Exception as error:
            raise OSError(f"{self._origin}: {_code(error) or error}") from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._body.close()
        super().close()


def _buffered(raw: Any) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(raw, 1 << 20))


def identity_of(files: list[StoredFile], *others: str) -> Digest:
    """Return a digest of several files together, in their order, and of what else determines the records read from them."""
    whole = hashlib.sha256()
    for text in (*(file.identity() for file in files), *others):
        whole.update(text.encode() + b"\n")
    return whole.hexdigest()
