"""Takes a test cluster down when the process that started it has ended, so that a killed test run leaves nothing behind."""

from __future__ import annotations

import os
import select

from tests.cluster.rig.cluster import Rig
from tests.cluster.rig.processes import born


def watch(rig: Rig, runner: int, start: int) -> None:
    """Wait for the end of the process `runner` that started at `start`, then take the test cluster down."""
    try:
        held = os.pidfd_open(runner)
    except ProcessLookupError:
        held = None
    if held is not None and born(runner) == start:
        select.select([held], [], [])
    rig.down()
