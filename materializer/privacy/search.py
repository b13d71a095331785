"""Searches a text by rules, at first only for clues of what they could find.

A rule is a regular expression, a check of its matches, and a clue: a cheap search for the parts of a text outside of which the expression
cannot match. `search_plainly` applies the expressions to the whole text and is the definition of what is found. `Search` applies them to
the parts with clues. Both find the same.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from ahocorasick_rs import BytesAhoCorasick, Implementation

from ratchet.materializer.privacy.finding import Finding

Part = tuple[int, int]
"""(start, end) of a part of a text. Of an anchored rule, `start` is where a match can begin, and `end` is not used."""
_LETTERS, _DIGITS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", b"0123456789"
_SHAPE = bytes(0x61 if sign in _LETTERS else 0x30 if sign in _DIGITS else sign for sign in range(256))
"""Maps letters to `a` and digits to `0`."""
_KEYS = bytes(0x77 if sign in _LETTERS + _DIGITS + b"_+/=.:~-" else 0x20 for sign in range(256))
"""Maps the characters of keys, tokens and URLs to `w`, and others to a space."""
_KEY = 15
"""Length of the shortest token that a rule finds."""
_SPREAD = bytes(0x30 if sign in _DIGITS else 0x20 if sign in b"\t ().-/\xa0\xb7?" else 0x78 for sign in range(256))
"""Maps digits to `0`, separators of digits to a space and others to `x`. `?` stands for the characters outside of Latin-1, among them
dashes."""
_NUMBER = re.compile(rb"0(?: {0,3}0){5,}")
"""Six or more digits with few separators, in this form."""
_LEAST_DIGITS, _GAP = 6, 4
"""`_NUMBER` has at least so many digits, and two neighbouring digits have at most this distance."""
_LONGEST_SHAPE = 24
"""Longest shape around a run of digits, in characters."""
_BEFORE, _BEHIND = 3, 7
"""Characters around a run of digits that a rule may look at."""
_BORDER = "\n\0\n"
"""Stands between texts that are searched as one. A line break ends values and the words before a number; no rule goes on behind NUL."""
_FOLDED = (("\u017f", "s"), ("\u212a", "k"), ("\u0130", "i"), ("\u0131", "i"))
"""The characters outside of ASCII that equal an ASCII letter where a regular expression ignores case."""


class _Literals:
    """A set of texts in lower case. One pass over a text finds all places where they stand."""

    def __init__(self) -> None:
        self._numbers = dict[bytes, int]()
        self._made: tuple[int, BytesAhoCorasick] | None = None
        self._lock = threading.Lock()

    def number(self, literal: bytes) -> int:
        """Return the number of a literal, which is added if it is new."""
        with self._lock:
            return self._numbers.setdefault(literal, len(self._numbers))

    def places(self, low: bytes) -> dict[int, list[int]]:
        """Return the places of the literals in a text, by their number."""
        found = dict[int, list[int]]()
        for number, start, _ in self._searcher().find_matches_as_indexes(low, overlapping=True):
            found.setdefault(number, []).append(start)
        return found

    def _searcher(self) -> BytesAhoCorasick:
        with self._lock:
            if self._made is None or self._made[0] < len(self._numbers):
                self._made = len(self._numbers), BytesAhoCorasick(list(self._numbers), implementation=Implementation.DFA)
            return self._made[1]


_LITERALS = _Literals()


class Scan:
    """A text in the forms in which clues are searched. All forms have the same length, so a position is the same in each form."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.plain = text.encode("latin-1", "replace")
        """One byte per character. `?` replaces those outside of Latin-1."""
        self._near: tuple[bytes, list[int], list[int]] | None = None

    @cached_property
    def low(self) -> bytes:
        """The text in lower case, in the same form."""
        return _lower(self.text, self.plain)

    @cached_property
    def _is_digit(self) -> npt.NDArray[np.bool_]:
        return np.frombuffer(self.plain, dtype=np.uint8) - np.uint8(0x30) < np.uint8(10)

    @cached_property
    def digits(self) -> npt.NDArray[np.intp]:
        """The places of all digits."""
        return np.flatnonzero(self._is_digit)

    @cached_property
    def _runs(self) -> npt.NDArray[np.intp]:
        """The places of the digits that stand behind another character, or at the beginning."""
        digits = self.digits
        return digits[np.diff(digits, prepend=-2) > 1]

    def shaped(self, shape: bytes) -> list[int]:
        """Return where a shape stands: `a` is a letter, `0` a digit. It has a digit behind a letter."""
        if not len(self.digits):
            return []
        behind = shape.index(b"a0") + 1
        at = self._runs - behind
        at = at[(at >= 0) & (at <= len(self.plain) - len(shape))]
        for place in range(behind + 1, len(shape)):
            if not at.size:
                return []
            at = at[self._is_digit[at + place] == (shape[place] == 0x30)]
        return [one for one in at.tolist() if self.plain[one : one + len(shape)].translate(_SHAPE) == shape]

    def has_between_digits(self, sign: bytes) -> bool:
        """Return whether a character stands between two digits."""
        digits = self.digits
        if not len(digits):
            return False
        between = digits[:-1][np.diff(digits) == 2] + 1
        return bool((np.frombuffer(self.plain, dtype=np.uint8)[between] == ord(sign)).any())

    @cached_property
    def numbers(self) -> list[tuple[int, int, int]]:
        """(start, end, digits) of each run of at least six digits with few separators."""
        return _numbers(self.plain, self.digits)

    @cached_property
    def keys(self) -> list[Part]:
        """Each run of characters that is long enough for a token, with the character behind it."""
        return _keys(self.plain)

    @cached_property
    def _places(self) -> dict[int, list[int]]:
        return _LITERALS.places(self.low)

    def places(self, number: int) -> Sequence[int]:
        """Return where the literal with this number stands in the text in lower case."""
        return self._places.get(number, ())

    def near_numbers(self, needle: bytes) -> list[int]:
        """Return where a shape with a run of six digits stands. It is searched around such runs only."""
        if not self.numbers:
            return []
        if self._near is None:
            parts = merged(((start - _LONGEST_SHAPE, end + _LONGEST_SHAPE) for start, end, _ in self.numbers), len(self.plain))
            starts = list(accumulate((end - start + 1 for start, end in parts), initial=0))
            self._near = b"\0".join([self.plain[start:end] for start, end in parts]).translate(_SHAPE), starts, [one for one, _ in parts]
        text, starts, places = self._near
        found, at = list[int](), text.find(needle)
        while at >= 0:
            part = bisect_right(starts, at) - 1
            found.append(places[part] + at - starts[part])
            at = text.find(needle, at + 1)
        return found


def _lower(text: str, plain: bytes) -> bytes:
    if not text.isascii() and any(one in text for one, _ in _FOLDED):
        for one, other in _FOLDED:
            text = text.replace(one, other)
        plain = text.encode("latin-1", "replace")
    return text.lower().encode() if text.isascii() else plain.lower()  # the first is three times as fast


def _numbers(plain: bytes, digits: npt.NDArray[np.intp]) -> list[tuple[int, int, int]]:
    if len(digits) < _LEAST_DIGITS:
        return []
    # A run has at most three characters between two digits. Only where enough digits stand so close, the expression is tried.
    cuts = np.flatnonzero(np.diff(digits) > _GAP)
    first, last = np.concatenate(([0], cuts + 1)), np.append(cuts, len(digits) - 1)
    enough = last - first >= _LEAST_DIGITS - 1
    found = list[tuple[int, int, int]]()
    for begin, end in zip(digits[first[enough]].tolist(), digits[last[enough]].tolist(), strict=True):
        part = plain[begin : end + 1].translate(_SPREAD)
        for match in _NUMBER.finditer(part):
            start, behind = match.span()
            found.append((begin + start, begin + behind, part.count(b"0", start, behind)))
    return found


def _keys(plain: bytes) -> list[Part]:
    found, at = list[Part](), 0
    if len(plain) < _KEY:
        return found
    runs = plain.translate(_KEYS)
    while (at := runs.find(b"w" * _KEY, at)) >= 0:
        end = runs.find(b" ", at)
        end = len(runs) if end < 0 else end
        found.append((at, end + 1))
        at = end
    return found


class Group(NamedTuple):
    """Texts that are searched as one text. Borders separate them."""

    scan: Scan
    texts: Sequence[str]
    starts: Sequence[int]

    def at(self, place: int) -> tuple[str, int]:
        """Return the text at a place of the whole, and where it begins there."""
        number = bisect_right(self.starts, place) - 1
        return self.texts[number], self.starts[number]


class Joined:
    """Texts that are searched as one, each once: those of ASCII together, and the others. Several searches share the forms of the whole.

    `given` are the texts in their order, of which some may be equal, and `texts` each of them once.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.given = list(texts)
        self.texts = list(dict.fromkeys(self.given))
        plain = [text for text in self.texts if text.isascii()]
        others = [text for text in self.texts if not text.isascii()] if len(plain) < len(self.texts) else []
        self.groups = [self._group(texts) for texts in (plain, others) if texts]

    @staticmethod
    def _group(texts: Sequence[str]) -> Group:
        starts = list(accumulate([len(text) + len(_BORDER) for text in texts], initial=0))
        return Group(Scan(_BORDER.join(texts)), texts, starts)

    def having(self, find: Callable[[Scan], Iterable[int]]) -> set[str]:
        """Return the texts in which `find`, which finds nothing in a border, finds a place."""
        return {group.at(place)[0] for group in self.groups for place in find(group.scan)}


Clue = Callable[[Scan], Sequence[Part]]
"""Returns the parts of a text in which a rule may match. They do not overlap."""
Check = Callable[[re.Match[str]], Iterable[Finding]]
"""Returns the findings that a match contains."""


class Rule(NamedTuple):
    """A rule that finds personal data."""

    pattern: re.Pattern[str]
    check: Check
    clue: Clue
    anchored: bool = False
    """Whether the clue tells where a match begins, and not a part that contains it."""

    def matches(self, text: str, parts: Iterable[Part]) -> Iterator[re.Match[str]]:
        """Yield the matches in the parts with clues, in the order of the text and without overlaps."""
        if not self.anchored:
            for start, end in parts:
                yield from self.pattern.finditer(text, start, end)
            return
        behind = 0
        for start, _ in parts:
            if start >= behind and (match := self.pattern.match(text, start)):
                behind = match.end()
                yield match


class Search:
    """Finds what the rules define, in the order of the rules."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        groups = dict[Clue, list[tuple[int, Rule]]]()
        for order, rule in enumerate(rules):
            groups.setdefault(rule.clue, []).append((order, rule))
        self._groups = list(groups.items())
        self._shared = [group for group in self._groups if group[0] is not everywhere]
        self._own = [group for group in self._groups if group[0] is everywhere]

    def __call__(self, text: str) -> list[Finding]:
        """Return the findings. They may overlap."""
        return self._search(Scan(text), self._groups)

    def each(self, texts: Sequence[str] | Joined) -> dict[str, list[Finding]]:
        """Return the findings of those of the texts that have any.

        The texts are searched as one, because a search has a cost that does not depend on the length. No rule but those about which nothing
        is known matches across the border between two texts, or looks across it.
        """
        found, joined = dict[str, list[Finding]](), texts if isinstance(texts, Joined) else Joined(texts)
        for group in joined.groups:
            for one in self._search(group.scan, self._shared):
                text, start = group.at(one.start)
                # A private key without its end takes what follows, up to NUL.
                found.setdefault(text, []).append(one._replace(start=one.start - start, end=min(one.end - start, len(text))))
        if self._own:
            for text in joined.texts:
                if more := self._search(Scan(text), self._own):
                    found.setdefault(text, []).extend(more)
        return found

    @staticmethod
    def _search(scan: Scan, groups: Iterable[tuple[Clue, list[tuple[int, Rule]]]]) -> list[Finding]:
        text, found = scan.text, list[tuple[int, Finding]]()
        for clue, rules in groups:
            if parts := clue(scan):
                for order, rule in rules:
                    for match in rule.matches(text, parts):
                        found += [(order, one) for one in rule.check(match)]
        return [one for _, one in sorted(found, key=itemgetter(0))] if found else []


def search_plainly(rules: Iterable[Rule], text: str) -> list[Finding]:
    """Return the findings of all rules in the whole text. This defines what `Search` finds."""
    return [one for rule in rules for match in rule.pattern.finditer(text) for one in rule.check(match)]


def merged(parts: Iterable[Part], length: int) -> list[Part]:
    """Return parts of a text of this length in its order, and as one where they overlap or touch."""
    result: list[Part] = []
    for start, end in sorted((max(0, start), min(length, end)) for start, end in parts):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def everywhere(scan: Scan) -> Sequence[Part]:
    """The clue of a rule about which nothing is known."""
    return ((0, len(scan.text)),)


def keys(scan: Scan) -> Sequence[Part]:
    """The clue of tokens: long runs of their characters."""
    return scan.keys


@lru_cache(maxsize=32)
def numbers(least: int) -> Clue:
    """Return the clue of numbers with `least` digits or more in a run, and few other characters before and behind it."""

    def clue(scan: Scan) -> Sequence[Part]:
        if not scan.numbers:
            return ()
        parts, last, length = list[Part](), -1, len(scan.text)
        for start, end, digits in scan.numbers:
            if digits >= least:
                begin, behind = max(0, start - _BEFORE), min(length, end + _BEHIND)
                if begin <= last:
                    parts[-1] = parts[-1][0], behind
                else:
                    parts.append((begin, behind))
                last = behind
        return parts

    return clue


def places(*literals: str) -> Callable[[Scan], list[int]]:
    """Return the function that finds where texts in lower case stand, in the order of the text, and in any case if they are ASCII."""
    plain = [_LITERALS.number(literal.encode()) for literal in literals if literal.isascii()]
    other = [literal for literal in literals if not literal.isascii()]

    def find(scan: Scan) -> list[int]:
        found = list[int]()
        for number in plain:
            found += scan.places(number)
        if other and not scan.text.isascii():
            for literal in other:
                at = scan.text.find(literal)
                while at >= 0:
                    found.append(at)
                    at = scan.text.find(literal, at + 1)
        return sorted(set(found)) if len(found) > 1 else found

    return find


def starting_with(*literals: str) -> Clue:
    """Return the clue of an anchored rule whose matches begin with one of the literals, which are in lower case."""
    find = places(*literals)
    return lambda scan: [(at, at) for at in find(scan)]


def shaped(*shapes: str) -> Clue:
    """Return the clue of an anchored rule whose matches begin with one of the shapes: `a` is a letter, `0` a digit, others stay."""
    needles = [one.encode("latin-1") for one in shapes]
    have_numbers = all(_NUMBER.search(needle.translate(_SPREAD)) for needle in needles)

    assert max(map(len, needles)) <= _LONGEST_SHAPE

    def clue(scan: Scan) -> Sequence[Part]:
        if have_numbers:
            found = [at for needle in needles for at in scan.near_numbers(needle)] if scan.numbers else []
        else:
            found = [at for needle in needles for at in scan.shaped(needle)]
        return [(at, at) for at in sorted(set(found))] if found else ()

    return clue
