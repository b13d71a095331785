"""The lines that a pod of a cluster serves, as its command line names them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ratchet.contracts.errors import ConfigError

ANY_ADDRESS = "0.0.0.0"  # noqa: S104 -- in a pod, whose network policies decide who may connect
"""Address of all interfaces of a pod."""
_LINE = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)=([1-9][0-9]{0,4})")


def line_ports(given: Iterable[str]) -> dict[str, int]:
    """Return line -> port of texts NAME=PORT. Raises ConfigError for a wrong form, and for a line or port that is given twice."""
    found: dict[str, int] = {}
    for text in given:
        match = _LINE.fullmatch(text)
        if match is None or int(match[3]) > 65535:
            raise ConfigError(f"--line {text!r} is not of the form NAME=PORT, for example support=8080")
        if match[1] in found or int(match[3]) in found.values():
            raise ConfigError(f"--line {text!r}: the line or the port is given twice")
        found[match[1]] = int(match[3])
    return found
