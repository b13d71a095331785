"""Recognises a turn of a user that asks the same as the turn before: the same words, with few words added or left out, or typing errors.

"Translate cat into French" after "Translate dog into French" is another question, because a word stands in the place of another one. So is
a question with another number. A question in completely other words is not recognised.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache

LEAST_WORDS = 4
"""Words of the shorter text. Shorter turns ("yes", "go on") are often repeated without asking again."""
_MOST_CHANGED = 0.34
"""Most words that are added or left out, as a share of the words that both texts have."""
_ADDRESSING = 3
"""Words that may always be added or left out, for example "no, I said"."""
_MOST_ERRORS = 3
"""Most words with typing errors."""
_LEAST_LETTERS = 6
"""Letters of the shorter of two words, one of which may have a typing error. Many shorter words differ in one letter from another word."""
_LONGEST = 2000
"""Characters of the longest text that is compared. Long texts are documents with a question, whose words say little."""
_UNSPACED = "\u2e80-\u303f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0e7f"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")
"""A word, or one character of a script that does not separate words."""


def asks_again(before: str, after: str) -> bool:
    """Return whether the turn `after` asks the same as the turn `before` of the same user."""
    if max(len(before), len(after)) > _LONGEST:
        return False
    first, second = _folded(before), _folded(after)
    if _lacks(second, first) and _lacks(first, second):
        return False  # most turns ask something else, and the rest takes longer
    one, other = Counter(_WORD.findall(first)), Counter(_WORD.findall(second))
    if min(one.total(), other.total()) < LEAST_WORDS:
        return False
    common = one & other
    left, added = one - common, other - common
    if min(left.total(), added.total()) > _MOST_ERRORS or _has_digit(left) or _has_digit(added):
        return False
    left, added, corrected = _without_typing_errors(left, added)
    if left and added:
        return False
    changed = left.total() + added.total()
    return changed <= max(_MOST_CHANGED * (common.total() + corrected), min(_ADDRESSING, common.total() - 1))


@lru_cache(maxsize=256)  # each turn is compared with the one before and with the one after
def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _lacks(text: str, other: str) -> bool:
    """Return whether more than _MOST_ERRORS distinct words of `other` are nowhere in `text`, not even as a part of a word."""
    missing = set()
    for found in _WORD.finditer(other):
        if found[0] not in text:
            missing.add(found[0])
            if len(missing) > _MOST_ERRORS:
                return True
    return False


def _has_digit(words: Counter[str]) -> bool:
    return any(char.isdigit() for word in words for char in word)


def _without_typing_errors(left: Counter[str], added: Counter[str]) -> tuple[Counter[str], Counter[str], int]:
    """Return the words without those that stand for each other except for a typing error, and the number of such pairs."""
    rest, pairs = sorted(added.elements()), 0
    unpaired: list[str] = []
    for word in sorted(left.elements()):
        near = next((one for one in rest if _alike(word, one)), None)
        if near is None:
            unpaired.append(word)
        else:
            rest.remove(near)
            pairs += 1
    return Counter(unpaired), Counter(rest), pairs


def _alike(word: str, other: str) -> bool:
    """Return whether the words differ in one letter that is added, left out or replaced, or in the order of two neighbours."""
    if min(len(word), len(other)) < _LEAST_LETTERS or abs(len(word) - len(other)) > 1:
        return False
    begin = next((at for at, pair in enumerate(zip(word, other, strict=False)) if pair[0] != pair[1]), min(len(word), len(other)))
    one, two = word[begin:], other[begin:]
    swapped = len(one) > 1 and len(two) > 1 and one[:2] == two[1::-1] and one[2:] == two[2:]
    return swapped or one[1:] == two[1:] or one[1:] == two or one == two[1:]
