"""The engine that computes in this process, one item after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ratchet.contracts.ports.compute import Item
from ratchet.runtime.compute.attempt import attempt, value_of


class InlineCompute:
    """`Compute` without workers. An item is read when its result is asked for."""

    elsewhere = False

    def map(self, function: Callable[[Any], Any], items: Iterable[Item]) -> Iterator[Any]:
        """Yield the results. Errors are those of the port."""
        for item in items:
            yield value_of(attempt(function, item.content), item.name)

    def reach(self) -> str:
        """Return a sentence."""
        return "heavy work is done in the service itself"

    def close(self) -> None:
        """Do nothing."""
