"""The distribution of tests over pytest-xdist workers.

All cluster tests run in one worker, because two test clusters at once on two cores would break the time limits of the gangs. Every other
test file goes to the next free worker as a whole. Files with slow tests come first, so that the workers finish at about the same time.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

CLUSTER = "tests/cluster/"


class Dealt(LoadScopeScheduling):
    """Assigns whole test files, and all cluster tests together, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return CLUSTER if nodeid.startswith(CLUSTER) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Dealt:
    """Return the scheduler that pytest-xdist uses."""
    return Dealt(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Move the files with slow tests to the front, if pytest-xdist workers run the tests."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)
