"""Port of heavy work that only computes: the same function over many items, here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol


class Item(NamedTuple):
    """One part of the work."""

    name: str
    """What an operator knows it by, for messages."""
    content: Any
    """Argument of the function: bytes, text, numbers, and what consists of these."""


class Compute(Protocol):
    """An engine that maps a pure function over items.

    Workers get no secret and no port, and write nothing: their results are committed by the caller. The results are the same with every
    engine and any number of workers, because they come in the order of the items, and each depends on its item alone.
    """

    elsewhere: bool
    """Whether functions are called outside of this process. Contents and results are then pickled."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Item]) -> Iterator[Any]:
        """Yield `function(item.content)` for each item, in their order.

        `function`, contents and results can be pickled; `function` may be called in another process or on another machine, and more than
        once for an item, because the item of a worker that is lost is repeated. `items` is read only a few items ahead of what was
        yielded. If the iterator is closed early, the work on the items that were read ends.

        An error of contracts/errors.py that the function raises keeps its class, and its message begins with the name of the item; any
        other exception becomes Permanent, without its message, which may quote a user. Raises Retryable if an item loses its worker again
        and again, or if the engine cannot be reached, and ConfigError if the workers have other code than this process.
        """
        ...

    def reach(self) -> str:
        """Return one sentence about the engine, after a look whether it can be used. Raises Retryable or ConfigError if it cannot."""
        ...

    def close(self) -> None:
        """End all workers. A later call of `map` starts new ones."""
