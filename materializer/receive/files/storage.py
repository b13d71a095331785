"""Lists and opens the files of a source: below a local path, or objects of a bucket on S3.

S3 is read with boto3, which finds credentials by itself (environment, profile, role of the machine or pod) and reads the address of
another S3-compatible store from AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import urlsplit

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ids import Digest, digest, digest_file

S3 = "s3://"
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
            raise ConfigError(f"{self._what}: {self.path} does not exist; correct its path in the loop file")
        if self.path.is_file():
            yield stored(self.path, self.path.name)
            return
        for path in self.path.rglob("*"):
            if not path.name.startswith(".") and path.is_file():
                yield stored(path, path.relative_to(self.path).as_posix())


def stored(path: Path, name: str) -> StoredFile:
    """Return the local file at `path` under a name."""
    known = path.stat()
    version = f"{known.st_mtime_ns}-{known.st_size}"
    return StoredFile(name, str(path), known.st_size, version, lambda: path.open("rb"), partial(digest_file, path))


class BucketStorage:
    """Objects of a bucket below a prefix, which counts as a folder, or one object."""

    remote = True

    def __init__(self, url: str, what: str) -> None:
        parts = urlsplit(url)
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigError(f"{what}: a place on S3 has the form s3://BUCKET/PREFIX; credentials come from the environment")
        self.place, self.bucket, self._what = url, parts.netloc, what
        self._prefix = parts.path.lstrip("/")

    @cached_property
    def client(self) -> Any:
        """boto3 client, created at first use."""
        from boto3.session import Session
        from botocore.config import Config

        retries = {"mode": "standard", "max_attempts": 5}
        return Session().client("s3", config=Config(connect_timeout=10, read_timeout=_TIMEOUT, retries=retries))

    def files(self) -> Iterator[StoredFile]:
        """Yield the objects, 1000 per request. Raises ConfigError if bucket or credentials are missing, Retryable if S3 does not answer."""
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

        try:
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._prefix):
                for item in page.get("Contents", ()):
                    name = self._name(item["Key"])
                    if name and not name.endswith("/") and not name.rsplit("/", 1)[-1].startswith("."):
                        yield self._object(item["Key"], name, int(item["Size"]), str(item["ETag"]).strip('"'))
        except (NoCredentialsError, NoRegionError) as error:
            raise ConfigError(
                f"{self._what}: {self.place} cannot be listed: {error}; see AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION"
            ) from error
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            refused = code in ("NoSuchBucket", "AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "PermanentRedirect")
            kind = ConfigError if refused else Retryable
            raise kind(f"{self._what}: {self.place} cannot be listed: {code or error}") from error
        except BotoCoreError as error:
            raise Retryable(f"{self._what}: {self.place} cannot be listed: {type(error).__name__}") from error

    def _name(self, key: str) -> str:
        """Return the name of an object below the prefix, which is a folder or one object; empty for an object of another folder."""
        folder = self._prefix.rstrip("/")
        if key == self._prefix:
            return key.rsplit("/", 1)[-1]
        return key if not folder else key.removeprefix(f"{folder}/") if key.startswith(f"{folder}/") else ""

    def _object(self, key: str, name: str, size: int, etag: str) -> StoredFile:
        identity = partial(digest, f"s3 {etag} {size}".encode())
        return StoredFile(name, f"{S3}{self.bucket}/{key}", size, f"{etag}-{size}", partial(self._open, key, etag), identity)

    def _open(self, key: str, etag: str) -> BinaryIO:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            body = self.client.get_object(Bucket=self.bucket, Key=key, IfMatch=etag)["Body"]
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"{S3}{self.bucket}/{key}: {error}") from error
        return cast(BinaryIO, io.BufferedReader(_Body(body), 1 << 20))


class _Body(io.RawIOBase):
    """The body of an object as a stream. Failures of the network become OSError, so that the batch is read again later."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        from botocore.exceptions import BotoCoreError, HTTPClientError

        try:
            data = self._body.read(len(buffer))
        except (BotoCoreError, HTTPClientError) as error:
            raise OSError(f"the object cannot be read to its end: {type(error).__name__}") from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._body.close()
        super().close()


def identity_of(files: list[StoredFile], *others: str) -> Digest:
    """Return a digest of several files together, in their order, and of what else determines the records read from them."""
    whole = hashlib.sha256()
    for text in (*(file.identity() for file in files), *others):
        whole.update(text.encode() + b"\n")
    return whole.hexdigest()
