"""Fixtures of the tests with kill -9."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.processes import undisturbed


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of an undisturbed run that ends with a promotion."""
    return undisturbed(tmp_path_factory.mktemp("calm") / "home")
