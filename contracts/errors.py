"""Exception hierarchy. Each class states the required reaction; each message states what happened, where, and what to do next.

RatchetError
├── Retryable      the same call may succeed later (server down, lease held, disk full)
│   ├── Conflict   another writer was first: read again, then decide again
│   ├── Incomplete a part of the requested data is missing, for example from one replica: decide nothing from the rest, and wait
│   ├── Leased     another process works on the same object: try again when it has finished
│   ├── Unreachable a model server refuses connections: start it again, then repeat the work that needs it
│   ├── Unwritable a file cannot be written until an operator changes permissions or places
│   └── Fenced     the caller's lease is older than the ledger's: stop writing immediately
├── Permanent      the same call can never succeed: an operator must act, or a new spec is needed
│   ├── ConfigError  a loop file or the environment is wrong
│   └── NewerRelease a newer release wrote the data: upgrade, and change nothing until then
├── Rejected       one piece of input is invalid; it is recorded (for example in quarantine) and causes no crash
└── Inconclusive   evidence is missing, stale or contradictory; the cycle does not advance
"""

from __future__ import annotations


class RatchetError(Exception):
    """Base class of all errors that Ratchet raises deliberately."""


class Retryable(RatchetError):
    """The same call may succeed later."""


class Conflict(Retryable):
    """A compare-and-set failed because another writer was first."""


class Incomplete(Retryable):
    """A part of the requested data is missing, for example from one replica of the router. Nothing is decided from the rest."""


class Leased(Retryable):
    """Another living process or thread holds the lease."""


class Unreachable(Retryable):
    """A model server refuses connections, so what was asked of it says nothing about the model."""


class Unwritable(Retryable):
    """A file or folder cannot be read or written: its permissions, a read-only file system, or a file where a folder must be.

    The service tries again, because an operator may mend it while the service runs. A command ends with an error.
    """


class Fenced(Retryable):
    """The lease epoch of the writer is no longer current."""


class Permanent(RatchetError):
    """The same call can never succeed."""


class ConfigError(Permanent):
    """A loop file, an option or the environment is wrong. The message names the file, the key and the remedy."""


class NewerRelease(Permanent):
    """A newer release of Ratchet wrote this row or document. Nothing may be changed or ended because of it; upgrade Ratchet."""


class Rejected(RatchetError):
    """One input record or request is invalid. `reason` is a short identifier that reports count."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class Inconclusive(RatchetError):
    """Evidence is missing, stale or contradictory."""
