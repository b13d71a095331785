"""Tests of an installation with two pods of the service: one leads, and the other one takes over."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.faults import counted, is_counted
from tests.cluster.rig.processes import born, send
from tests.cluster.test_whole import answer, prepared, token_of
from tests.cluster.whole import CHART, LINE, RELEASE, Traffic, Whole
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(3600)]

TAKEN_OVER = 120.0
"""Seconds within which the other pod must lead after the first one was lost."""
LEADS = "this pod leads"


def without_volume(values: dict[str, Any]) -> None:
    """Let nothing but the home be on the volume of the service, as before a change to two pods."""
    values["mlflow"] = {"url": "sqlite:////tmp/mlflow.db"}  # in place of a server; it has copies only
    values["bucket"]["anchors"] = values["bucket"]["exchange"].replace("exchange", "anchors")
    values["receiver"]["replicas"] = 2  # one on each node


def spoken(whole: Whole, pod: str) -> str:
    """Return the last thing that a pod of the service has said about who leads; empty if it has said nothing, or its node is lost."""
    log = whole.rig.kubectl("logs", "-n", whole.namespace, pod, "--tail=-1", check=False)
    return next((line for line in reversed(log.splitlines()) if LEADS in line or "this pod waits" in line), "")


def names(whole: Whole) -> list[str]:
    return [pod["metadata"]["name"] for pod in whole.ready("service")]


def leader(whole: Whole) -> str:
    """Wait until two pods of the service are ready and one of them leads, and return that one. Commands run in it from now on."""

    def settled() -> bool:
        found = [spoken(whole, pod) for pod in names(whole)]
        return len(found) == 2 and sum(LEADS in one for one in found) == 1 and sum("this pod waits" in one for one in found) == 1

    until(settled, 240, 1.0, whole.story)
    [whole.service_pod] = [pod for pod in names(whole) if LEADS in spoken(whole, pod)]
    return whole.service_pod


def other_than(whole: Whole, pod: str) -> str:
    [found] = [one for one in names(whole) if one != pod]
    return found


def taken_over(whole: Whole, pod: str) -> float:
    """Wait until `pod` leads, let commands run in it, and return the seconds."""
    began = time.monotonic()
    until(lambda: LEADS in spoken(whole, pod), TAKEN_OVER, 0.5, whole.story)
    whole.service_pod, seconds = pod, time.monotonic() - began
    assert seconds < TAKEN_OVER
    return seconds


def node_of(whole: Whole, pod: str) -> str:
    return str(pod_named(whole, pod)["spec"]["nodeName"])


def pod_named(whole: Whole, pod: str) -> dict[str, Any]:
    [found] = [one for one in whole.rig.pods(whole.namespace) if one["metadata"]["name"] == pod]
    return found


def processes_of(uid: str) -> list[int]:
    """Return the processes of the service's pod `uid` on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if f"RATCHET_POD={uid}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


class Routes:
    """Watches which object has set the route that the routers follow, for the duration of a block."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.seen: list[str] = []

    def __enter__(self) -> Routes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            with contextlib.suppress(Exception):  # the bucket may not answer for a moment
                setter = self._whole.route()["annotation"]
                if self.seen[-1:] != [setter]:
                    self.seen.append(setter)


@contextlib.contextmanager
def suspended(whole: Whole, pod: str) -> Iterator[None]:
    """Suspend all processes of a pod of the service for the duration of the block."""
    found = {number: born(number) for number in processes_of(pod_named(whole, pod)["metadata"]["uid"])}
    stopped = [number for number, start in found.items() if send(number, start, signal.SIGSTOP)]
    assert stopped
    try:
        yield
    finally:
        for number, start in found.items():
            send(number, start, signal.SIGCONT)


def handed_over(whole: Whole, first: str) -> str:
    """Let Kubernetes end the pod that leads, wait until another one leads and a further one waits, and return the one that leads.

    The pod that Kubernetes makes in place of the ended one may lead, if it is there in time.
    """
    began = time.monotonic()
    whole.rig.kubectl("delete", "pod", first, "-n", whole.namespace, "--wait=false")
    until(lambda: any(LEADS in spoken(whole, pod) for pod in names(whole) if pod != first), TAKEN_OVER, 0.5, whole.story)
    whole.told(f"another pod leads {time.monotonic() - began:.0f} s after the first one was told to end")
    return leader(whole)


def one_pod(whole: Whole) -> None:
    """Change back to one pod, which has its former volume."""
    whole.helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set", "service.replicas=1", "--namespace", whole.namespace)
    whole.service_pod = f"{RELEASE}-service-0"
    until(lambda: names(whole) == [whole.service_pod], 300, 1.0, whole.story)
    whole.told("one pod with its former volume is ready")


def two_pods(whole: Whole) -> str:
    """Install with one pod of the service, change to two, and return the one that leads.

    The pod that waits names the other one, also to somebody who runs a command that writes.
    """
    prepared(whole, change=without_volume)
    whole.helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set", "service.replicas=2", "--namespace", whole.namespace)
    first = leader(whole)
    whole.told(f"{first} leads without a volume")
    assert LINE in whole.ratchet("status", LINE)
    waiting = other_than(whole, first)
    command = ("exec", "-n", whole.namespace, waiting, "--", "sh", "-c")
    program = f"{sys.executable} -m ratchet.flows.cli.main"
    assert first in whole.rig.kubectl(*command, f"{program} status {LINE}; true")
    assert f"kubectl exec {first}" in whole.rig.kubectl(*command, f"{program} gc 2>&1; true")
    return first


def answers_go_on(whole: Whole, traffic: Traffic) -> None:
    before = len(traffic.answers)
    until(lambda: len(traffic.answers) > before + 20, 120, 1.0, whole.story)


def each_answer_is_stored_once(whole: Whole, traffic: Traffic) -> None:
    answered = set(traffic.traces)
    until(lambda: is_counted(whole, answered), 240, 3.0, lambda: str(counted(whole, answered)))
    missing, refused, twice = counted(whole, answered)
    whole.told(
        f"{len(answered)} answers, {missing} without a trace, {refused} in quarantine, {twice} twice, {len(traffic.failures)} failed"
    )
    assert (max(0, missing - refused), twice) == (0, 0)


def test_a_second_pod_takes_over_each_time_and_one_pod_goes_on_with_its_former_volume(whole: Whole) -> None:
    """The first pod is suspended, loses its node, and ends. At the end, the volume has the state of the time before the second pod."""
    first = two_pods(whole)
    client = httpx.Client(timeout=30, trust_env=False)
    with whole.users(token_of(whole)) as traffic, Routes(whole) as routes:
        until(lambda: len(whole.route()["backends"]) == 2, 1200, 1.0, whole.story)
        whole.told("the rollout is open")

        second = other_than(whole, first)
        with suspended(whole, first):
            seconds = taken_over(whole, second)
            whole.told(f"the other pod leads {seconds:.0f} s after the first one was suspended")
        until(lambda: "this pod waits" in spoken(whole, first), 120, 1.0, whole.story)
        whole.told("the first one waits after it was resumed")

        prefect = whole.ready("prefect")[0]["spec"]["nodeName"]
        lost = leader(whole)
        if node_of(whole, lost) == prefect:  # only the loss of the service is of interest here
            lost = handed_over(whole, lost)
        node, heir = node_of(whole, lost), other_than(whole, lost)
        assert node not in (prefect, node_of(whole, heir))
        whole.rig.lose(node)
        seconds = taken_over(whole, heir)
        whole.told(f"the other pod leads {seconds:.0f} s after the node of the first one was lost")
        answers_go_on(whole, traffic)
        whole.rig.recover(node)
        until(lambda: "this pod waits" in spoken(whole, lost), 240, 1.0, whole.story)
        assert leader(whole) == heir
        whole.told("the node is back, and its pod waits")

        until(lambda: "promoted" in whole.ratchet("history", LINE, check=False), 1800, 3.0, whole.story)
        until(lambda: answer(whole, client) == "yes", 240, 1.0, whole.story)
        whole.told("the candidate is promoted")
        answers_go_on(whole, traffic)
        handed_over(whole, heir)
        answers_go_on(whole, traffic)
        one_pod(whole)
        answers_go_on(whole, traffic)
        assert answer(whole, client) == "yes"
    assert len(routes.seen) == len(set(routes.seen)) > 1, f"the route was set back: {routes.seen}"
    each_answer_is_stored_once(whole, traffic)
