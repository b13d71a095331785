"""One tree of errors, named by who must act. A message says what happened, where, and what to do next.

RatchetError
├── Retryable      the same call may succeed later (server down, lease held, disk full)
│   ├── Conflict   somebody else wrote first: read again, then decide again
│   └── Fenced     our lease is older than the ledger's: stop writing at once
├── Permanent      the same call can never succeed: a person or a new spec is needed
│   └── ConfigError  a loop file or the environment is wrong
├── Rejected       one piece of input is bad; it becomes data (a quarantined record), never a crash
└── Inconclusive   the evidence is missing, stale or contradictory; inconclusive holds
"""

from __future__ import annotations


class RatchetError(Exception):
    """Base of every error that Ratchet raises on purpose."""


class Retryable(RatchetError):
    """The same call may succeed later."""


class Conflict(Retryable):
    """A compare-and-set lost: another writer was first."""


class Fenced(Retryable):
    """The writer's lease epoch is no longer the current one."""


class Permanent(RatchetError):
    """The same call can never succeed."""


class ConfigError(Permanent):
    """A loop file, an option or the environment is wrong; the message names file, key and remedy."""


class Rejected(RatchetError):
    """One input record is bad. `reason` is the short word that is counted."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class Inconclusive(RatchetError):
    """Evidence is missing, stale or contradictory."""
