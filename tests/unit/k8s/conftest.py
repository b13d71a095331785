"""Fixtures for the tests of the k8s package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3 import S3, served


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """Yield a running S3 server with a new bucket."""
    with served(monkeypatch) as server:
        yield server
