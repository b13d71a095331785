"""The job protocol, for trainers: environment variables, file names, and the command of Ratchet's supervisor.

docs/reference/job-protocol.md lists them.
"""

from __future__ import annotations

from ratchet.runtime.jobs.job_protocol import (
    INCARNATION,
    SUPERVISOR,
    TRAINER,
    IncarnationFile,
    RunFile,
    attempt_environment,
    incarnation_folder,
)

__all__ = ["INCARNATION", "SUPERVISOR", "TRAINER", "IncarnationFile", "RunFile", "attempt_environment", "incarnation_folder"]
