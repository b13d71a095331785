"""Keeps a bounded number of items in flight, and yields their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from ratchet.contracts.ports.compute import Item

Result = TypeVar("Result")


def ordered(submit: Callable[[Item], Future[Result]], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """Yield the results of the items in their order. At most `ahead` items are read beyond what was yielded.

    A result is yielded only after the next items are on their way, so that these are worked on while the caller uses it. If one fails, or
    the iterator is closed, the items that have not begun are cancelled.
    """
    flying: deque[Future[Result]] = deque()
    waiting = iter(items)
    try:
        while True:
            while len(flying) < ahead and (item := next(waiting, None)) is not None:
                flying.append(submit(item))
            if not flying:
                return
            done = flying.popleft().result()
            if (item := next(waiting, None)) is not None:
                flying.append(submit(item))
            yield done
    finally:
        for future in flying:
            future.cancel()
