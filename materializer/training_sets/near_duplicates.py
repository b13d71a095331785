"""Finds near-duplicate texts: MinHash signatures, locality-sensitive hashing in bands, and a check of every pair that is found.

Two texts are near-duplicates if the Jaccard similarity of their sets of character 5-grams, after normalisation, is at least 0.8
(`benchmarks/near_duplicates.py` compares other shingles and thresholds). The recipe has a version. Signatures are stored, so a change of
what they mean needs a new version; a test compares them with recorded values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson

from contracts.ids import content_text, normalise

if TYPE_CHECKING:
    from datasketch import MinHash

RECIPE = 1
"""Version of shingles, hashes, bands and threshold."""
THRESHOLD = 0.8
"""Least Jaccard similarity of near-duplicates."""
SHINGLE = 5
"""Characters of a shingle."""
_BANDS, _ROWS = 25, 5
"""A pair with similarity 0.8 shares a band with probability 0.99995, one with 0.5 with probability 0.55; every found pair is checked."""
PERMUTATIONS = _BANDS * _ROWS
_HOPELESS = THRESHOLD - 0.22
"""Similarity of the signatures below which a pair is not checked: six standard errors."""
_CHECKED = 16
"""Pairs that are checked per text and group, the most similar ones by their signatures first."""

Shingles = npt.NDArray[np.uint32]
"""Distinct hashes of the shingles of a text, sorted."""
Signature = npt.NDArray[np.uint32]


def shingles(text: str) -> Shingles:
    """Return the hashes of the distinct character 5-grams of a normalised text. A shorter text is one shingle."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
    if len(codes) < SHINGLE:
        codes = np.concatenate([codes, np.full(SHINGLE - len(codes), 0x110000, dtype=np.uint64)])
    grams = np.zeros(len(codes) - SHINGLE + 1, dtype=np.uint64)
    for at in range(SHINGLE):
        grams = (grams ^ codes[at : len(codes) - SHINGLE + 1 + at]) * np.uint64(0x9E3779B97F4A7C15)  # wraps around
        grams ^= grams >> np.uint64(29)
    return np.unique((grams >> np.uint64(32)).astype(np.uint32))


def jaccard(one: Shingles, other: Shingles) -> float:
    """Return the Jaccard similarity of two sets of shingles, in [0, 1]."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)


def signature(found: Shingles) -> Signature:
    """Return the MinHash signature of a set of shingles."""
    made = _minhash()
    made.update_batch(found.tolist())
    return np.asarray(made.hashvalues, dtype=np.uint32)


def _minhash(values: Signature | None = None) -> MinHash:
    from datasketch import MinHash

    same: dict[str, Any] = {"seed": 1, "scheme": "affine32", "hashfunc": int, "permutations": _permutations()}
    return MinHash(num_perm=PERMUTATIONS, **same) if values is None else MinHash(hashvalues=values, **same)


@cache
def _permutations() -> Any:
    """Return the parameters of the permutations. Without this, each text would draw them again, which takes most of the time."""
    from datasketch import MinHash

    return MinHash(num_perm=PERMUTATIONS, seed=1, scheme="affine32").permutations


class NearIndex:
    """Texts by keys, of which the near-duplicates of another text are found.

    The text of a stored signature need not be known. A pair with it is checked by the signatures, whose standard error is 0.036.
    """

    def __init__(self) -> None:
        from datasketch import MinHashLSH

        self._bands = MinHashLSH(num_perm=PERMUTATIONS, params=(_BANDS, _ROWS))
        self._signatures: dict[str, Signature] = {}
        self._texts: dict[str, str] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._signatures

    def add(self, key: str, found: Signature, text: str | None = None) -> None:
        """Add a text by its signature, once. `text` is normalised; None if it is not known."""
        if key not in self._signatures:
            self._bands.insert(key, _minhash(found), check_duplication=False)
            self._signatures[key] = found
        if text is not None:
            self._texts[key] = text

    def near(self, text: str, signed: Signature, group: Callable[[str], object] = lambda key: key) -> list[str]:
        """Return keys of near-duplicates of a normalised text with its signature, most similar first.

        Of the keys for which `group` returns the same value, one is returned.
        """
        keys: list[str] = sorted(self._bands.query(_minhash(signed)))
        if not keys:
            return []
        alike = (np.stack([self._signatures[key] for key in keys]) == signed).mean(axis=1)
        found, result = shingles(text), list[str]()
        tried: dict[object, int] = {}
        for at in np.lexsort((np.arange(len(keys)), -alike)).tolist():
            if alike[at] < _HOPELESS:
                break
            key, of = keys[at], group(keys[at])
            if tried.get(of, 0) >= _CHECKED:
                continue
            tried[of] = tried.get(of, 0) + 1
            other = self._texts.get(key)
            similarity = float(alike[at]) if other is None else jaccard(found, shingles(other))
            if similarity >= THRESHOLD:
                result.append(key)
                tried[of] = _CHECKED
        return result


def clusters(texts: Mapping[str, str]) -> dict[str, str]:
    """Map the key of each text to the key of its cluster. Texts in a chain of near-duplicates are in one cluster.

    `texts` are normalised. The result depends on the texts only, not on their order.
    """
    index, joined = NearIndex(), Joined()
    for key in sorted(texts):
        signed = signature(shingles(texts[key]))
        for other in index.near(texts[key], signed, joined.root):
            joined.join(key, other)
        index.add(key, signed, texts[key])
    return {key: joined.root(key) for key in texts}


def prompt_clusters(prompts: Mapping[str, str]) -> dict[str, str]:
    """Map the ids of prompts to clusters of near-duplicates. `prompts` are JSON lists of messages, which are compared as whole texts."""
    texts = {}
    for identity, prompt in prompts.items():
        messages = orjson.loads(prompt)
        texts[identity] = "\n".join(f"{message['role']}: {normalise(content_text(message['content']))}" for message in messages)
    return clusters(texts)


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
