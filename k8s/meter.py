"""What a gang has cost so far: seconds of its GPUs and nodes by what they were good for, and money by the price table. Pure.

Nodes count from the moment that a pod of the gang is bound to them, whether the gang can start or not. Prices are data
(prices.json, per node and hour) and no quotation: the cloud's bill is right, this is what stops a run in time.
"""

from __future__ import annotations

import json
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

    @property
    def usage(self) -> Usage:
        """As the ledger keeps it."""
        return Usage.model_validate(self.model_dump(exclude={"waited", "at"}))


def count(meter: Meter, gang: Gang, state: State, now: float, price: float) -> Meter:
    """The meter as of `now` (seconds since the epoch), for a gang that has been in `state` since it was read last: also while nobody
    read it, because machines cost meanwhile. `price`: of a node and hour."""
    seconds = max(0.0, now - (meter.at or gang.created))
    bound = len({pod.node for pod in gang.pods if pod.node and pod.phase in ("Pending", "Running")})
    whole = state is State.WHOLE
    into = "used" if whole else "lost" if state is State.HALF_ALIVE else "idle"
    return meter.model_copy(
        update={
            into: getattr(meter, into) + bound * gang.gpus * seconds,
            "at": max(meter.at, now),  # whoever reads it next may have another clock
            "nodes": meter.nodes + bound * seconds,
            "cost": meter.cost + bound * seconds * price / 3600,
            "waited": meter.waited + (0.0 if whole else seconds),
            "started": meter.waited if whole and meter.started is None else meter.started,
            "preemptions": max(meter.preemptions, gang.retries),
        }
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
