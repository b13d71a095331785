"""Contract tests for every engine of the port Compute: the same results in order, few items in flight, lost workers are replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.contracts.fakes import FakeCompute
from ratchet.contracts.ports import Compute
from ratchet.contracts.ports.compute import Item
from ratchet.runtime.compute.inline import InlineCompute
from ratchet.runtime.compute.processes import ProcessCompute
from ratchet.runtime.compute.ray_cluster import RayCompute
from tests import compute_functions as functions
from tests.ray_cluster import RayCluster, ray_cluster
from tests.waiting import until

ENGINES = ["inline", "fake", pytest.param("processes", marks=pytest.mark.slow)]
ENGINES += [pytest.param("ray", marks=pytest.mark.slow), pytest.param("ray-client", marks=pytest.mark.soak)]
WITH_WORKERS = ENGINES[2:]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as started:
        yield started


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Compute]:
    patch = pytest.MonkeyPatch()
    if request.param.startswith("ray"):
        cluster: RayCluster = request.getfixturevalue("cluster")
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        made: Compute = RayCompute(cluster.address if request.param == "ray" else cluster.client_address, 2)
    else:
        made = {"inline": InlineCompute, "fake": FakeCompute, "processes": lambda: ProcessCompute(2)}[request.param]()
    yield made
    made.close()
    patch.undo()


def items(*contents: object) -> list[Item]:
    return [Item(f"batch {number}", content) for number, content in enumerate(contents)]


@pytest.mark.slow
def test_results_come_in_the_order_of_the_items(engine: Compute) -> None:
    assert list(engine.map(functions.slow_square, items(*range(8)))) == [number * number for number in range(8)]


def test_without_items_there_is_no_result(engine: Compute) -> None:
    assert list(engine.map(functions.square, [])) == []


def test_a_few_items_are_read_ahead(engine: Compute) -> None:
    read = []

    def source() -> Iterator[Item]:
        for number in range(50):
            read.append(number)
            yield Item(str(number), number)

    results = engine.map(functions.square, source())
    for number in range(10):
        assert next(results) == number * number
        assert len(read) <= number + 5
    results.close()  # type: ignore[attr-defined]
    assert len(read) < 20


def test_large_contents_and_results(engine: Compute) -> None:
    large = [bytes([97 + number]) * (4 << 20) for number in range(3)]
    assert list(engine.map(functions.upper, items(*large))) == [one.upper() for one in large]


def test_an_error_keeps_its_class_and_names_the_item(engine: Compute) -> None:
    results = engine.map(functions.refuse, items(*range(6)))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"^batch 3: .*this one is wrong"):
        next(results)


def test_an_unforeseen_error_does_not_quote_what_it_says(engine: Compute) -> None:
    with pytest.raises(Permanent, match=r"^batch 3: .*ValueError") as raised:
        list(engine.map(functions.break_down, items(*range(6))))
    assert "user" not in str(raised.value)


def test_after_an_error_the_engine_works(engine: Compute) -> None:
    with pytest.raises(ConfigError):
        list(engine.map(functions.refuse, items(*range(6))))
    assert list(engine.map(functions.square, items(1, 2, 3))) == [1, 4, 9]


def test_it_says_that_it_can_be_used(engine: Compute) -> None:
    assert engine.reach()


@pytest.mark.slow
def test_it_works_after_it_was_closed(engine: Compute) -> None:
    engine.close()
    assert list(engine.map(functions.square, items(2))) == [4]


@pytest.mark.slow
@pytest.mark.parametrize("engine", WITH_WORKERS, indirect=True)
def test_the_item_of_a_killed_worker_is_repeated(engine: Compute, tmp_path: Path) -> None:
    results = engine.map(functions.die_once, items(*((str(tmp_path), number) for number in range(8))))
    assert list(results) == list(range(8))
    assert (tmp_path / "3").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", WITH_WORKERS, indirect=True)
def test_an_item_that_always_loses_its_worker_is_named(engine: Compute) -> None:
    with pytest.raises(Retryable, match=r"^batch 3: .*"):
        list(engine.map(functions.die, items(*range(8))))
    assert list(engine.map(functions.square, items(1, 2, 3))) == [1, 4, 9]


@pytest.mark.parametrize("engine", WITH_WORKERS, indirect=True)
def test_the_work_ends_with_its_iterator(engine: Compute, tmp_path: Path) -> None:
    """A service that stops does not wait for a minute of work."""

    results = engine.map(functions.sleep_but_first, items(*((str(tmp_path), number) for number in range(5))))
    assert next(results) == 0
    until(lambda: list(tmp_path.iterdir()), 60)
    begun = time.monotonic()
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begun < 20
    until(lambda: not any(psutil.pid_exists(int(path.name)) and _sleeps(int(path.name)) for path in tmp_path.iterdir()), 60)


_SCRIPT = """
import sys
from ratchet.contracts.ports.compute import Item
from ratchet.runtime.compute.ray_cluster import RayCompute
from tests import compute_functions as functions
list(RayCompute(sys.argv[1], 2).map(functions.sleep_but_first, [Item(str(n), (sys.argv[2], n)) for n in range(1, 4)]))
"""


@pytest.mark.slow
def test_no_task_of_ray_outlives_a_killed_service(cluster: RayCluster, tmp_path: Path) -> None:
    """Neither does the process with the connection. For worker processes, tests/unit/runtime/compute/test_processes.py tests it."""
    command = [sys.executable, "-c", _SCRIPT, cluster.address, str(tmp_path)]
    service = subprocess.Popen(command, env={**os.environ, **cluster.environment}, stderr=subprocess.DEVNULL)
    until(lambda: list(tmp_path.iterdir()), 60)
    drivers = psutil.Process(service.pid).children()
    service.kill()
    service.wait()
    until(lambda: not any(driver.is_running() and driver.status() != psutil.STATUS_ZOMBIE for driver in drivers), 60)
    until(lambda: not any(_sleeps(int(path.name)) for path in tmp_path.iterdir()), 60)


def _sleeps(pid: int) -> bool:
    """Whether a process is at a task. A Ray worker without a task is named `ray::IDLE`."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.name() != "ray::IDLE"
    except psutil.NoSuchProcess:
        return False
