"""Tests of the cost of a gang.

Nodes that the gang holds but does not use also cost money, and an end that was not observed is counted exactly once.
"""

from __future__ import annotations

from dataclasses import replace

from ratchet.k8s.gangs.gang_state import Gang, GangPod, GangState
from ratchet.k8s.gangs.meter import Meter, count, settle

PRICE = 3600.0
"""Price of a node and hour: 1 per second."""


def pod(
    number: int, bound: float | None = None, began: float | None = None, finished: float | None = None, phase: str = "Running"
) -> GangPod:
    """Return pod number `number` of a gang; times are in seconds since the epoch."""
    node = None if bound is None else f"n{number}"
    return GangPod(f"w{number}", f"uid{number}", 0, phase, node, None, "", bound=bound, began=began, finished=finished)


def gang(*pods: GangPod, retries: int = 0) -> Gang:
    """Return a gang that needs two pods of eight GPUs each."""
    return Gang("g", "job", "here", "u", "Running", "", 2, 8, retries, pods, 100.0)


def test_machines_of_a_waiting_gang_are_idle_from_their_launch() -> None:
    waiting = gang(pod(0, phase="Pending"), pod(1, phase="Pending"))
    meter = count(Meter(), waiting, GangState.WAITING, 120.0, PRICE, {"n0": 90.0, "n1": 115.0})
    assert (meter.idle, meter.nodes, meter.cost, meter.used) == (8 * 35, 35, 35, 0)
    meter = count(meter, waiting, GangState.WAITING, 130.0, PRICE, {"n0": 90.0, "n1": 115.0, "n2": 128.0})
    assert (meter.idle, meter.nodes) == (8 * (35 + 22), 57)
    assert meter.at == 130.0


def test_a_machine_with_a_pod_counts_once_and_a_spare_machine_is_idle() -> None:
    whole = gang(pod(0, 101.0), pod(1, 101.0))
    meter = count(Meter(at=110.0), whole, GangState.WHOLE, 120.0, PRICE, {"n0": 90.0, "n1": 90.0, "spare": 90.0})
    assert (meter.used, meter.idle, meter.nodes) == (8 * 20, 8 * 10, 30)


def test_without_a_dedicated_pool_the_nodes_of_bound_pods_count() -> None:
    meter = count(Meter(at=110.0), gang(pod(0, 101.0), pod(1)), GangState.WAITING, 120.0, PRICE)
    assert (meter.idle, meter.nodes) == (8 * 10, 10)


ENDED = gang(pod(0, 101.0, 104.0, 150.0, "Succeeded"), pod(1, 101.0, 106.0, 148.0, "Succeeded"))


def test_an_unobserved_end_is_counted_up_to_the_end() -> None:
    seen = count(Meter(), gang(pod(0, 101.0, 104.0), pod(1, 101.0, 106.0)), GangState.WHOLE, 110.0, PRICE)
    meter = settle(seen, ENDED, 150.0, 900.0, PRICE, {})
    assert meter.used - seen.used == 8 * (40 + 38)
    assert meter.nodes - seen.nodes == 78
    assert settle(meter, ENDED, 150.0, 950.0, PRICE, {}) == meter.model_copy(update={"at": 950.0}), "the end must be counted once"


def test_a_gang_that_was_never_observed_is_counted_from_its_pods() -> None:
    meter = settle(Meter(), ENDED, 150.0, 900.0, PRICE, {})
    assert (meter.used, meter.idle) == (8 * (44 + 42), 8 * (5 + 5))
    assert meter.started == 6.0


def test_a_pool_that_outlives_its_gang_is_idle_until_it_is_removed() -> None:
    machines = {"n0": 95.0, "n1": 95.0}
    seen = count(Meter(), gang(pod(0, 101.0, 104.0), pod(1, 101.0, 106.0)), GangState.WHOLE, 110.0, PRICE, machines)
    meter = settle(seen, ENDED, 150.0, 200.0, PRICE, machines)
    assert meter.nodes - seen.nodes == 2 * 90
    assert (meter.used - seen.used, meter.idle - seen.idle) == (8 * 78, 8 * (180 - 78))
    again = settle(meter, ENDED, 150.0, 210.0, PRICE, machines)
    assert (again.idle - meter.idle, again.used) == (8 * 20, meter.used), "a second call must add only the time since the first"


def test_a_gang_without_pods_counts_as_it_was_last_observed() -> None:
    seen = count(Meter(), gang(pod(0, 101.0, 104.0), pod(1, 101.0, 106.0)), GangState.WHOLE, 110.0, PRICE)
    meter = settle(seen, gang(), 150.0, 900.0, PRICE, {})
    assert meter.used - seen.used == 8 * 2 * 40
    assert settle(meter, gang(), 150.0, 901.0, PRICE, {}).used == meter.used
    assert settle(Meter(), gang(), 150.0, 900.0, PRICE, {}).nodes == 0, "nothing is known about a gang that was never observed"


def test_pods_before_an_unobserved_restart_count_as_last_observed() -> None:
    seen = count(Meter(), gang(pod(0, 101.0, 104.0), pod(1, 101.0, 106.0)), GangState.WHOLE, 110.0, PRICE)
    again = gang(pod(0, 130.0, 131.0, 150.0, "Succeeded"), pod(1, 130.0, 132.0, 150.0, "Succeeded"), retries=1)
    meter = settle(seen, again, 150.0, 900.0, PRICE, {})
    assert (meter.nodes - seen.nodes, meter.preemptions) == (2 * 40, 1)


def test_a_deleted_pod_of_an_ended_gang_counts_up_to_the_end() -> None:
    seen = count(Meter(), gang(pod(0, 101.0, 104.0), pod(1, 101.0, 106.0)), GangState.WHOLE, 110.0, PRICE)
    left = replace(ENDED, pods=ENDED.pods[:1])
    assert settle(seen, left, 150.0, 900.0, PRICE, {}).used - seen.used == 8 * (40 + 40)
