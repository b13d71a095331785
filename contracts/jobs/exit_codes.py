"""Exit codes of a job's main process (PID 1).

The supervisor derives them from files and not from the trainer's exit code, because torchrun exits with 1 on every failure.
73, 75 and 78 are EX_CANTCREAT, EX_TEMPFAIL and EX_CONFIG in sysexits.h.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

DONE: Final = 0
"""The job has published its model."""
FAILURE: Final = 1
"""The attempt failed. Another attempt may succeed."""
PREEMPTED: Final = 75
"""The job stopped after SIGTERM. The next incarnation resumes from the last accepted checkpoint."""
PERMANENT: Final = 78
"""Another attempt cannot succeed."""
STOPPED: Final = 143
"""Exit code of a pod that received SIGTERM and left no result: 128 + 15."""
KILLED: Final = 137
"""Exit code of a process that received SIGKILL: 128 + 9."""
ALREADY_STARTED: Final = 73
"""Exit code of a launcher if another process already holds the attempt."""


class Outcome(StrEnum):
    """Outcome of a job's incarnation."""

    DONE = "done"
    """The job published its model."""
    PREEMPTED = "preempted"
    """The job received SIGTERM and saved a checkpoint. The next incarnation resumes from it."""
    LOST = "lost"
    """The process disappeared without a result (SIGKILL, power loss). The next incarnation resumes from the last accepted checkpoint."""
    FAILED = "failed"
    """The job failed. Another attempt may succeed."""
    PERMANENT = "permanent"
    """The job reported that another attempt cannot succeed."""


_CODES: Final = {
    Outcome.DONE: DONE,
    Outcome.PREEMPTED: PREEMPTED,
    Outcome.LOST: KILLED,
    Outcome.FAILED: FAILURE,
    Outcome.PERMANENT: PERMANENT,
}


def exit_code_of(outcome: Outcome) -> int:
    """Return the exit code with which the supervisor reports an outcome."""
    return _CODES[outcome]


def outcome_of(code: int) -> Outcome:
    """Map an exit code to an outcome. Termination by a signal maps to `LOST`; unknown codes map to `FAILED`."""
    if code < 0 or code in (KILLED, STOPPED):
        return Outcome.LOST
    return {DONE: Outcome.DONE, PREEMPTED: Outcome.PREEMPTED, PERMANENT: Outcome.PERMANENT}.get(code, Outcome.FAILED)
