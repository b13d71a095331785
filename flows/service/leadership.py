"""The leadership of an installation whose service has several pods: one works, and the others wait to take its place.

The leader holds a lease in the ledger and renews it every few seconds. It ends itself before the lease can pass to another pod, also if
the database cannot be reached or the process was suspended. The time is that of the database, so the clocks of the pods do not matter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from ratchet.contracts.cycle import Lease
from ratchet.contracts.errors import Fenced
from ratchet.contracts.ports import Ledger
from ratchet.runtime.leading import lead_until

LEAD_SECONDS = 30.0
"""Seconds for which a leadership lasts without renewal."""
RENEW_SECONDS = 5.0
"""Seconds between two renewals."""
LEAVE_SECONDS = 5.0
"""Seconds before its leadership ends at which a leader ends itself."""
WAIT_SECONDS = 2.0
"""Seconds between two attempts to lead."""


class Leadership:
    """The leadership of the installation `installation` by the pod `pod`. `now` returns the time of the database.

    `pod` stays the same when the container of a pod is restarted, and its new process leads again at once.
    """

    def __init__(self, ledger: Ledger, installation: str, pod: str, now: Callable[[], datetime]) -> None:
        self._ledger = ledger
        self._name = f"leads/{installation}"
        self._pod = pod
        self._now = now
        self._lease: Lease | None = None
        self._until = 0.0

    def take(self) -> bool:
        """Try to lead. Return whether this pod leads now. Raises Retryable if the database cannot be reached."""
        begun = time.monotonic()
        self._lease = self._ledger.acquire(self._name, self._pod, LEAD_SECONDS, self._now())
        if self._lease is not None:
            self._extend(begun)
        return self._lease is not None

    def leader(self) -> str:
        """Return the pod that leads, or led last; empty if none ever did."""
        lease = self._ledger.holder(self._name)
        return "" if lease is None else lease.holder

    def renew(self) -> None:
        """Renew the leadership. Raises Fenced if another pod leads, and Retryable if the database cannot be reached."""
        if self._lease is not None:
            begun = time.monotonic()
            self._lease = self._ledger.renew(self._lease, LEAD_SECONDS, self._now())
            self._extend(begun)

    def _extend(self, begun: float) -> None:
        """Note the end of the leadership. It is counted from before the request, because the answer may have been late."""
        self._until = begun + LEAD_SECONDS - LEAVE_SECONDS
        lead_until(self._until)

    def left(self) -> float:
        """Return the seconds for which this process may still work as the leader."""
        return self._until - time.monotonic()

    def release(self) -> None:
        """End the leadership, so that another pod leads at once. Nothing of this process may change anything any more."""
        self._until = float("-inf")
        lead_until(self._until)
        if self._lease is not None:
            self._ledger.release(self._lease)


@contextmanager
def leading(leadership: Leadership, end: Callable[[str], None]) -> Iterator[None]:
    """Renew a leadership for the duration of the block. `end` must end the process; it is called with the reason if the leadership ends."""
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(RENEW_SECONDS):
            try:
                leadership.renew()
            except Fenced as error:
                end(str(error))
            except Exception:  # noqa: S112 -- the other thread ends the process if this lasts
                continue

    def watch() -> None:
        while not stop.wait(0.5):
            if leadership.left() <= 0:
                end("its leadership was not renewed in time")

    threads = [threading.Thread(target=target, name=f"leadership-{target.__name__}", daemon=True) for target in (renew, watch)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
