"""What the engines with child processes have in common: order, items in flight, repeats, and the end of unused processes."""

from __future__ import annotations

import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ports.compute import Item
from ratchet.runtime.compute.attempt import value_of
from ratchet.runtime.compute.children import Child, Lost
from ratchet.runtime.compute.ordered import ordered

TRIES = 3
"""Times that an item is begun before it counts as the reason for which its workers are lost."""
IDLE_SECONDS = 60.0
"""Seconds without work after which the processes end."""


class ChildCompute(ABC):
    """`Compute` by child processes, which start at the first item and end after a minute without work.

    `workers` items are worked on at the same time, and one more waits. All calls of `map` in this process share them.
    """

    elsewhere = True
    remedy = ""
    """What an operator does about an item that is lost again and again."""

    def __init__(self, workers: int, tries: int = TRIES, idle: float = IDLE_SECONDS) -> None:
        self.workers = workers
        self.tries = tries
        self._seconds = idle
        self._slots = threading.Semaphore(workers)
        self._lock = threading.Lock()
        self._maps = 0
        self._timer: threading.Timer | None = None

    def map(self, function: Callable[[Any], Any], items: Iterable[Item]) -> Iterator[Any]:
        """Yield the results. Errors are those of the port."""
        work = _Work(self, pickle.dumps(function))
        self._begin()
        threads = ThreadPoolExecutor(self.workers, thread_name_prefix="compute")
        try:
            yield from ordered(lambda item: threads.submit(work.do, item), items, self.workers + 1)
        finally:
            work.stop()
            threads.shutdown(cancel_futures=True)
            self._rest()

    @abstractmethod
    def reach(self) -> str:
        """Return a sentence about the engine."""

    @abstractmethod
    def close(self) -> None:
        """End the processes that have no work."""

    @abstractmethod
    def lend(self) -> AbstractContextManager[Child]:
        """Lend a process that is ready. Raises Lost if it ends before it is ready, and Retryable or ConfigError if it cannot be used."""

    @abstractmethod
    def cancel(self, child: Child, number: int) -> None:
        """End the work on a request."""

    def answer(self, data: bytes, note: Callable[[Child, int], None]) -> bytes:
        """Let a process answer a request, when one of the workers is free. `note` is called with the process and the request's number."""
        with self._slots, self.lend() as child:
            number, answer = child.ask(data)
            note(child, number)
            return answer.result()

    def _begin(self) -> None:
        with self._lock:
            self._maps += 1
            if self._timer is not None:
                self._timer.cancel()

    def _rest(self) -> None:
        with self._lock:
            self._maps -= 1
            if self._maps == 0:
                self._timer = threading.Timer(self._seconds, self._close_unused)
                self._timer.daemon = True
                self._timer.start()

    def _close_unused(self) -> None:
        if self._maps == 0:
            self.close()


class _Work:
    """One call of `map`."""

    def __init__(self, engine: ChildCompute, function: bytes) -> None:
        self._engine = engine
        self._function = function
        self._lock = threading.Lock()
        self._asked: dict[int, tuple[Child, int]] = {}
        """Thread -> the request that it waits for."""
        self._stopped = False

    def do(self, item: Item) -> Any:
        """Let a process work on an item. Raises what the port says."""
        data = pickle.dumps((self._function, item.content), protocol=5)
        for left in reversed(range(self._engine.tries)):
            try:
                answer = self._engine.answer(data, self._note)
            except Lost as error:
                if self._stopped:
                    raise Retryable(f"{item.name}: the work was stopped") from None
                if not left:
                    raise Retryable(
                        f"{item.name}: its worker was lost {self._engine.tries} times, at last {error}; {self._engine.remedy}"
                    ) from error
            else:
                return value_of(pickle.loads(answer), item.name)  # noqa: S301 -- from a worker with the same code
            finally:
                with self._lock:
                    self._asked.pop(threading.get_ident(), None)
        raise AssertionError

    def _note(self, child: Child, number: int) -> None:
        with self._lock:
            self._asked[threading.get_ident()] = child, number
            if self._stopped:
                self._engine.cancel(child, number)

    def stop(self) -> None:
        """End the work of this call."""
        with self._lock:
            self._stopped = True
            for child, number in self._asked.values():
                self._engine.cancel(child, number)
