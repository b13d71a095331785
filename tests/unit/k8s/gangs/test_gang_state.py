"""Tests of the state of a gang, which follows from its pods, nodes and heartbeats, and of the action that the state requires."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.k8s.gangs.gang_state import CHARACTERS, LINES, Act, Gang, GangPod, GangState, Node, due, lingers, pod_of, state_of, unheard

NODES = {name: Node(name, ready=name != "quiet") for name in ("one", "two", "quiet")}


def pod(number: int, phase: str = "Running", node: str | None = "one", ends: float | None = None, reason: str = "") -> GangPod:
    """Return pod number `number` of a gang."""
    return GangPod(f"w{number}", f"uid{number}", 0, phase, node, ends, reason)


def gang(*pods: GangPod, phase: str = "Running") -> Gang:
    """Return a gang that needs two pods and has the given ones."""
    return Gang("g", "job", "here", "u", phase, "", 2, 8, 0, pods, 0.0)


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (gang(pod(0), pod(1)), GangState.WHOLE),
        (gang(pod(0), pod(1, "Succeeded")), GangState.WHOLE),
        (gang(pod(0), pod(1, "Failed")), GangState.HALF_ALIVE),
        (gang(pod(0), pod(1, node="quiet")), GangState.HALF_ALIVE),
        (gang(pod(0), pod(1, node="gone")), GangState.HALF_ALIVE),
        (gang(pod(0), pod(1, ends=150.0)), GangState.RESTARTING),
        (gang(pod(0), pod(1, ends=80.0)), GangState.HALF_ALIVE),
        (gang(pod(0), pod(1, "Pending")), GangState.WAITING),
        (gang(pod(0, "Pending", None, None, "Schedulable"), pod(1, "Pending", None, None, "Unschedulable")), GangState.HALF_PRESENT),
        (gang(pod(0, "Pending", None, None, "Unschedulable"), pod(1, "Pending", None, None, "Unschedulable")), GangState.WAITING),
        (gang(phase="Pending"), GangState.WITHOUT_PODS),
        (gang(phase="Running"), GangState.WAITING),
        (gang(phase="Restarting"), GangState.RESTARTING),
        (gang(pod(0), phase="Terminating"), GangState.RESTARTING),
        (gang(phase="Completed"), GangState.ENDED),
        (None, GangState.ABSENT),
    ],
)
def test_states(seen: Gang | None, state: GangState) -> None:
    assert state_of(seen, NODES, now=100.0)[0] is state


def test_a_silent_process_counts_unless_a_pod_has_succeeded() -> None:
    assert state_of(gang(pod(0), pod(1)), NODES, 100.0, silent="beat-1")[0] is GangState.HALF_ALIVE
    assert state_of(gang(pod(0), pod(1, "Succeeded")), NODES, 100.0, silent="beat-1")[0] is GangState.WHOLE, (
        "a pod that has succeeded sends no heartbeat"
    )


@pytest.mark.parametrize(
    ("seen", "beats", "who"),
    [
        (gang(pod(0), pod(1)), {"i2/beat-0"}, "i2/beat-1"),
        (gang(pod(0), pod(1)), {"i2/beat-1"}, "i2/beat-0"),
        (gang(pod(0), pod(1)), {"i2/beat-0", "i2/beat-1"}, ""),
        (gang(pod(0), pod(1)), set(), ""),
        (gang(pod(0), pod(1, "Pending")), {"i2/beat-0"}, ""),
        (gang(pod(0), pod(1, "Succeeded")), {"i2/beat-0"}, ""),
    ],
)
def test_a_missing_heartbeat_counts_only_if_all_pods_run_and_another_has_one(seen: Gang, beats: set[str], who: str) -> None:
    assert unheard(seen, beats) == who


def ended(phase: str = "Failed", **terminated: Any) -> str:
    """Return the reason that is reported for a pod whose container ended in this way."""
    status: dict[str, Any] = {"phase": phase, "containerStatuses": [{"name": "job", "state": {"terminated": terminated}}]}
    return pod_of({"metadata": {"name": "w0"}, "spec": {}, "status": status}).died


def test_the_reason_of_a_pods_end_contains_only_the_end_of_its_log() -> None:
    assert ended(exitCode=137, reason="OOMKilled") == "exit code 137 (OOMKilled)"
    assert ended(exitCode=1, reason="Error", message="a\n\n  b\n") == "exit code 1: a | b"
    assert ended(exitCode=0, reason="Completed", phase="Succeeded") == ""
    long = ended(exitCode=1, message="\n".join(f"{line} " + "x" * 300 for line in range(100)))
    assert len(long) <= CHARACTERS + 20
    assert ended(exitCode=1, message="\n".join(map(str, range(100)))).count(" | ") == LINES - 1
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    assert pod_of({"metadata": {"name": "w0"}, "spec": {}, "status": evicted}).died == "Evicted: The node was low on resource: memory."


@pytest.mark.parametrize(
    ("seen", "there"),
    [
        (pod(0), True),
        (pod(0, ends=150.0), True),
        (pod(0, ends=80.0), False),
        (pod(0, node="quiet"), False),
        (pod(0, node="gone"), False),
        (pod(0, "Pending", node=None), False),
        (pod(0, "Failed"), False),
        (pod(0, "Succeeded"), False),
    ],
)
def test_a_pod_lingers_while_it_has_a_node_and_can_still_end(seen: GangPod, there: bool) -> None:
    assert lingers(seen, NODES, 100.0) is there


def test_an_action_is_due_before_the_limit_but_not_immediately() -> None:
    assert due(GangState.HALF_ALIVE, since=0, now=49, limit=60) is Act.NOTHING
    assert due(GangState.HALF_ALIVE, since=0, now=51, limit=60) is Act.RESTART
    assert due(GangState.HALF_PRESENT, since=0, now=51, limit=60) is Act.RELEASE
    assert due(GangState.WITHOUT_PODS, since=0, now=14, limit=600) is Act.NOTHING
    assert due(GangState.WITHOUT_PODS, since=0, now=15, limit=600) is Act.SYNC
    assert all(due(state, 0, 1e9, 60) is Act.NOTHING for state in (GangState.WHOLE, GangState.WAITING, GangState.RESTARTING))
