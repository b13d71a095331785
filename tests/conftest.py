"""How the suite is dealt to two processes (`make test`): all tests on a cluster to one of them, since gangs keep time limits and two
clusters at once would break them on two cores; of the rest, each file whole to whoever is free."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent


@pytest.hookimpl(tryfirst=True)  # before the plugin that deals the tests reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(ROOT)
        item.add_marker(pytest.mark.xdist_group("cluster" if place.parts[0] == "cluster" else str(place)))
