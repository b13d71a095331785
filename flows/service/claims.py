"""The claim of an installation on the lines that it serves, in a ledger that several installations may share.

Two services with separate homes and one ledger would route the users of a line twice and look for artifacts that the other one has. A
ledger in the home folder cannot be shared by mistake, so nothing is claimed there.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from datetime import datetime

from ratchet.contracts.cycle import Lease
from ratchet.contracts.errors import ConfigError, Fenced, RatchetError, Retryable
from ratchet.contracts.ports import Ledger

CLAIM_SECONDS = 180.0
"""Seconds for which a claim lasts without renewal."""
RENEW_SECONDS = 60.0
"""Seconds between two renewals."""


class Claims:
    """The claims of one installation, whose id is `installation`. A new process of the installation takes them over at once.

    If it has several pods, the one that leads takes them over at once; otherwise only a process of the same host does.
    """

    def __init__(self, ledger: Ledger, installation: str, lines: Sequence[str], several_pods: bool = False) -> None:
        self._ledger = ledger
        self._holder = f"{installation}@{'' if several_pods else socket.gethostname()}"
        self._lines = lines
        self._leases: list[Lease] = []

    def take(self, now: datetime) -> None:
        """Claim all lines. If one of them cannot be claimed, none is.

        Raises ConfigError if another installation serves one of them, and Retryable if another host of this installation did a short time
        ago.
        """
        try:
            for line in self._lines:
                lease = self._ledger.acquire(_name(line), self._holder, CLAIM_SECONDS, now)
                if lease is None:
                    raise self._other(line)
                self._leases.append(lease)
        except RatchetError:
            self.release()
            raise

    def terms(self) -> dict[str, int]:
        """Return line -> the number of its claim. Each later claim on the line has a higher one."""
        return {lease.name.removeprefix("service/"): lease.epoch for lease in self._leases}

    def renew(self, now: datetime) -> None:
        """Renew all claims. Raises ConfigError if another installation has taken one, and Retryable if the ledger is not available."""
        for number, lease in enumerate(self._leases):
            try:
                self._leases[number] = self._ledger.renew(lease, CLAIM_SECONDS, now)
            except Fenced:
                raise ConfigError(self._refusal(lease.name.removeprefix("service/"))) from None

    def release(self) -> None:
        """Give the claims back, so that another installation can serve the lines at once."""
        for lease in self._leases:
            with contextlib.suppress(Exception):
                self._ledger.release(lease)
        self._leases = []

    def _other(self, line: str) -> RatchetError:
        other = self._ledger.holder(_name(line))
        if other is not None and other.holder.partition("@")[0] == self._holder.partition("@")[0]:
            return Retryable(
                f"line {line!r} is served by another process of this installation ({other.holder}), or was until a short time ago; its "
                f"claim ends at {other.expires:%H:%M:%S} UTC"
            )
        return ConfigError(self._refusal(line))

    def _refusal(self, line: str) -> str:
        other = self._ledger.holder(_name(line))
        whose = f"{other.holder} until {other.expires:%H:%M:%S} UTC" if other else "another installation"
        return (
            f"line {line!r} is served by another installation that uses the same ledger ({whose}); stop that service first, "
            "or set RATCHET_LEDGER_URL to a ledger of your own"
        )


def _name(line: str) -> str:
    return f"service/{line}"
