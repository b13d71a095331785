"""The present moment on this machine, for durations that do not change when its wall clock is set."""

from __future__ import annotations

import time

from ratchet.contracts.moment import Moment
from ratchet.runtime.process_identity import boot_id


def this_moment() -> Moment:
    """Return the present moment. It can be stored, and compared with that of another process by `seconds_between`."""
    boot = boot_id()
    return Moment(time.time(), boot, time.clock_gettime(time.CLOCK_BOOTTIME)) if boot else Moment(time.time())


_BEGAN = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def steady_time() -> float:
    """Return the seconds since the epoch, by the wall clock as it was when this process began.

    For durations within a process whose begin is also compared with times of other machines, or stored. If the wall clock is set while the
    process runs, this time does not follow.
    """
    return _BEGAN + time.clock_gettime(time.CLOCK_BOOTTIME)
