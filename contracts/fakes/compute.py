"""Fake of the port `Compute`."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ratchet.contracts.errors import Permanent, RatchetError
from ratchet.contracts.ports.compute import Item


class FakeCompute:
    """`Compute` in this process that behaves as if each worker were lost once: it calls the function twice for each item.

    Functions, contents and results are pickled, and two items are read ahead.
    """

    elsewhere = True

    def __init__(self) -> None:
        self.begun: list[str] = []
        """Names of the items, once for each call."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Item]) -> Iterator[Any]:
        """Yield the results of the second calls."""
        waiting, ahead = iter(items), deque[Item]()
        while True:
            while len(ahead) < 3 and (item := next(waiting, None)) is not None:
                ahead.append(item)
            if not ahead:
                return
            yield self._called(function, ahead.popleft())

    def reach(self) -> str:
        """Return a sentence."""
        return "a fake"

    def close(self) -> None:
        """Do nothing."""

    def _called(self, function: Callable[[Any], Any], item: Item) -> Any:
        result = None
        for _ in range(2):
            self.begun.append(item.name)
            called, content = pickle.loads(pickle.dumps((function, item.content)))  # noqa: S301 -- its own bytes
            try:
                result = called(content)
            except RatchetError as error:
                raise type(error)(f"{item.name}: {error}") from None
            except Exception as error:
                raise Permanent(f"{item.name}: unforeseen {type(error).__name__}") from None
        return pickle.loads(pickle.dumps(result))  # noqa: S301 -- its own bytes
