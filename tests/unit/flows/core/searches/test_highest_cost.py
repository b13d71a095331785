"""Tests what the training of a cycle costs at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.jobs.cluster import ClusterSettings, VolumeSettings
from ratchet.contracts.loop import Loop
from ratchet.flows.composition.cost import price_of_time
from ratchet.flows.core.searches.highest_cost import highest_cost
from tests.simulation.simulated_line import loop_for


def loop(cluster: dict[str, Any] | None = None, **training: Any) -> Loop:
    """Return a loop file with these settings of the training and of the cluster."""
    found = loop_for("yes")
    update: dict[str, Any] = {"training": found.training.model_copy(update=training)}
    if cluster is not None:
        update["cluster"] = ClusterSettings(image="trainer:1", volume=VolumeSettings(mount="/shared", claim="shared"), **cluster)
    return found.model_copy(update=update)


def test_the_highest_cost_is_that_of_all_attempts_and_of_the_whole_budget() -> None:
    found = highest_cost(loop(max_attempts=3, timeout=3600.0, nodes=2, gpus=8), 1800.0)
    assert found.seconds == 3 * 3600 + 1800
    assert found.gpu_hours == 3.5 * 16
    assert found.price is None
    assert found.text == (
        "Highest cost: 3.50 hours of job time (3 attempts of at most 3,600 s for the first recipe and 1,800 s for all other recipes), "
        "56.00 GPU hours on 2 × 8 GPUs."
    )


def test_without_a_search_and_a_gpu_it_is_the_time_of_the_attempts() -> None:
    found = highest_cost(loop(max_attempts=1, timeout=7200.0), 0.0)
    assert (found.seconds, found.gpu_hours) == (7200.0, 0.0)
    assert found.text == "Highest cost: 2.00 hours of job time (one attempt of 7,200 s for the first recipe), no GPU, nodes: 1."


def test_the_price_is_that_of_the_whole_time_and_caps_are_named() -> None:
    found = highest_cost(loop({"cap_run": 50.0, "cap_month": 80.0}, max_attempts=1, timeout=3000.0, gpus=1), 600.0, lambda s: s / 36)
    assert found.price == 100.0
    assert found.text.endswith(
        "1.00 GPU hours on 1 × 1 GPUs, 100.00 by the price table. Earlier, cluster.cap_run = 50 stops an attempt and "
        "cluster.cap_month = 80 stops all trainings of the line in a month."
    )
    assert highest_cost(loop(), 600.0, lambda _seconds: None).price is None, "machines that the table does not contain"


@pytest.mark.parametrize("budget", [-1.0, float("inf"), float("nan")])
def test_a_budget_that_is_no_time_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="a search cannot have a budget of"):
        highest_cost(loop(), budget)


def test_the_price_of_time_is_that_of_all_nodes_of_the_cluster() -> None:
    one = price_of_time(loop({"profile": "aws-p5en-efa"}), Path(), 3600.0)
    assert one is not None
    assert one > 0
    assert price_of_time(loop({"profile": "aws-p5en-efa"}, nodes=4), Path(), 1800.0) == pytest.approx(2 * one)
    assert price_of_time(loop({"profile": "cpu"}), Path(), 3600.0) is None, "machines that the table does not contain"
    assert price_of_time(loop(), Path(), 3600.0) is None, "a line without a cluster"
