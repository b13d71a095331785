"""The terms in which this process leads lines, and how long it leads.

What a leader publishes carries its term, so that nothing of an earlier leader replaces it. A process leads at most once, and it writes in
many places. Therefore the terms belong to the process.
"""

from __future__ import annotations

import time

from ratchet.contracts.errors import Fenced

_TERMS: dict[str, int] = {}
_until: float | None = None


def lead(line: str, term: int) -> None:
    """Note that this process leads a line in a term. Later terms have higher numbers."""
    _TERMS[line] = term


def term_of(line: str) -> int | None:
    """Return the term in which this process leads a line. None: it does not lead it, as a command of an operator."""
    return _TERMS.get(line)


def lead_until(monotonic: float) -> None:
    """Note the monotonic time until which this process leads. A process that notes none leads nothing, or is never replaced."""
    global _until
    _until = monotonic


def check_leads() -> None:
    """Raise Fenced if the leadership of this process has ended. It is asked before a change outside of the process.

    A process that was suspended may go on before it is ended.
    """
    if _until is not None and time.monotonic() >= _until:
        raise Fenced("this process does not lead any more; another pod may work in its place")
