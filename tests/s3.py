"""A local S3 server (moto) for tests, with a separate bucket for each test."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pytest
from boto3.session import Session
from moto.server import ThreadedMotoServer

from ratchet.contracts.jobs.cluster import BucketSettings

KEYS = {"AWS_ACCESS_KEY_ID": "a-key-of-this-test", "AWS_SECRET_ACCESS_KEY": "a-secret-of-this-test"}


class S3:
    """An S3 server that a test can stop and start again; address and stored objects stay the same."""

    def __init__(self, address: str) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.address, self.port, self.bucket = address, 0, ""
        self.start()

    @cached_property
    def client(self) -> Any:
        """A client for the tests' own requests, made once, because loading the definition of the service takes longer than a test."""
        return Session().client("s3", endpoint_url=self.settings.endpoint, region_name="us-east-1")

    def start(self) -> None:
        """Start the server; after the first start it keeps its port."""
        self.server: Any = ThreadedMotoServer(ip_address=self.address, port=self.port, verbose=False)
        self.server.start()
        self.runs = True
        self.port = self.server.get_host_and_port()[1]

    def stop(self) -> None:
        """Stop the server, so that connections are refused."""
        self.server.stop()
        self.runs = False

    @property
    def settings(self) -> BucketSettings:
        """The settings of the current test's bucket."""
        return BucketSettings(url=f"s3://{self.bucket}/some/where", endpoint=f"http://{self.address}:{self.port}", region="us-east-1")


SERVERS: dict[str, S3] = {}
"""The servers of this process, by address."""


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, address: str = "127.0.0.1") -> Iterator[S3]:
    """Yield a running server with a new bucket; sets the access keys in the environment.

    Stopping a server takes half a second, so each address keeps its server for later tests.
    """
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = SERVERS.get(address) or SERVERS.setdefault(address, S3(address))
    server.bucket = f"b-{secrets.token_hex(4)}"
    server.client.create_bucket(Bucket=server.bucket)
    try:
        yield server
    finally:
        if not server.runs:
            server.start()


@contextmanager
def served_by_default(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """Like `served`; also makes the server the one that a client without settings uses, as a source on S3 does."""
    with served(monkeypatch) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.settings.endpoint or "")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield server
