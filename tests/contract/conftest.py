"""Fixtures that several contract suites use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving_site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    """HTTP servers for a router: its backends, and the receiver of its traces."""
    site = Site()
    yield site
    site.close()
