"""A Ray cluster that cannot be used gets a clear message. The engine itself is tested in tests/contract/test_compute.py."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ports.compute import Item
from ratchet.runtime.compute import ray_cluster, ray_driver
from ratchet.runtime.compute.attempt import value_of
from ratchet.runtime.compute.frames import write_frame
from ratchet.runtime.compute.installed import installed_code
from ratchet.runtime.compute.ray_cluster import RayCompute
from tests import compute_functions as functions
from tests.ray_cluster import free_port


def test_without_ray_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"needs ray; install ratchet\[ray\]"):
        RayCompute("10.0.0.1:6379", 2)
    with pytest.raises(ConfigError, match=r"needs ray and grpc; install ratchet\[ray\]"):
        RayCompute("ray://10.0.0.1:10001", 2)


@pytest.mark.slow
def test_a_cluster_that_is_away_can_be_tried_again() -> None:
    compute = RayCompute(f"127.0.0.1:{free_port('127.0.0.1')}", 2)
    for attempt in (compute.reach, lambda: list(compute.map(functions.square, [Item("a", 2)]))):
        with pytest.raises(
            Retryable, match=r"the Ray cluster at 127\.0\.0\.1:\d+: it cannot be reached: .*refused; start it, .*compute\.address"
        ):
            attempt()
    compute.close()


def test_a_task_refuses_to_run_on_other_code() -> None:
    code: dict[str, Any] = {**installed_code(), "polars": "0.1"}
    found = pickle.loads(ray_driver.run_item(pickle.dumps(code), pickle.dumps(functions.square), pickle.dumps(3)))
    with pytest.raises(ConfigError, match=r"^batch 1: a worker of the Ray cluster has other code .*polars: .* there, 0\.1 here"):
        value_of(found, "batch 1")


def test_a_task_runs_on_the_same_code() -> None:
    found = pickle.loads(ray_driver.run_item(pickle.dumps(dict(installed_code())), pickle.dumps(functions.square), pickle.dumps(3)))
    assert value_of(found, "batch 1") == 9


class LostCluster:
    """What the driver uses of Ray. `error` is what a task gives, after which the connection is there or not."""

    def __init__(self, error: Exception, connected: bool) -> None:
        self.error, self.connected = error, connected

    def remote(self, *_function: object, **_options: object) -> Any:
        return (lambda _function: self) if not _function else None

    def options(self, **_options: object) -> LostCluster:
        return self

    def put(self, value: object) -> object:
        return value

    def is_initialized(self) -> bool:
        return self.connected

    def get(self, _task: object) -> bytes:
        raise self.error


@pytest.mark.parametrize(
    ("cluster", "ends"),
    [
        (LostCluster(ConnectionError("GRPC connection failed"), connected=True), True),
        (LostCluster(ValueError("owner is unknown"), connected=False), True),
        (LostCluster(ValueError("a lost object"), connected=True), False),
    ],
)
def test_a_driver_without_its_cluster_ends_so_that_another_one_connects(
    cluster: LostCluster, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must neither stay, without a use, nor let Ray start a cluster in the pod of the service."""
    exits: list[int] = []
    replies = io.BytesIO()
    gone = Gone(exits.append)
    monkeypatch.setattr(os, "_exit", gone)
    driver = ray_driver.Driver(cluster, 3, replies)
    requests = io.BytesIO()
    write_frame(requests, 1, pickle.dumps((pickle.dumps(functions.square), 3)))
    driver.serve(io.BytesIO(requests.getvalue()))
    driver._threads.shutdown()
    assert exits == ([1] if ends else [])
    assert (b"Ray gave no result" in replies.getvalue()) is not ends


class Gone:
    """The end of a process: notes the exit code, and ends the thread."""

    def __init__(self, note: Callable[[int], None]) -> None:
        self.note = note

    def __call__(self, code: int) -> None:
        self.note(code)
        raise SystemExit


def test_the_driver_does_not_start_a_cluster_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setattr(ray_cluster, "Child", lambda _command, environment, _what: given.append(environment))
    RayCompute("10.0.0.1:6379", 2)._started()
    assert given[0]["RAY_ENABLE_AUTO_CONNECT"] == "0"
