"""A finding of personal data in a text, and the choice between findings that overlap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Finding(NamedTuple):
    """A part of a text with personal data or a secret."""

    start: int
    end: int
    """Index of the first character behind the part."""
    kind: str
    """Kind of the data, for example `email`."""
    value: str
    """Normalised value. Two findings with the same kind and value get the same placeholder."""


def disjoint(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings in the order of the text, without overlaps: of several that overlap, the longest is kept.

    Of two that are equally long, the first of `findings` is kept.
    """
    kept: list[Finding] = []
    for one in sorted(findings, key=lambda found: found.start - found.end):
        if all(one.end <= other.start or one.start >= other.end for other in kept):
            kept.append(one)
    return sorted(kept)


def beside(findings: Iterable[Finding], taken: Iterable[tuple[int, int]], text: str) -> list[Finding]:
    """Return the parts of findings in `text` that lie outside of the ranges `taken`, without spaces at their ends."""
    ranges, result = sorted(taken), list[Finding]()
    for one in findings:
        at = one.start
        for low, high in [*((max(low, one.start), high) for low, high in ranges if low < one.end and high > one.start), (one.end, one.end)]:
            part = text[at:low]
            if part.strip():
                start = at + len(part) - len(part.lstrip())
                result.append(one._replace(start=start, end=start + len(part.strip())))
            at = max(at, high)
    return result


def digits(text: str) -> str:
    """Return the ASCII digits of a text."""
    return "".join(sign for sign in text if "0" <= sign <= "9")


_BEFORE = 40
"""Characters before a number in which a word can name its kind."""


def words_before(text: str, start: int) -> str:
    """Return the text shortly before `start`, on the same line, in lower case."""
    return text[max(0, start - _BEFORE) : start].rpartition("\n")[2].casefold()
