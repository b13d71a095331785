"""Finds near-duplicate texts: similarity signatures, locality-sensitive hashing in bands, and a check of the pairs that are found.

Two texts are near-duplicates if the Jaccard similarity of their sets of character 5-grams, after normalisation, is at least 0.8
(`benchmarks/near_duplicates.py` compares other shingles and thresholds). Where most of every text is a template, its shingles are left
out (`may_share_a_template`). The recipe has a version. Signatures are stored, so a change of
what they mean needs a new version; a test compares them with recorded values.

The search of one text looks at a limited number of others, so its cost does not grow with their number, even if all were made from one
template.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from statistics import median
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import orjson

from ratchet.contracts.ids import INSTRUCTIONS, SkippedTexts, content_text, normalise, question_in, without_opening

RECIPE = 2
"""Version of shingles, hashes, signatures, bands and threshold."""
_WITH_TEMPLATE = 1000
"""Added to the version for each growth of the template whose shingles are left out."""
THRESHOLD = 0.8
"""Least Jaccard similarity of near-duplicates."""
_LEAST_TEXTS, _TEMPLATE_SHARE = 10, 0.8
"""Similar texts that show a template, and the share of them that has each of its shingles."""
_LEAST_OWN = 20
"""Shingles that a text must have beside the template: about four words without numbers."""
_NUMBER = re.compile(r"[!-~]*\d[!-~]*")
"""A word with a digit. It has ASCII characters only, because some scripts have no spaces between words."""
_LOOKED_AT = 50_000
"""Characters of a text in which a template is sought."""
SHINGLE = 5
"""Characters of a shingle."""
BANDS, _ROWS = 25, 5
"""A pair with similarity 0.8 shares a band with probability 0.99995, one with 0.5 with probability 0.55; found pairs are checked."""
PERMUTATIONS = BANDS * _ROWS
"""Numbers of a signature."""
_MARGIN = 0.22
"""A pair is not checked if the similarity of its signatures is lower than the threshold by more than this: six standard errors."""
_KEPT = 32
"""Texts that a bucket keeps, which are those with one value of a band. Texts of a template share buckets by the thousand."""
_COMPARED = 256
"""Texts whose signatures are compared with that of a text: those with which it shares the most bands."""
_CHECKED = 16
"""Pairs that are checked per text and group, the most similar ones by their signatures first."""
_MISSES = 32
"""Checked pairs of a text that are no near-duplicates, after which the search ends."""
_BLOCK = 512
"""Pairs of signatures that are compared at once. They stay in the cache of a core."""
_MANY = 20
"""Prompts with an instruction, from which it is that of an application and no document. In a small set, it is a fifth of the prompts."""
_CACHED = 4000
"""Characters up to which the shingles of a text are remembered, since the texts that a bucket keeps are checked often."""

Shingles = npt.NDArray[np.uint32]
"""Distinct hashes of the shingles of a text, sorted."""
Signature = npt.NDArray[np.uint32]


def shingles(text: str) -> Shingles:
    """Return the hashes of the distinct character 5-grams of a normalised text. A shorter text is one shingle."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
    if len(codes) < SHINGLE:
        codes = np.concatenate([codes, np.full(SHINGLE - len(codes), 0x110000, dtype=np.uint64)])
    number = len(codes) - SHINGLE + 1
    grams, shifted = np.zeros(number, dtype=np.uint64), np.empty(number, dtype=np.uint64)
    for at in range(SHINGLE):  # in place, because the arrays of a step take longer to get than to fill
        grams ^= codes[at : number + at]
        grams *= np.uint64(0x9E3779B97F4A7C15)  # wraps around
        grams ^= np.right_shift(grams, np.uint64(29), out=shifted)
    found = (grams >> np.uint64(32)).astype(np.uint32)
    found.sort()
    distinct: Shingles = found[np.concatenate([[True], found[1:] != found[:-1]])]
    return distinct


def jaccard(one: Shingles, other: Shingles) -> float:
    """Return the Jaccard similarity of two sets of shingles, in [0, 1]."""
    places = np.minimum(one.searchsorted(other), len(one) - 1)
    common = int(np.count_nonzero(one[places] == other))
    return common / (len(one) + len(other) - common)


@dataclass(frozen=True)
class Shingler:
    """Makes the shingles of texts without those of a template."""

    template: bytes = b""
    """The shingles of the template as they are in memory, sorted; empty without a template."""
    version: int = 0
    """Number of times that the template has grown."""

    @property
    def recipe(self) -> int:
        """Version of the signatures that are made of these shingles."""
        return RECIPE + _WITH_TEMPLATE * self.version

    def __call__(self, text: str) -> Shingles:
        """Return the shingles of a normalised text. A text that has only shingles of the template has all of these."""
        every = shingles(text)
        if not self.template:
            return every
        known = np.frombuffer(self.template, dtype=np.uint32)
        own: Shingles = every[known[np.minimum(known.searchsorted(every), len(known) - 1)] != every]
        return own if len(own) else every


WHOLE = Shingler()
"""Makes the shingles of whole texts."""


def may_share_a_template(texts: Sequence[str], threshold: float = THRESHOLD, before: Shingler = WHOLE) -> list[list[int]]:
    """Return groups of similar texts, by their numbers, that differ in more than a few words and numbers.

    Such texts share a template beside those of `before`, or they are variants of one text, which their right answers can tell. `texts` are
    normalised. The cost grows with the square of their number, so pass a sample. Only the first _LOOKED_AT characters of a text count.
    """
    begins = [text[:_LOOKED_AT] for text in texts]
    signed = np.array([signature(before(text)) for text in begins], dtype=np.uint32).reshape(-1, PERMUTATIONS)
    near = np.array([(signed == one).mean(axis=1) >= threshold for one in signed]).reshape(len(begins), len(begins))
    joined = Joined((str(one), str(other)) for one, other in np.argwhere(np.triu(near, 1)).tolist())
    groups: dict[str, list[int]] = defaultdict(list)
    for at in range(len(begins)):
        groups[joined.root(str(at))].append(at)
    return [members for members in groups.values() if len(members) >= _LEAST_TEXTS and _differ([begins[at] for at in members])]


def _differ(texts: Sequence[str]) -> bool:
    """Return whether most of the texts consist of common shingles for the larger part, and of enough of their own.

    Those of words with digits are left out. Texts of a chain may have little in common.
    """
    sets = [shingles(_NUMBER.sub("0", text)) for text in texts]
    common = _common(sets)
    own = median(int(np.isin(one, common, invert=True).sum()) for one in sets)
    return own >= _LEAST_OWN and len(common) > median(map(len, sets)) / 2


def with_templates(groups: Sequence[Sequence[str]], before: Shingler = WHOLE) -> Shingler | None:
    """Return what makes the shingles of texts without those that most texts of a group have, and without those of `before`.

    `groups` are normalised texts. None: nothing is to be left out that `before` does not leave out.
    """
    found = [_common([shingles(text[:_LOOKED_AT]) for text in texts]) for texts in groups]
    every = np.unique(np.concatenate([np.frombuffer(before.template, dtype=np.uint32), *found])).tobytes()
    return None if every == before.template else Shingler(every, before.version + 1)


def _common(sets: Sequence[Shingles]) -> Shingles:
    """Return the shingles of most of the sets, sorted."""
    found, counts = np.unique(np.concatenate(sets), return_counts=True)
    most: Shingles = found[counts >= _TEMPLATE_SHARE * len(sets)]
    return most


@lru_cache(maxsize=2048)
def _remembered(make: Shingler, text: str) -> Shingles:
    return make(text)


def signature(found: Shingles) -> Signature:
    """Return the signature of a set of shingles: the share of equal numbers of two signatures estimates the Jaccard similarity of the sets.

    Each number is the least shingle in a range of hashes. A range without any gets the least of all shingles by a hash of its own. So a
    large set is hashed once and not PERMUTATIONS times, and the numbers vary less than those of independent permutations. Source:
    Dahlgaard, Knudsen, Thorup: Fast similarity sketching, FOCS 2017, with one round.
    """
    begins, ends = _ranges()
    places = found.searchsorted(begins)
    result = found[np.minimum(places, len(found) - 1)]
    empty = np.flatnonzero((places == len(found)) | (result > ends))
    if len(empty):
        factors, terms = _permutations()
        result[empty] = (factors[empty] * _mixed(found) + terms[empty]).min(axis=1)
    return result


def _mixed(found: Shingles) -> Shingles:
    mixed = found ^ (found >> np.uint32(16))  # the finaliser of MurmurHash3; all products wrap around
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed


@cache
def _ranges() -> tuple[Signature, Signature]:
    """Return the first and the last hash of each of PERMUTATIONS ranges, which together are all hashes."""
    edges = [(number << 32) // PERMUTATIONS for number in range(PERMUTATIONS + 1)]
    return np.array(edges[:-1], dtype=np.uint32), np.array([edge - 1 for edge in edges[1:]], dtype=np.uint32)


@cache
def _permutations() -> tuple[Signature, Signature]:
    """Return the factors and terms of h -> factor * h + term modulo 2^32, as columns. NumPy guarantees the numbers of this generator."""
    draw = np.random.RandomState(1)
    factors = draw.randint(0, 1 << 31, PERMUTATIONS, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return factors[:, None], draw.randint(0, 1 << 32, PERMUTATIONS, dtype=np.uint32)[:, None]


def buckets(signed: Signature) -> list[int]:
    """Return a 64-bit hash of each band of a signature."""
    hashes: list[int] = _bucket(signed.reshape(BANDS, _ROWS), np.arange(BANDS, dtype=np.uint64)).tolist()
    return hashes


class Signatures(Protocol):
    """Rows of signatures (texts x PERMUTATIONS) that need not be in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: npt.NDArray[np.intp], /) -> npt.NDArray[np.uint32]:
        """Return the rows with these numbers."""
        ...

    def band(self, number: int) -> npt.NDArray[np.uint64]:
        """Return `bucket_hashes` of a band of all rows."""
        ...


class InMemorySignatures:
    """Rows of signatures in memory."""

    def __init__(self, rows: npt.NDArray[np.uint32]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, numbers: npt.NDArray[np.intp], /) -> npt.NDArray[np.uint32]:
        return self._rows[numbers]

    def band(self, number: int) -> npt.NDArray[np.uint64]:
        """Return `bucket_hashes` of a band of all rows."""
        return bucket_hashes(self._rows, number)


def may_be_near(signatures: Signatures, threshold: float = THRESHOLD) -> npt.NDArray[np.bool_]:
    """Return which texts may be a near-duplicate of another one, by their signatures.

    The other texts can be left out of a `NearIndex`: no search finds them, and a search for them finds nothing. An index needs much memory
    and time for each text, and in most traffic few texts are similar to another one.
    """
    found = np.zeros(len(signatures), dtype=bool)
    for band in range(BANDS):
        hashes = signatures.band(band)
        order = _alike(hashes)
        begins = np.flatnonzero(np.r_[True, np.diff(hashes[order]) != 0])
        sizes = np.diff(np.r_[begins, len(order)])
        for begin, size in zip(begins[sizes > _KEPT].tolist(), sizes[sizes > _KEPT].tolist(), strict=True):
            found[order[begin : begin + size]] = True  # a bucket keeps only some of them
        for size in np.unique(sizes[(sizes > 1) & (sizes <= _KEPT)]).tolist():
            members = order[begins[sizes == size][:, None] + np.arange(size)]
            for one, other in combinations(range(size), 2):
                _mark(found, signatures, members[:, one], members[:, other], threshold - _MARGIN)
    return found


def _alike(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """Return the numbers of the hashes that occur more than once, ordered by hash and then by number."""
    ordered = np.sort(hashes)
    several = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(several):
        return np.empty(0, dtype=np.intp)
    places = np.minimum(several.searchsorted(hashes), len(several) - 1)
    numbers = np.flatnonzero(several[places] == hashes)
    return numbers[np.argsort(hashes[numbers], kind="stable")]


def _mark(
    found: npt.NDArray[np.bool_],
    signatures: Signatures,
    ones: npt.NDArray[np.intp],
    others: npt.NDArray[np.intp],
    least: float,
) -> None:
    """Set `found` for the pairs of texts whose signatures have at least the similarity `least`."""
    for at in range(0, len(ones), _BLOCK):
        one, other = ones[at : at + _BLOCK], others[at : at + _BLOCK]
        new = ~(found[one] & found[other])
        one, other = one[new], other[new]
        alike = (signatures[one] == signatures[other]).mean(axis=1) >= least
        found[one[alike]] = found[other[alike]] = True


def bucket_hashes(signatures: npt.NDArray[np.uint32], band: int) -> npt.NDArray[np.uint64]:
    """Return the 64-bit hash of a band of each signature (texts x PERMUTATIONS)."""
    return _bucket(signatures[:, band * _ROWS : (band + 1) * _ROWS], band)


def _bucket(rows: npt.NDArray[np.uint32], band: int | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each of the `rows` of a band, or of bands."""
    found = np.full(len(rows), band, dtype=np.uint64) if isinstance(band, int) else band.copy()
    for row in range(_ROWS):
        found = (found ^ rows[:, row].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)  # wraps around
        found ^= found >> np.uint64(29)
    return found


class NearIndex:
    """Texts by keys, of which the near-duplicates of another text are found.

    The text of a stored signature need not be known. A pair with it is checked by the signatures, whose standard error is 0.036.
    `threshold` is the least Jaccard similarity of near-duplicates, and `make` makes the shingles of texts; the signatures are of the same
    shingles. A bucket keeps the texts that were added first.
    """

    def __init__(self, threshold: float = THRESHOLD, make: Shingler = WHOLE) -> None:
        self._threshold, self._make = threshold, make
        self._keys: list[str] = []
        self._known: set[str] = set()
        self._signatures = np.empty((64, PERMUTATIONS), dtype=np.uint32)
        self._bands: defaultdict[int, list[int]] = defaultdict(list)
        self._texts: dict[str, str] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def add(self, key: str, found: Signature, text: str | None = None, bands: Sequence[int] | None = None) -> None:
        """Add a text by its signature, once. `text` is normalised; None if it is not known. `bands` are `buckets(found)` if known."""
        if key not in self._known:
            number = len(self._keys)
            if number == len(self._signatures):
                self._signatures = np.concatenate([self._signatures, np.empty_like(self._signatures)])
            self._signatures[number] = found
            self._keys.append(key)
            self._known.add(key)
            for bucket in buckets(found) if bands is None else bands:
                if len(kept := self._bands[bucket]) < _KEPT:
                    kept.append(number)
        if text is not None:
            self._texts[key] = text

    def near(
        self, text: str, signed: Signature, group: Callable[[str], object] = lambda key: key, bands: Sequence[int] | None = None
    ) -> list[str]:
        """Return keys of near-duplicates of a normalised text with its signature, most similar first.

        Of the keys for which `group` returns the same value, one is returned. `bands` are `buckets(signed)` if known.
        """
        kept = [self._bands[bucket] for bucket in (buckets(signed) if bands is None else bands) if bucket in self._bands]
        if not kept:
            return []
        numbers, shared = np.unique(np.concatenate(kept), return_counts=True)
        numbers = numbers[np.argsort(-shared, kind="stable")[:_COMPARED]]
        alike = (self._signatures[numbers] == signed).mean(axis=1)
        found, result, missed = self._make(text), list[str](), 0
        tried: dict[object, int] = {}
        for at in np.argsort(-alike, kind="stable").tolist():
            if alike[at] < self._threshold - _MARGIN or missed == _MISSES:
                break
            key = self._keys[numbers[at]]
            of = group(key)
            if tried.get(of, 0) >= _CHECKED:
                continue
            tried[of] = tried.get(of, 0) + 1
            if self._similarity(found, key, float(alike[at])) >= self._threshold:
                result.append(key)
                tried[of] = _CHECKED
            else:
                missed += 1
        return result

    def _similarity(self, found: Shingles, key: str, estimate: float) -> float:
        other = self._texts.get(key)
        if other is None:
            return estimate
        return jaccard(found, _remembered(self._make, other) if len(other) <= _CACHED else self._make(other))


def clusters(texts: Mapping[str, str], threshold: float = THRESHOLD, make: Shingler = WHOLE) -> dict[str, str]:
    """Map the key of each text to the key of its cluster. Texts in a chain of near-duplicates are in one cluster.

    `texts` are normalised; the other arguments are those of `NearIndex`. The result depends on the texts only, not on their order.
    """
    index, joined, keys = NearIndex(threshold, make), Joined(), sorted(texts)
    every = np.array([signature(make(texts[key])) for key in keys], dtype=np.uint32).reshape(-1, PERMUTATIONS)
    for at in np.flatnonzero(may_be_near(InMemorySignatures(every), threshold)).tolist():
        key, signed = keys[at], every[at]
        bands = buckets(signed)
        for other in index.near(texts[key], signed, joined.root, bands):
            joined.join(key, other)
        index.add(key, signed, texts[key], bands)
    return {key: joined.root(key) for key in texts}


def prompt_clusters(
    prompts: Mapping[str, str], threshold: float = THRESHOLD, make: Shingler = WHOLE, skipped: SkippedTexts = ()
) -> dict[str, str]:
    """Map the ids of prompts to clusters of near-duplicates. `prompts` are JSON lists of messages, which are compared as one text.

    Instructions (messages of the system or the developer) that many prompts have are left out, and the messages before the question
    (`without_opening`): where they are long, they would make different questions of an application near-duplicates. So would documents in a
    user message, of which only the question is compared (`question_in`).
    """
    counts = Counter(text for prompt in prompts.values() for text in _instructions(orjson.loads(prompt)))
    many = min(_MANY, max(2, len(prompts) // 5))
    shared, texts = {text for text, count in counts.items() if count >= many}, {}
    for identity, prompt in prompts.items():
        every = orjson.loads(prompt)
        own = [one for one in without_opening(every, skipped) if shared.isdisjoint(_instructions([one]))]
        said = ((message["role"], normalise(content_text(message["content"]))) for message in own or every)
        texts[identity] = "\n".join(f"{role}: {question_in(text, skipped) if role == 'user' else text}" for role, text in said)
    return clusters(texts, threshold, make)


def _instructions(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the texts of the messages that instruct the model."""
    return [content_text(message["content"]) for message in messages if message["role"] in INSTRUCTIONS]


class Joined:
    """Disjoint sets of keys. The smallest key of a set names it."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._up: dict[str, str] = {}
        for one, other in pairs:
            self.join(one, other)

    def root(self, key: str) -> str:
        """Return the name of the set of a key."""
        path = []
        while (up := self._up.get(key, key)) != key:
            path.append(key)
            key = up
        for passed in path:
            self._up[passed] = key
        return key

    def join(self, one: str, other: str) -> None:
        """Unite the sets of two keys."""
        low, high = sorted((self.root(one), self.root(other)))
        self._up[high] = low
