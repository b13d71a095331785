"""What a gang has cost so far: seconds of its GPUs and nodes by what they were good for, and money by the price table. Pure.

Machines of a gang's own pool count from their launch to the pool's end, whatever runs on them; those of a pool that grows while they boot
or stand idle and the gang is not whole; other nodes from the moment that a pod of the gang is bound to them. Prices are data
(prices.json, per node and hour) and no quotation: the cloud's bill is right, this is what stops a run in time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

from pydantic import Field

from contracts.model import Frozen
from contracts.training import Usage
from k8s.gangs import Gang, State
from k8s.profile import Profile


class Meter(Frozen):
    """Sums over an attempt, all incarnations together, as contracts.training.Usage tells them, and what it takes to go on."""

    used: float = 0.0
    """GPU-seconds of whole gangs."""
    idle: float = 0.0
    """GPU-seconds of nodes that the gang held while it could not start."""
    lost: float = 0.0
    """GPU-seconds of gangs that were only half alive."""
    nodes: float = 0.0
    """Node-seconds, whatever for."""
    cost: float = 0.0
    """In the price table's currency."""
    waited: float = 0.0
    """Seconds in which it was not whole, from its submission on."""
    started: float | None = None
    """Seconds from its submission to its first whole moment."""
    preemptions: int = Field(default=0, ge=0)
    """Restarts of the gang, as Volcano counts them."""
    at: float = 0.0
    """When it was read last, seconds since the epoch."""
    held: int = 0
    """Nodes that it had when it was read last."""
    last: str = "idle"
    """What they were good for then: used, idle or lost."""

    @property
    def usage(self) -> Usage:
        """As the ledger keeps it."""
        return Usage.model_validate(self.model_dump(exclude={"waited", "at", "held", "last"}))

    def add(self, node_price: float, gpus: int, **seconds: float) -> Meter:
        """With so many node-seconds more of each kind: used, idle, lost. `gpus`: of a node; `node_price`: of a node and hour."""
        nodes = sum(seconds.values())
        sums = {kind: getattr(self, kind) + gpus * more for kind, more in seconds.items()}
        return self.model_copy(update={**sums, "nodes": self.nodes + nodes, "cost": self.cost + nodes * node_price / 3600})


def count(meter: Meter, gang: Gang, state: State, now: float, price: float, machines: Mapping[str, float] | None = None) -> Meter:
    """The meter as of `now` (seconds since the epoch), for a gang that has been in `state` since it was read last: also while nobody
    read it, because machines cost meanwhile. `price`: of a node and hour. `machines`: that it keeps besides, by node -> since when."""
    machines, since = machines or {}, meter.at or gang.created
    seconds = max(0.0, now - since)
    bound = {pod.node for pod in gang.pods if pod.node and pod.phase in ("Pending", "Running")}
    busy = sum(max(0.0, now - max(since, machines.get(node, since))) for node in bound)
    alone = sum(max(0.0, now - max(meter.at, launched)) for node, launched in machines.items() if node not in bound)
    whole = state is State.WHOLE
    into = "used" if whole else "lost" if state is State.HALF_ALIVE else "idle"
    read = meter.add(price, gang.gpus, **{into: busy}).add(price, gang.gpus, idle=alone)
    return read.model_copy(
        update={
            "at": max(meter.at, now),  # whoever reads it next may have another clock
            "held": len(bound),
            "last": into,
            "waited": meter.waited + (0.0 if whole else seconds),
            "started": meter.waited if whole and meter.started is None else meter.started,
            "preemptions": max(meter.preemptions, gang.retries),
        }
    )


def settle(meter: Meter, gang: Gang, ended: float, now: float, price: float, machines: Mapping[str, float]) -> Meter:
    """The meter of a gang that ended at `ended`, as of `now`: by what its pods tell of themselves, and where nothing is left of them, as it
    was seen last. Counts from where it was read, so a repeat adds only what its own pool's machines have cost since."""
    pods = [pod for pod in gang.pods if pod.node and pod.bound is not None]
    began = [pod.began for pod in pods if pod.began is not None]
    told = len(began) >= gang.wanted
    whole = 0.0 if meter.last == "used" else max(began) if told else float("inf")
    first = min([ended, *(pod.bound for pod in pods if pod.bound is not None)])
    unseen = meter.held * max(0.0, first - meter.at) if meter.at else 0.0  # before a restart, or to its end
    spans = [(max(meter.at, pod.bound or 0.0), pod.finished or ended) for pod in pods]
    spans += [(max(meter.at, first), ended)] * max(0, meter.held - len(pods))  # taken away with a peer that failed
    spans = [(start, stop) for start, stop in spans if start < stop]
    used = sum(max(0.0, stop - max(start, whole)) for start, stop in spans)
    held = sum(stop - start for start, stop in spans)
    rest = "lost" if meter.last == "lost" and not told else "idle"
    alone = max(0.0, sum(max(0.0, now - max(meter.at, launched)) for launched in machines.values()) - held - unseen)
    read = meter.add(price, gang.gpus, **{meter.last: unseen}).add(price, gang.gpus, used=used).add(price, gang.gpus, **{rest: held - used})
    started = max(began) - gang.created if told and meter.started is None else meter.started
    return read.add(price, gang.gpus, idle=alone).model_copy(
        update={"at": max(meter.at, now, ended), "held": 0, "started": started, "preemptions": max(meter.preemptions, gang.retries)}
    )


@cache
def _prices() -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = json.loads((resources.files("k8s") / "prices.json").read_text(encoding="utf-8"))["nodes"]
    return table


def price_of(profile: Profile, capacity: str) -> float | None:
    """Of a node and hour: the dearest of the profile's types, so that an estimate is at most; None where none is in the table."""
    known = [_prices()[name][capacity] for name in profile.instance_types if capacity in _prices().get(name, {})]
    return max(known, default=None)


def at_most(profile: Profile, capacity: str, nodes: int, seconds: float) -> float | None:
    """What nodes for so long would cost; None where the table does not know."""
    price = price_of(profile, capacity)
    return None if price is None else price * nodes * seconds / 3600
