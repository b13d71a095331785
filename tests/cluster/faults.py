"""Counts the losses of an installation in pods when its parts fail: each fault is done while users ask, and then everything is counted."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from tests.cluster.rig.build import RigError
from tests.cluster.whole import CHART, LINE, RELEASE, Traffic, Whole
from tests.toy_line import TRAINING
from tests.waiting import until

COUNT = """
import json, sys
from ratchet.flows.config.home import Home
from ratchet.materializer.lake.tables import Lake
lake = Lake(Home.from_environment().lake(sys.argv[1]))
traces, kept = lake.scan("traces", ("id", "verified")), lake.scan("quarantine", ("source", "state"))
refused = kept.filter((kept["source"] == "router") & kept["state"].is_null())
print(json.dumps([traces.filter(traces["verified"])["id"].to_list(), len(refused)]))
"""
"""Program that prints the ids of the router's traces in the lake, and the number of its records in quarantine, such as empty answers."""


@dataclass
class Fault:
    """One fault and its outcome."""

    name: str
    done: Callable[[Whole], None]
    whole_again: Callable[[Whole], bool]
    seconds: float = 0.0
    """Seconds from the fault until the part works again."""
    failed: int = 0
    """Requests of users that failed from the fault until then."""
    answered: int = 0


def kill(component: str) -> Callable[[Whole], None]:
    """Return a fault: kill -9 of the first process of the first pod of a component. The kubelet starts the container again."""

    def do(whole: Whole) -> None:
        pod = whole.ready(component)[0]["metadata"]["name"]
        # Process 1 of a container ignores signals from within, except those that it handles; the pod is deleted without a grace period.
        whole.rig.kubectl("delete", "pod", "-n", whole.namespace, pod, "--grace-period=0", "--force")

    return do


def has(component: str, count: int) -> Callable[[Whole], bool]:
    """Return whether that many pods of a component are ready."""
    return lambda whole: len(whole.ready(component)) >= count


def postgres_restarts(whole: Whole) -> None:
    """Kill Postgres, and start it again after ten seconds."""
    whole.postgres.kill()
    time.sleep(10)
    whole.postgres.start()


def bucket_refuses(whole: Whole) -> None:
    """Stop the S3 server for half a minute."""
    whole.s3.stop()
    time.sleep(30)
    whole.s3.start()


def api_server_is_away(whole: Whole) -> None:
    """Kill the API server, and start it again after half a minute."""
    whole.rig.kill("apiserver")
    time.sleep(30)
    whole.rig.restart("apiserver")


def upgrade(whole: Whole) -> None:
    """Upgrade the release with a value that replaces every pod."""
    values = ("--reuse-values", "--set-string", "extraEnv.UPGRADED=yes")
    whole.helm("upgrade", RELEASE, str(CHART), *values, "--namespace", whole.namespace)


def upgraded(whole: Whole) -> bool:
    """Whether all pods have the new value and are ready."""
    pods = [*whole.ready("router"), *whole.ready("receiver"), *whole.ready("service")]
    new = [p for p in pods if any(e["name"] == "UPGRADED" for e in p["spec"]["containers"][0]["env"])]
    return len(new) >= 4 and len(new) == len(pods)


def node_is_lost(whole: Whole) -> None:
    """Kill a node with all its processes, and delete its object after twenty seconds, as a cloud does."""
    whole.rig.lose("real-1")
    time.sleep(20)
    whole.rig.delete_nodes("real-1")


def elsewhere(whole: Whole) -> bool:
    """Whether every part runs on the node that is left."""
    parts = {"service": 1, "receiver": 1, "router": 2, "prefect": 1, "model": 2}
    return all(len([p for p in whole.ready(part) if p["spec"]["nodeName"] == "real-0"]) >= count for part, count in parts.items())


def faults() -> list[Fault]:
    """Return the faults in their order."""
    return [
        Fault("kill -9 of a router pod", kill("router"), has("router", 2)),
        Fault("kill -9 of the receiver pod", kill("receiver"), has("receiver", 1)),
        Fault("kill -9 of the service pod", kill("service"), has("service", 1)),
        Fault("kill -9 of a champion's model server", kill("model"), has("model", 2)),
        Fault("Postgres killed, back after 10 s", postgres_restarts, has("service", 1)),
        Fault("S3 refuses for 30 s", bucket_refuses, has("router", 2)),
        Fault("API server away for 30 s", api_server_is_away, has("router", 2)),
        Fault("helm upgrade that replaces every pod", upgrade, upgraded),
        Fault("a node lost, its object deleted after 20 s", node_is_lost, elsewhere),
    ]


def run(whole: Whole, traffic: Traffic, some: list[Fault]) -> list[dict[str, Any]]:
    """Do each fault while the users ask, wait until the part works again and users get answers, and return the rows of the table."""
    client = httpx.Client(timeout=30, trust_env=False)
    rows = []
    for fault in some:
        failed, answered, began = len(traffic.failures), len(traffic.answers), time.monotonic()
        fault.done(whole)

        def is_whole(fault: Fault = fault) -> bool:
            try:
                return fault.whole_again(whole) and whole.ask(client, f"f-{time.monotonic_ns()}", TRAINING[0]).status_code == 200
            except (RigError, httpx.HTTPError, OSError, AssertionError):
                return False

        until(is_whole, 300, 0.5, whole.story)
        fault.seconds = time.monotonic() - began
        time.sleep(3)
        fault.failed, fault.answered = len(traffic.failures) - failed, len(traffic.answers) - answered
        row = {name: value for name, value in asdict(fault).items() if name in ("name", "seconds", "failed", "answered")}
        rows.append({**row, "why": sorted({one[:120] for one in traffic.failures[failed:]})[:3]})
        whole.told(f"{fault.name}: whole after {fault.seconds:.0f} s, {fault.failed} requests failed, {fault.answered} answered")
    return rows


def counted(whole: Whole, answered: set[str]) -> tuple[int, int, int]:
    """Return the numbers of answers without a trace in the lake, of records in quarantine, and of traces that are stored twice.

    `answered` are the ids of the traces of all answers.
    """
    stored, refused = in_lake(whole)
    return len(answered - set(stored)), refused, len(stored) - len(set(stored))


def is_counted(whole: Whole, answered: set[str]) -> bool:
    """Return whether each answer has a trace in the lake, or a record in quarantine."""
    missing, refused, _ = counted(whole, answered)
    return missing <= refused


def in_lake(whole: Whole) -> tuple[list[str], int]:
    """Return the ids of the router's traces in the lake, and the number of its records in quarantine."""
    out = whole.rig.kubectl("exec", "-n", whole.namespace, whole.service_pod, "--", sys.executable, "-c", COUNT, LINE)
    stored, refused = json.loads(out.strip().splitlines()[-1])
    return stored, refused
