"""Remembers on which side of the holdout split each prompt is: training, holdout or neither.

A new prompt follows a near-duplicate that is known already; without one, its hash decides. A prompt that is near to prompts of both sides
is on neither. What was decided once never changes, so the result for a prompt may depend on what arrived before it, and is therefore
stored. The unit is the root of a conversation, its first user message.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ratchet.contracts.ids import Digest
from ratchet.materializer.training_sets.near_duplicates import RECIPE, THRESHOLD, Joined, NearIndex, Signature, buckets, shingles, signature

FILE = "prompts.sqlite"
"""Name of the database in the folder of a lake. It contains digests and signatures, and no texts."""


class Side(IntEnum):
    """Side of a prompt."""

    TRAIN = 0
    HELD = 1
    NEITHER = 2
    """Near to prompts of both sides. It is used for neither."""


class Placed(NamedTuple):
    """Side and cluster of a prompt."""

    side: Side
    cluster: str
    """Root of a near-duplicate that names the cluster."""


class PromptSides:
    """The assignments of one line. The caller of `assign` holds the lake's write lock.

    `threshold` is the least Jaccard similarity of near-duplicates.
    """

    def __init__(self, folder: Path, threshold: float = THRESHOLD) -> None:
        self._path = folder / FILE
        self._threshold = threshold

    def assign(self, texts: Mapping[Digest, str], is_held: Callable[[Digest], bool], founding: bool = False) -> dict[Digest, Placed]:
        """Return the side and the cluster of each prompt, and decide those that are new, in one transaction.

        Pass all texts that are still known: a new prompt is compared with these exactly, and with an erased one by its signature, whose
        standard error of 0.036 can miss a near-duplicate close to the threshold.

        `texts` maps roots to their normalised texts, `is_held` is the decision by hash. With `founding`, the first call of a database lets
        the hash decide for all of its prompts: these were used with that side before near-duplicates were considered.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                found = self._assign(connection, texts, is_held, founding)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        return found

    def signatures(self) -> dict[Digest, Signature]:
        """Return the signatures of all prompts by their roots."""
        if not self._path.exists():
            return {}
        with closing(sqlite3.connect(self._path, timeout=30)) as connection:
            rows = connection.execute("SELECT root, signature FROM prompts WHERE recipe = ?", (RECIPE,)).fetchall()
        return {root: np.frombuffer(data, dtype=np.uint32) for root, data in rows}

    def clusters(self) -> dict[Digest, tuple[str, tuple[str, ...]]]:
        """Return for each prompt the cluster that it got when it was first seen, and all clusters that are joined with it."""
        if not self._path.exists():
            return {}
        with closing(sqlite3.connect(self._path, timeout=30)) as connection:
            rows = connection.execute("SELECT root, cluster FROM prompts").fetchall()
            joined = Joined(connection.execute("SELECT one, other FROM joins").fetchall())
        members: dict[str, list[str]] = {}
        for cluster in sorted({cluster for _, cluster in rows}):
            members.setdefault(joined.root(cluster), []).append(cluster)
        return {root: (cluster, tuple(members[joined.root(cluster)])) for root, cluster in rows}

    def _assign(
        self, connection: sqlite3.Connection, texts: Mapping[Digest, str], is_held: Callable[[Digest], bool], founding: bool
    ) -> dict[Digest, Placed]:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS prompts (root TEXT PRIMARY KEY, side INTEGER NOT NULL, cluster TEXT NOT NULL, "
            "signature BLOB NOT NULL, recipe INTEGER NOT NULL) WITHOUT ROWID"
        )
        connection.execute("CREATE TABLE IF NOT EXISTS joins (one TEXT NOT NULL, other TEXT NOT NULL, UNIQUE (one, other))")
        connection.execute(
            "CREATE TRIGGER IF NOT EXISTS sides_stay BEFORE UPDATE ON prompts "
            "BEGIN SELECT RAISE(ABORT, 'a prompt never changes its side'); END"
        )
        rows = connection.execute("SELECT root, side, cluster FROM prompts").fetchall()
        known = {root: Placed(Side(side), cluster) for root, side, cluster in rows}
        joined = Joined(connection.execute("SELECT one, other FROM joins").fetchall())
        new = sorted(texts.keys() - known.keys())
        if new:
            indexes = _indexes(connection, texts, self._threshold)
            hashed = founding and not known
            for root in new:
                self._place(connection, root, texts[root], indexes, known, joined, is_held, hashed)
        return {root: Placed(known[root].side, joined.root(known[root].cluster)) for root in texts}

    def _place(
        self,
        connection: sqlite3.Connection,
        root: Digest,
        text: str,
        indexes: Mapping[Side, NearIndex],
        known: dict[str, Placed],
        joined: Joined,
        is_held: Callable[[Digest], bool],
        hashed: bool,
    ) -> None:
        signed = signature(shingles(text))
        bands = buckets(signed)

        def near(side: Side) -> list[str]:
            return indexes[side].near(text, signed, lambda key: joined.root(known[key].cluster), bands)

        found = {side: near(side) for side in (Side.TRAIN, Side.HELD)}
        sides = [side for side in found if found[side]]
        own = Side.HELD if is_held(root) else Side.TRAIN
        side = own if hashed or not sides else sides[0] if len(sides) == 1 else Side.NEITHER
        alike = [known[key].cluster for key in (near(side) if side is Side.NEITHER else found[side])]
        cluster = alike[0] if alike else root
        for other in alike[1:]:
            connection.execute("INSERT OR IGNORE INTO joins VALUES (?, ?)", (cluster, other))
            joined.join(cluster, other)
        connection.execute("INSERT INTO prompts VALUES (?, ?, ?, ?, ?)", (root, int(side), cluster, signed.tobytes(), RECIPE))
        known[root] = Placed(side, cluster)
        indexes[side].add(root, signed, text, bands)


def _indexes(connection: sqlite3.Connection, texts: Mapping[Digest, str], threshold: float) -> dict[Side, NearIndex]:
    """Return an index per side. A search is limited, so that prompts of a crowded side would displace the few of the other one."""
    indexes = {side: NearIndex(threshold) for side in Side}
    for root, side, data in connection.execute("SELECT root, side, signature FROM prompts WHERE recipe = ?", (RECIPE,)):
        indexes[Side(side)].add(root, np.frombuffer(data, dtype=np.uint32), texts.get(root))
    return indexes
