"""Cost of a gang so far: GPU-seconds and node-seconds by use, and money by the price table. No I/O except the price table.

Machines of a gang's own pool count from their launch to the end of the pool, whether pods run on them or not. Machines of a dynamic
pool count while they boot or stand idle and the gang is not whole. Other nodes count from the moment a pod of the gang is bound to
them.

Prices are data (`prices.json`, per node and hour) and not a quotation. They serve to stop a run in time; the cloud provider's bill is
authoritative.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

from pydantic import Field

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.jobs.training import Usage
from ratchet.contracts.model import Frozen
from ratchet.k8s.gangs.gang_state import Gang, GangState
from ratchet.k8s.profiles.profile import Profile


class Meter(Frozen):
    """Sums over an attempt, all incarnations together, plus the state that is needed to continue counting.

    The sums have the same meaning as in `ratchet.contracts.jobs.training.Usage`.
    """

    used: float = 0.0
    """GPU-seconds while the gang was whole."""
    idle: float = 0.0
    """GPU-seconds of nodes that the gang held while it could not run."""
    lost: float = 0.0
    """GPU-seconds while the gang was half alive."""
    nodes: float = 0.0
    """Node-seconds for all uses."""
    cost: float = 0.0
    """Cost in the price table's currency."""
    waited: float = 0.0
    """Seconds since submission in which the gang was not whole."""
    started: float | None = None
    """Seconds from submission until the gang was first whole. None means that it never was."""
    preemptions: int = Field(default=0, ge=0)
    """Restarts of the gang, as counted by Volcano."""
    at: float = 0.0
    """Time of the last update, in seconds since the epoch."""
    held: int = 0
    """Nodes that the gang held at the last update."""
    last: str = "idle"
    """Use of those nodes at the last update: used, idle or lost."""

    @property
    def usage(self) -> Usage:
        """Usage in the form that the ledger stores."""
        return Usage.model_validate(self.model_dump(exclude={"waited", "at", "held", "last"}))

    def add(self, node_price: float, gpus: int, **seconds: float) -> Meter:
        """Return the meter with additional node-seconds of each kind (used, idle, lost).

        `node_price` is the price of a node and hour. `gpus` is the number of GPUs per node.
        """
        nodes = sum(seconds.values())
        sums = {kind: getattr(self, kind) + gpus * more for kind, more in seconds.items()}
        return self.model_copy(update={**sums, "nodes": self.nodes + nodes, "cost": self.cost + nodes * node_price / 3600})


def count(meter: Meter, gang: Gang, state: GangState, now: float, price: float, machines: Mapping[str, float] | None = None) -> Meter:
    """Return the meter as of `now` (seconds since the epoch) for a gang that was in `state` since the last update.

    Time without updates counts, too, because machines cost money meanwhile. `price` is the price of a node and hour. `machines` maps
    further machines that the gang keeps to the time since when it keeps them, in seconds since the epoch.
    """
    machines, since = machines or {}, meter.at or gang.created
    seconds = max(0.0, now - since)
    bound = {pod.node for pod in gang.pods if pod.node and pod.phase in ("Pending", "Running")}
    busy = sum(max(0.0, now - max(since, machines.get(node, since))) for node in bound)
    alone = sum(max(0.0, now - max(meter.at, launched)) for node, launched in machines.items() if node not in bound)
    whole = state is GangState.WHOLE
    into = "used" if whole else "lost" if state is GangState.HALF_ALIVE else "idle"
    read = meter.add(price, gang.gpus, **{into: busy}).add(price, gang.gpus, idle=alone)
    return read.model_copy(
        update={
            "at": max(meter.at, now),  # clocks of the processes that update it may differ
            "held": len(bound),
            "last": into,
            "waited": meter.waited + (0.0 if whole else seconds),
            "started": meter.waited if whole and meter.started is None else meter.started,
            "preemptions": max(meter.preemptions, gang.retries),
        }
    )


def settle(meter: Meter, gang: Gang, ended: float, now: float, price: float, machines: Mapping[str, float]) -> Meter:
    """Return the final meter, as of `now`, of a gang that ended at `ended` (seconds since the epoch).

    Counts by the times in the pods' status. Without remaining pods it assumes that the state of the last update continued until the
    end. Counting starts at the last update. Therefore a repeated call adds only the later cost of `machines`, the machines of the
    gang's own pool.
    """
    pods = [pod for pod in gang.pods if pod.node and pod.bound is not None]
    began = [pod.began for pod in pods if pod.began is not None]
    all_began = len(began) >= gang.wanted
    whole = 0.0 if meter.last == "used" else max(began) if all_began else float("inf")
    first = min([ended, *(pod.bound for pod in pods if pod.bound is not None)])
    unseen = meter.held * max(0.0, first - meter.at) if meter.at else 0.0  # until the first remaining pod was bound, or until the end
    spans = [(max(meter.at, pod.bound or 0.0), pod.finished or ended) for pod in pods]
    spans += [(max(meter.at, first), ended)] * max(0, meter.held - len(pods))  # deleted after a peer failed
    spans = [(start, stop) for start, stop in spans if start < stop]
    used = sum(max(0.0, stop - max(start, whole)) for start, stop in spans)
    held = sum(stop - start for start, stop in spans)
    rest = "lost" if meter.last == "lost" and not all_began else "idle"
    alone = max(0.0, sum(max(0.0, now - max(meter.at, launched)) for launched in machines.values()) - held - unseen)
    read = meter.add(price, gang.gpus, **{meter.last: unseen}).add(price, gang.gpus, used=used).add(price, gang.gpus, **{rest: held - used})
    started = max(began) - gang.created if all_began and meter.started is None else meter.started
    return read.add(price, gang.gpus, idle=alone).model_copy(
        update={"at": max(meter.at, now, ended), "held": 0, "started": started, "preemptions": max(meter.preemptions, gang.retries)}
    )


@cache
def _prices() -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = json.loads((resources.files("ratchet.k8s.gangs") / "prices.json").read_text(encoding="utf-8"))[
        "nodes"
    ]
    return table


def price_of(profile: Profile, capacity: str) -> float | None:
    """Return the price of a node and hour: the highest of the profile's instance types, so that estimates are upper bounds.

    Reserved and flex-start capacity without a price of its own count at the price on demand. Returns None if the price table has none of
    the types.
    """
    usual = "on-demand" if capacity in ("reserved", "flex-start") else capacity
    prices = [_prices().get(name, {}) for name in profile.instance_types]
    known = [table.get(capacity, table.get(usual)) for table in prices]
    return max((price for price in known if price is not None), default=None)


def at_most(profile: Profile, capacity: str, nodes: int, seconds: float) -> float | None:
    """Return the maximum cost of `nodes` nodes for `seconds`, or None if the price is unknown."""
    price = price_of(profile, capacity)
    return None if price is None else price * nodes * seconds / 3600


def refuse_what_cannot_be_metered(settings: ClusterSettings, profile: Profile) -> None:
    """Raise Permanent if a cap is set but the machines' price is unknown, because the cap would never be reached."""
    if (settings.cap_run or settings.cap_month) and price_of(profile, settings.pool.capacity) is None:
        types = ", ".join(profile.instance_types) or "any machine"
        raise Permanent(f"cluster.cap_run: the price table has no price for {types}; add it to k8s/gangs/prices.json, or remove the cap")
