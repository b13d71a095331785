"""Finds public IP addresses. Private, loopback and documentation addresses identify nobody."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence

from ratchet.materializer.privacy.finding import Finding, words_before
from ratchet.materializer.privacy.search import Part, Rule, Scan, merged

_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)", re.ASCII)
_IPV6 = re.compile(r"(?<![\w:.])(?=[0-9a-f]{0,4}:[0-9a-f:]*:)[0-9a-f:]{3,39}(?![\w:])", re.IGNORECASE | re.ASCII)
_LONGEST = 39
"""Characters of the longest address."""
_INNER = re.compile(rb"\.[0-9]{1,3}\.[0-9]{1,3}\.")
"""The inner numbers of an IPv4 address. Up to three digits stand on both sides."""
_COLONS = re.compile(rb":[0-9a-f]{0,4}:")
_HEX = re.compile(rb"[0-9a-f:]*")
_VERSION_WORDS = re.compile(r"\b(?:v|ver|version|release|build|update|upgrade|driver|firmware)\b[^,;]*$")
_ADDRESS_WORDS = re.compile(
    r"\bips?\b|\bip[ _-]?addr|\bdns\b|\bping\b|nameserver|resolver|\bnslookup\b|\bdig\b|traceroute|tracert|\bwhois\b|\bcurl\b|\bssh\b|"
    r"\bserver\b|\bhost\b|\bgateway\b|\bfirewall\b|\blogin\b|\bsrc\b|\bdst\b|://$"
)
_RESOLVERS = frozenset({"8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9"})
"""Well-known addresses with numbers of one digit. Others are taken for versions."""


def _dotted(scan: Scan) -> Sequence[Part]:
    if not scan.has_between_digits(b"."):
        return ()
    return merged(((match.start() - 3, match.end() + 5) for match in _INNER.finditer(scan.plain)), len(scan.text))


def _colons(scan: Scan) -> Sequence[Part]:
    if b":" not in scan.plain:
        return ()
    parts = list[Part]()
    for match in _COLONS.finditer(scan.low):
        rest = _HEX.match(scan.low, match.start(), match.start() + _LONGEST + 1)
        start = max(0, match.start() - _LONGEST)
        end = rest.end() if rest else start
        # All eight groups, or two colons in the place of some. A time of the day has neither.
        if end - match.start() <= _LONGEST and (scan.low.find(b"::", start, end) >= 0 or scan.low.count(b":", start, end) >= 7):
            parts.append((start, end + 1))
    return merged(parts, len(scan.text)) if parts else ()


def _address(match: re.Match[str]) -> Iterator[Finding]:
    try:
        address = ipaddress.ip_address(match.group())
    except ValueError:
        return
    if address.is_global and not _is_version(match):
        yield Finding(*match.span(), "ip", address.compressed)


def _is_version(match: re.Match[str]) -> bool:
    """Return whether four numbers are rather a version: a word before them says so, or each has one digit and nothing says otherwise."""
    before = words_before(match.string, match.start())
    if _VERSION_WORDS.search(before):
        return True
    return len(match.group()) == 7 and ":" not in match.group() and match.group() not in _RESOLVERS and not _ADDRESS_WORDS.search(before)


IPS = (Rule(_IPV4, _address, _dotted), Rule(_IPV6, _address, _colons))
"""The rules of IP addresses."""
