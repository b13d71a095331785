"""Takes a rig down when the process that brought it up has ended, in whatever way: a killed test run leaves nothing behind."""

from __future__ import annotations

import os
import select

from tests.cluster.rig.cluster import Rig
from tests.cluster.rig.processes import born


def watch(rig: Rig, runner: int, start: int) -> None:
    """Returns when the process `runner` that started at `start` has ended and the rig is down."""
    try:
        held = os.pidfd_open(runner)
    except ProcessLookupError:
        held = None
    if held is not None and born(runner) == start:
        select.select([held], [], [])
    rig.down()
