"""Computes what the training of a cycle, with its search over recipes, costs at most. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ratchet.contracts.loop import Loop
from ratchet.contracts.model import Frozen


class HighestCost(Frozen):
    """The highest cost of the training of a cycle, by the limits of the loop file. A stopped job may need some more time to save."""

    attempts: int
    """Maximum number of attempts at the first recipe."""
    timeout: float
    """Maximum duration of one of these attempts in seconds, restarts included."""
    budget: float
    """Job time for all further recipes together, in seconds; 0 without a search."""
    nodes: int
    """Number of nodes that train together."""
    gpus: int
    """Number of GPUs per node."""
    price: float | None = None
    """Price for the whole time, in the price table's currency. None: the machines have no known price."""
    cap_run: float | None = None
    """Cost at which an attempt is stopped, in the same currency; None: no limit."""
    cap_month: float | None = None
    """Cost of all attempts of the line in a calendar month (UTC) at which it is stopped, in the same currency; None: no limit."""

    @property
    def seconds(self) -> float:
        """The longest job time in seconds."""
        return self.attempts * self.timeout + self.budget

    @property
    def gpu_hours(self) -> float:
        """The GPU hours in this time; 0 on the CPU."""
        return self.seconds / 3600 * self.nodes * self.gpus

    @property
    def text(self) -> str:
        """The cost as a sentence."""
        attempts = (
            f"{self.attempts} attempts of at most {self.timeout:,.0f} s" if self.attempts > 1 else f"one attempt of {self.timeout:,.0f} s"
        )
        search = f" and {self.budget:,.0f} s for all other recipes" if self.budget else ""
        where = f"{self.gpu_hours:.2f} GPU hours on {self.nodes} × {self.gpus} GPUs" if self.gpus else f"no GPU, nodes: {self.nodes}"
        price = f", {self.price:.2f} by the price table" if self.price is not None else ""
        caps = [f"cluster.cap_run = {self.cap_run:g} stops an attempt"] if self.cap_run else []
        caps += [f"cluster.cap_month = {self.cap_month:g} stops all trainings of the line in a month"] if self.cap_month else []
        early = f" Earlier, {' and '.join(caps)}." if caps else ""
        return (
            f"Highest cost: {self.seconds / 3600:.2f} hours of job time ({attempts} for the first recipe{search}), {where}{price}.{early}"
        )


def highest_cost(loop: Loop, budget: float, price: Callable[[float], float | None] | None = None) -> HighestCost:
    """Return what the training of a cycle costs at most.

    `budget` is the job time of the plan's search in seconds, 0 without one. The search permits it for the trials after the first one, which
    has `training.max_attempts` attempts. `price` returns the price of the line's machines for a number of seconds, or None if it is
    unknown. Raises ValueError for a budget that is negative or not finite.
    """
    if not 0 <= budget < float("inf"):
        raise ValueError(f"a search cannot have a budget of {budget} s; it is 0 or more")
    settings, cluster = loop.training, loop.cluster
    found = HighestCost(
        attempts=settings.max_attempts,
        timeout=settings.timeout,
        budget=budget,
        nodes=settings.nodes,
        gpus=settings.gpus,
        cap_run=cluster.cap_run if cluster else None,
        cap_month=cluster.cap_month if cluster else None,
    )
    return found.model_copy(update={"price": price(found.seconds) if price else None})
