"""Exit codes of a job's process 1. The wrapper derives them from files, never from the trainer's own exit code,
because torchrun exits 1 for everything. 75 and 78 are EX_TEMPFAIL and EX_CONFIG of sysexits.h."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

DONE: Final = 0
FAILURE: Final = 1
PREEMPTED: Final = 75
PERMANENT: Final = 78
STOPPED: Final = 143
"""Of a pod that was told to stop and has no word of its own: 128 + SIGTERM."""


class Outcome(StrEnum):
    """How a job ended."""

    DONE = "done"
    PREEMPTED = "preempted"
    """Asked to stop (SIGTERM) and checkpointed: the next incarnation resumes."""
    LOST = "lost"
    """Its process vanished without a word (kill -9, power): the next incarnation resumes from the last accepted checkpoint."""
    FAILED = "failed"
    PERMANENT = "permanent"
    """It says itself that another try cannot help."""


def outcome_of(code: int) -> Outcome:
    """The outcome that an exit code stands for; death by a signal is `LOST`."""
    if code < 0 or code in (137, STOPPED):
        return Outcome.LOST
    return {DONE: Outcome.DONE, PREEMPTED: Outcome.PREEMPTED, PERMANENT: Outcome.PERMANENT}.get(code, Outcome.FAILED)
