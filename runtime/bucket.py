"""Client of an S3 bucket. Objects lie below a prefix.

Run folders of gangs, exports of the ledger, the exchange of a cluster's pods and shared lakes use it. Every failure of a request is
Retryable, because credentials rotate and permissions reach S3 with a delay; neither should end a run.

Required semantics: strong read-after-write consistency, atomic object writes, `If-None-Match: *`, and `If-Match` for writes
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.contracts.errors import Fenced, Permanent, RatchetError, Retryable
from ratchet.contracts.ids import Digest, digest_file
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.runtime.artifacts import Deleted, sync
from ratchet.runtime.leading import check_leads

SHA256 = "sha256"
"""Metadata key of an uploaded file: the SHA-256 digest that the sender computed."""
_TERM = "term"
"""Metadata key of an object that only the leading service writes: the number of its term."""
CONNECT, READ, ATTEMPTS = 5, 15, 2
"""Seconds to connect, seconds without received data, and attempts per call. Small, because callers retry and a guardian waits for the
answer.
"""
CONNECTIONS = 32
"""Maximum number of connections that are kept open."""
_DELETERS = 16
"""Objects that are deleted at a time. Not every S3-compatible store accepts the request that deletes many."""
_WITHOUT_VERSIONS = ("NotImplemented", "MethodNotAllowed")
"""Errors of a store that keeps no versions."""
REFUSED = ("AccessDenied", "AllAccessDisabled", "InvalidRequest", "ObjectLocked")
"""Errors of a store that refuses a deletion: a right is missing, or the object is locked."""
_RIGHTS = "grant s3:ListBucketVersions and s3:DeleteObjectVersion, and use no object lock"


class BucketObject(NamedTuple):
    """One object in a listing."""

    tag: str
    """ETag of the object; changes with its content."""
    size: int
    """Size in bytes."""
    modified: datetime


class ObjectVersion(NamedTuple):
    """One version of an object. A bucket without versioning has one of each object."""

    key: str
    version: str
    """`null` in a bucket without versioning."""
    size: int
    """Size in bytes."""
    is_latest: bool
    is_mark: bool
    """Whether it only marks that the object was deleted."""


def _session() -> Any:
    """Return a new session, which reads the credentials of the environment."""
    from boto3.session import Session
    from botocore.session import Session as Core

    core = Core()
    core.register_component("data_loader", _loader())
    return Session(botocore_session=core)


@cache
def _loader() -> Any:
    """Return the loader of the descriptions of AWS's services. The one for S3 takes 0.15 s of CPU, so all clients of a process share it."""
    from botocore.loaders import create_loader

    return create_loader()


class Bucket:
    """Client of one bucket. All keys are relative to the prefix of the settings."""

    def __init__(self, settings: BucketSettings) -> None:
        self.settings = settings
        self.bucket, _, prefix = settings.url.removeprefix("s3://").partition("/")
        self.prefix = f"{prefix}/" if prefix else ""
        self._client: Any = None

    @property
    def client(self) -> Any:
        """boto3 client, created at first use. It is safe for use from several threads."""
        if self._client is None:
            from botocore.config import Config

            given = self.settings
            # Some S3-compatible servers do not support the checksums that the SDK adds by default.
            sums = "when_required" if given.endpoint else "when_supported"
            config = Config(
                connect_timeout=CONNECT,
                read_timeout=READ,
                max_pool_connections=CONNECTIONS,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                request_checksum_calculation=sums,
                response_checksum_validation=sums,
            )
            self._client = _session().client("s3", endpoint_url=given.endpoint, region_name=given.region, config=config)
        return self._client

    @contextmanager
    def _asked(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except (RatchetError, FileNotFoundError):
            raise
        except Exception as error:  # SDK errors have several base classes, and transport errors arrive unwrapped
            raise Retryable(f"cannot {what} s3://{self.bucket}/{self.prefix}{key}: {error}") from error

    @contextmanager
    def _changing(self, what: str, key: str) -> Iterator[None]:
        """As `_asked`, for a request that changes the bucket. Raises Fenced if this process led and does not lead any more."""
        check_leads()
        with self._asked(what, key):
            yield

    def get(self, key: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist."""
        with self._asked("read", key):
            try:
                return bytes(self.client.get_object(Bucket=self.bucket, Key=self.prefix + key)["Body"].read())
            except self.client.exceptions.NoSuchKey:
                return None

    def get_changed(self, key: str, tag: str) -> tuple[bytes, str] | None:
        """Return the content of an object and its tag, if it has another tag than `tag`; None if it has not, or does not exist."""
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": tag} if tag else {}
        with self._asked("read", key):
            try:
                found = self.client.get_object(Bucket=self.bucket, Key=self.prefix + key, **condition)
                return bytes(found["Body"].read()), str(found["ETag"])
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] == 304 or error.response["Error"]["Code"] == "NoSuchKey":
                    return None
                raise

    def put(self, key: str, data: bytes) -> None:
        """Write an object and replace an existing one."""
        with self._changing("write", key):
            self.client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=data)

    def put_in_term(self, key: str, data: bytes, term: int | None, tag: str | None = None) -> None:
        """Write an object in the place of the one that was written in the same term or an earlier one.

        A writer that was suspended while another one took its place must not overwrite what that one has written. None: the writer has no
        term, and the object keeps its own. `tag` is that of the object which is replaced; None: the one that it has now. Raises Fenced if
        the object is of a later term, Retryable if it changes meanwhile, and Permanent if the store does not support conditional writes.
        """
        from botocore.exceptions import ClientError

        with self._changing("write", key):
            known = self._head(key)
            there = _term(known)
            if term is not None and term < there:
                raise Fenced(f"{key} was written by a service that took over since (term {there}, not {term}); this one stops writing")
            condition = {"IfNoneMatch": "*"} if known is None else {"IfMatch": tag or known["ETag"]}
            metadata = {_TERM: str(there if term is None else term)}
            try:
                self.client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=data, Metadata=metadata, **condition)
            except ClientError as error:
                if error.response["Error"]["Code"] == "NotImplemented":
                    raise Permanent(
                        f"the store of s3://{self.bucket} does not support conditional writes ({next(iter(condition))}), without which two "
                        "writers could replace each other; use a store that does"
                    ) from error
                if error.response["Error"]["Code"] not in ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey"):
                    raise
                raise Retryable(f"{key} was written by another process meanwhile; try again") from None

    def term(self, key: str) -> int:
        """Return the term in which an object was written; 0 if it does not exist or has none."""
        with self._asked("look at", key):
            return _term(self._head(key))

    def _head(self, key: str) -> Any:
        from botocore.exceptions import ClientError

        try:
            return self.client.head_object(Bucket=self.bucket, Key=self.prefix + key)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                raise
            return None

    def put_new(self, key: str, data: bytes) -> None:
        """Write an object only if the key is free. Does nothing otherwise, so the first writer wins."""
        from botocore.exceptions import ClientError

        with self._changing("write", key):
            try:
                self.client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if error.response["Error"]["Code"] != "PreconditionFailed":
                    raise

    def versioning(self) -> str:
        """Return whether the bucket keeps former versions of objects: Enabled, Suspended, or Off."""
        with self._asked("read the versioning of", ""):
            return str(self.client.get_bucket_versioning(Bucket=self.bucket).get("Status", "Off"))

    def list(self, under: str) -> dict[str, BucketObject]:
        """Return all objects whose keys begin with `under`, by key relative to `under`."""
        found = {}
        with self._asked("list", under):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix + under)
            for one in (one for page in pages for one in page.get("Contents", ())):
                found[str(one["Key"]).removeprefix(self.prefix + under)] = BucketObject(one["ETag"], one["Size"], one["LastModified"])
        return found

    def digest(self, key: str) -> Digest | None:
        """Return the SHA-256 digest of the file that was uploaded as this object.

        Returns None if the object does not exist or was not uploaded as a file.
        """
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
        """Raise `error` unless the object does not exist.

        A 404 to a HEAD request does not say what is missing: it may also be the bucket. Therefore list the key, too.
        """
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise error
        found = self.client.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix + key, MaxKeys=1).get("Contents", ())
        if any(one["Key"] == self.prefix + key for one in found):
            raise error

    def send(self, path: Path, key: str, expected: Digest) -> None:
        """Upload a file, in parts if it is large.

        Raises FileNotFoundError if the file does not exist, and Permanent if its digest is not `expected`.
        """
        if digest_file(path) != expected:
            raise Permanent(f"{path} does not match its manifest; it is not uploaded")
        with self._changing("write", key):
            self.client.upload_file(str(path), self.bucket, self.prefix + key, ExtraArgs={"Metadata": {SHA256: expected}})

    def send_missing(self, path: Path, key: str, expected: Digest) -> bool:
        """Upload a file unless the object already has that content, and return whether it was uploaded.

        Raises FileNotFoundError if the file does not exist, and Permanent if its digest is not `expected`.
        """
        if self.digest(key) == expected:
            return False
        self.send(path, key, expected)
        return True

    def fetch(self, key: str, path: Path, expected: Digest | None = None) -> bool:
        """Download an object to `path` atomically. Return False if it does not exist.

        Raises Permanent if `expected` is given and the digest differs.
        """
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
                raise Permanent(f"s3://{self.bucket}/{self.prefix}{key} has another digest than recorded; it is not used")
            part.replace(path)
            sync(path.parent)
        finally:
            part.unlink(missing_ok=True)
        return True

    def versions(self, under: str) -> Iterator[ObjectVersion]:
        """Yield all versions of all objects whose keys begin with `under`, with keys relative to `under`."""
        with self._asked("list", under):
            pages = self.client.get_paginator("list_object_versions").paginate(Bucket=self.bucket, Prefix=self.prefix + under)
            for page in pages:
                for kind in ("Versions", "DeleteMarkers"):
                    for one in page.get(kind, ()):
                        key, is_mark = str(one["Key"]).removeprefix(self.prefix + under), kind == "DeleteMarkers"
                        yield ObjectVersion(key, str(one["VersionId"]), int(one.get("Size", 0)), bool(one["IsLatest"]), is_mark)

    def delete(self, key: str, version: str | None = None) -> None:
        """Delete an object, or one version of it. Does nothing if it does not exist."""
        which = {} if version is None else {"VersionId": version}
        with self._changing("delete", key):
            self.client.delete_object(Bucket=self.bucket, Key=self.prefix + key, **which)

    def delete_each(self, keys: Iterable[str]) -> None:
        """Delete many objects, several at a time. In a bucket with versioning, they become former versions."""
        with ThreadPoolExecutor(_DELETERS) as threads:
            for _ in threads.map(self.delete, keys):
                pass

    def delete_former(self, under: str, is_wanted: Callable[[str], bool]) -> Deleted:
        """Delete the former versions of the objects whose keys begin with `under`, so that nobody can read them any more.

        `is_wanted` selects objects by their keys relative to `under`. Current objects stay. Marks of deletion go last, and stay if a
        version stays: without its mark, a former version would be the current one again.
        """
        try:
            found = [one for one in self.versions(under) if (one.is_mark or not one.is_latest) and is_wanted(one.key)]
        except Retryable as error:
            if (code := code_of(error)) in _WITHOUT_VERSIONS:
                return Deleted()
            if code in REFUSED:
                return Deleted(left=self._former(under, code))
            raise

        def attempt(one: ObjectVersion) -> str:
            try:
                self.delete(under + one.key, one.version)
            except Retryable as error:
                if (code := code_of(error)) in REFUSED:
                    return code
                raise
            return ""

        versions, marks = [one for one in found if not one.is_mark], [one for one in found if one.is_mark]
        with ThreadPoolExecutor(_DELETERS) as threads:
            codes = list(threads.map(attempt, versions))
            if not any(codes):
                codes += threads.map(attempt, marks)
        gone = [one for one, code in zip(versions, codes, strict=False) if not code]
        refused = next(filter(None, codes), "")
        return Deleted(len(gone), sum(one.size for one in gone), self._former(under, refused) if refused else "")

    def _former(self, under: str, code: str) -> str:
        place = f"s3://{self.bucket}/{self.prefix}{under}"
        return f"former versions of objects in {place}, if the bucket keeps versions ({code}): {_RIGHTS}, then repeat"

    def folders(self, under: str) -> Sequence[str]:
        """Return the names of the folders with objects directly below `under`, which ends with `/`."""
        with self._asked("list", under):
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix + under, Delimiter="/")
            found = [str(one["Prefix"]) for page in pages for one in page.get("CommonPrefixes", ())]
        return [one.removeprefix(self.prefix + under).rstrip("/") for one in found]


def code_of(error: Retryable) -> str:
    """Return the code with which the store answered a request that failed; empty if it did not answer."""
    response = getattr(error.__cause__, "response", None)
    return str(response["Error"]["Code"]) if isinstance(response, dict) else ""


def _term(head: Any) -> int:
    return 0 if head is None else int(head["Metadata"].get(_TERM, 0))
