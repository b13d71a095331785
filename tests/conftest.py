"""How tests are dealt where two processes run them: all tests on a cluster to one of them, since gangs keep time limits and
two clusters at once would break them on two cores; of the rest, each file whole to whoever is free, files with slow tests first, so that
short ones fill the end."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

CLUSTER = "tests/cluster/"


class Dealt(LoadScopeScheduling):
    """By whole scopes, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return CLUSTER if nodeid.startswith(CLUSTER) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Dealt:
    return Dealt(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)
