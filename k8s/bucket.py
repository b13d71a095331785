"""An S3 bucket as the place that the service and its gangs share: objects below a prefix, named as the files of the volume would be.

Both sides use it: the service (remote.py) and process 1 of a pod (staging.py). What fails is Retryable, whatever it is: credentials turn,
rights reach S3 late, and no run should end for that. Semantics used: strong read-after-write consistency, whole objects or none, and
`If-None-Match: *` (https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from contracts.cluster import BucketSettings
from contracts.errors import Permanent, RatchetError, Retryable
from contracts.files import sync_folder
from contracts.ids import Digest, digest_file

SHA256 = "sha256"
"""Metadata of an object that a file was sent as: its digest, as the sender counted it."""
CONNECT, READ, ATTEMPTS = 5, 15, 2
"""Seconds to connect, seconds without a byte, tries of one call: whoever asks tries again later, and a guardian waits for the answer."""


class Found(NamedTuple):
    """An object in a listing."""

    tag: str
    """Changes with its content."""
    size: int
    """Bytes."""
    modified: datetime


class Bucket:
    """Keys are relative to the prefix."""

    def __init__(self, settings: BucketSettings) -> None:
        self.settings = settings
        self.bucket, _, prefix = settings.url.removeprefix("s3://").partition("/")
        self.prefix = f"{prefix}/" if prefix else ""
        self._client: Any = None

    @property
    def client(self) -> Any:
        """Made at the first use; good for all threads."""
        if self._client is None:
            from boto3.session import Session
            from botocore.config import Config

            given = self.settings
            # Other makers' servers do not all know the checksums that the SDK adds of itself.
            sums = "when_required" if given.endpoint else "when_supported"
            config = Config(
                connect_timeout=CONNECT,
                read_timeout=READ,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                request_checksum_calculation=sums,
                response_checksum_validation=sums,
            )
            self._client = Session().client("s3", endpoint_url=given.endpoint, region_name=given.region, config=config)
        return self._client

    @contextmanager
    def _asked(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except (RatchetError, FileNotFoundError):
            raise
        except Exception as error:  # the SDK's own errors have several roots, and its transport's come through as they are
            raise Retryable(f"cannot {what} s3://{self.bucket}/{self.prefix}{key}: {error}") from error

    def get(self, key: str) -> bytes | None:
        """The content; None: there is no such object."""
        with self._asked("read", key):
            try:
                return bytes(self.client.get_object(Bucket=self.bucket, Key=self.prefix + key)["Body"].read())
            except self.client.exceptions.NoSuchKey:
                return None

    def put(self, key: str, data: bytes) -> None:
        """Over whatever is there."""
        with self._asked("write", key):
            self.client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=data)

    def put_new(self, key: str, data: bytes) -> None:
        """Nothing where the key is taken: the first one wins."""
        from botocore.exceptions import ClientError

        with self._asked("write", key):
            try:
                self.client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if error.response["Error"]["Code"] != "PreconditionFailed":
                    raise

    def list(self, under: str) -> dict[str, Found]:
        """Key, relative to `under`, of every object whose key begins with it."""
        found = {}
        with self._asked("list", under):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix + under)
            for one in (one for page in pages for one in page.get("Contents", ())):
                found[str(one["Key"]).removeprefix(self.prefix + under)] = Found(one["ETag"], one["Size"], one["LastModified"])
        return found

    def digest(self, key: str) -> Digest | None:
        """Of the file that was sent as this object; None: no such object, or not sent as a file."""
        from botocore.exceptions import ClientError

        with self._asked("look at", key):
            try:
                head = self.client.head_object(Bucket=self.bucket, Key=self.prefix + key)
            except ClientError as error:
                self._absent(error, key)
                return None
        found: Digest | None = head["Metadata"].get(SHA256)
        return found

    def _absent(self, error: Any, key: str) -> None:
        """Raises unless there is no such object. A 404 to a look says nothing of what is absent: it may be the bucket, or its server."""
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise error
        found = self.client.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix + key, MaxKeys=1).get("Contents", ())
        if any(one["Key"] == self.prefix + key for one in found):
            raise error

    def send(self, path: Path, key: str, expected: Digest) -> None:
        """A file, in parts where it is large. FileNotFoundError where it is gone; Permanent where it is another one than `expected`."""
        if digest_file(path) != expected:
            raise Permanent(f"{path} is not what its manifest says; it is not sent")
        with self._asked("write", key):
            self.client.upload_file(str(path), self.bucket, self.prefix + key, ExtraArgs={"Metadata": {SHA256: expected}})

    def fetch(self, key: str, path: Path, expected: Digest | None = None) -> bool:
        """Lays an object down as a file, whole or not at all; False: there is none. Permanent where it is not what was `expected`."""
        from botocore.exceptions import ClientError

        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.parent / f".part-{secrets.token_hex(8)}"
        try:
            with self._asked("read", key):
                try:
                    self.client.download_file(self.bucket, self.prefix + key, str(part))
                except ClientError as error:
                    self._absent(error, key)
                    return False
            if expected is not None and digest_file(part) != expected:
                raise Permanent(f"s3://{self.bucket}/{self.prefix}{key} is not what it was recorded as; its bytes have another digest")
            part.replace(path)
            sync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)
        return True

    def delete(self, key: str) -> None:
        """Nothing where it is gone."""
        with self._asked("delete", key):
            self.client.delete_object(Bucket=self.bucket, Key=self.prefix + key)
