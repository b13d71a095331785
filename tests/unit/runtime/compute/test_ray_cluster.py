"""A Ray cluster that cannot be used gets a clear message. The engine itself is tested in tests/contract/test_compute.py."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ports.compute import Item
from ratchet.runtime.compute import ray_cluster, ray_driver
from ratchet.runtime.compute.attempt import value_of
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
