"""Catalog in Postgres or behind REST, and files in a bucket, for lakes whose place is shared. Every process has one catalog for all lines.

pyiceberg opens a new client of the bucket for each table that it loads. That costs a request or more, with roles also one for credentials.
Here, a process opens one client.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from pyarrow.fs import FileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.io import PY_IO_IMPL, S3_CONNECT_TIMEOUT, S3_ENDPOINT, S3_REGION, S3_REQUEST_TIMEOUT
from pyiceberg.io.pyarrow import PyArrowFileIO
from sqlalchemy.exc import IntegrityError, ProgrammingError

from ratchet.materializer.lake.places.caching import CachingCatalog
from ratchet.materializer.lake.places.files import bucket_of
from ratchet.materializer.lake.places.place import CATALOG_NAME, catalog_engine
from ratchet.materializer.lake.places.rest import is_rest, rest_catalog
from ratchet.runtime.bucket import CONNECT, READ


class SharedIO(PyArrowFileIO):  # type: ignore[misc]
    """Reads and writes files of a bucket with one client per process."""

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        return _client(tuple(sorted((key, str(value)) for key, value in self.properties.items() if key.startswith("s3."))), netloc)


@lru_cache(maxsize=8)
def _client(properties: tuple[tuple[str, str], ...], bucket: str | None) -> FileSystem:
    return PyArrowFileIO(dict(properties))._initialize_s3_fs(bucket)


class SharedCatalog(CachingCatalog):
    """A catalog in Postgres."""

    def __init__(self, name: str, url: str, **properties: str) -> None:
        self._url = url
        super().__init__(name, uri=url, **properties)

    def _init_catalog(self) -> None:
        self.engine = catalog_engine(self._url)
        try:
            super()._init_catalog()
        except (IntegrityError, ProgrammingError):  # another process creates the same tables at this moment
            super()._init_catalog()


@lru_cache(maxsize=4)
def shared_catalog(url: str, warehouse: str) -> Catalog:
    """Open the catalog at its URL, for tables whose files are below `warehouse`. Tables of a database are created at first use."""
    storage = {PY_IO_IMPL: f"{SharedIO.__module__}.{SharedIO.__name__}", **_storage(warehouse)}
    if is_rest(url):
        return rest_catalog(url, CATALOG_NAME, tuple(sorted(storage.items())))
    return SharedCatalog(CATALOG_NAME, url, warehouse=warehouse, **storage)


def _storage(warehouse: str) -> dict[str, str]:
    """Return where the bucket is, as the AWS SDK finds it.

    Credentials are not among it: the client in pyarrow looks for them itself, in the same order (environment, profile, role of a service
    account, role of a pod, role of a node), and renews those of roles.
    """
    meta: Any = bucket_of(warehouse).client.meta
    found = {S3_CONNECT_TIMEOUT: str(CONNECT), S3_REQUEST_TIMEOUT: str(READ)}
    host = urlsplit(meta.endpoint_url).hostname or ""
    if not host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        found[S3_ENDPOINT] = meta.endpoint_url
    if meta.region_name and meta.region_name != "aws-global":
        found[S3_REGION] = meta.region_name
    return found
