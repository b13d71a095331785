"""Remembers on which side of the holdout split each prompt is: training, holdout or neither.

A new prompt follows a near-duplicate that is known already; without one, its hash decides. A prompt that is near to prompts of both sides
is on neither. What was decided once never changes, so the result for a prompt may depend on what arrived before it, and is therefore
stored. The unit is the root of a conversation, its first user message.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ratchet.contracts.ids import Digest
from ratchet.materializer.training_sets.near_duplicates import (
    PERMUTATIONS,
    RECIPE,
    THRESHOLD,
    Joined,
    NearIndex,
    Signature,
    buckets,
    may_be_near,
    shingles,
    signature,
)

FILE = "prompts.sqlite"
"""Name of the database in the folder of a lake. It contains digests and signatures, and no texts."""


_TABLES = (
    "CREATE TABLE IF NOT EXISTS prompts (root TEXT PRIMARY KEY, side INTEGER NOT NULL, cluster TEXT NOT NULL, "
    "signature BLOB NOT NULL, recipe INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS joins (one TEXT NOT NULL, other TEXT NOT NULL, UNIQUE (one, other))",
    "DROP TRIGGER IF EXISTS sides_stay",  # of earlier releases, which never computed a signature again
    "CREATE TRIGGER IF NOT EXISTS sides_never_change BEFORE UPDATE OF root, side, cluster ON prompts "
    "BEGIN SELECT RAISE(ABORT, 'a prompt never changes its side'); END",
    "CREATE TABLE IF NOT EXISTS signatures (root TEXT PRIMARY KEY, signature BLOB NOT NULL, recipe INTEGER NOT NULL) WITHOUT ROWID",
    "DROP TABLE IF EXISTS signed",
    "CREATE TABLE IF NOT EXISTS signed_until (recipe INTEGER PRIMARY KEY, snapshot INTEGER NOT NULL)",
)
"""`signatures` has those of prompts without a side, `signed_until` the snapshot of the traces whose prompts have signatures of a recipe."""
_RENEW = "UPDATE prompts SET signature = ?, recipe = ? WHERE root = ? AND recipe <> ?"


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
        with self._open() as connection:
            return self._assign(connection, texts, is_held, founding)

    def unsigned(self, roots: Collection[Digest]) -> list[Digest]:
        """Return those of the roots whose signatures are not known, so that `assign` would compute them."""
        marks = ",".join("?" * len(roots))
        with self._open() as connection:
            known = {
                root
                for table in ("prompts", "signatures")
                for (root,) in connection.execute(
                    f"SELECT root FROM {table} WHERE recipe = {RECIPE} AND root IN ({marks})",  # noqa: S608
                    list(roots),
                )
            }
        return [root for root in roots if root not in known]

    def keep(self, signatures: Mapping[Digest, bytes]) -> None:
        """Store the signatures of prompts that were `unsigned`: beside the side, if a prompt has one."""
        with self._open() as connection:
            connection.executemany(_RENEW, [(signed, RECIPE, root, RECIPE) for root, signed in signatures.items()])
            connection.executemany(
                "INSERT OR REPLACE INTO signatures SELECT ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM prompts WHERE root = ?)",
                [(root, signed, RECIPE, root) for root, signed in signatures.items()],
            )

    def signed(self) -> int | None:
        """Return the last argument of `sign_until`; None without any, or if the signatures of the lake have an earlier recipe."""
        with self._open() as connection:
            row = connection.execute("SELECT snapshot FROM signed_until WHERE recipe = ?", (RECIPE,)).fetchone()
        return row[0] if row else None

    def sign_until(self, snapshot: int) -> None:
        """Remember that the prompts of an Iceberg snapshot of the traces have signatures."""
        with self._open() as connection:
            connection.execute("DELETE FROM signed_until")
            connection.execute("INSERT INTO signed_until VALUES (?, ?)", (RECIPE, snapshot))

    def signatures(self) -> dict[Digest, Signature]:
        """Return the signatures of all prompts with a side, by their roots."""
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

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the database for one transaction."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement in _TABLES:
                    connection.execute(statement)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise

    def _assign(
        self, connection: sqlite3.Connection, texts: Mapping[Digest, str], is_held: Callable[[Digest], bool], founding: bool
    ) -> dict[Digest, Placed]:
        rows = connection.execute("SELECT root, side, cluster FROM prompts")
        sides = list(Side)
        known = {root: Placed(sides[side], root if cluster == root else cluster) for root, side, cluster in rows}
        joined = Joined(connection.execute("SELECT one, other FROM joins").fetchall())
        new = sorted(texts.keys() - known.keys())
        if new:
            _renew(connection, texts)
            placing = _Placing(connection, texts, new, self._threshold, known, joined)
            hashed = founding and not known
            for number, root in enumerate(new):
                placing.place(number, root, is_held(root), hashed)
            placing.store()
            del placing  # and the signatures
        return {root: _named(known[root], joined) for root in texts}


def _named(placed: Placed, joined: Joined) -> Placed:
    """Return a side with the present name of its cluster."""
    name = joined.root(placed.cluster)
    return placed if name == placed.cluster else Placed(placed.side, name)


class _Placing:
    """Decides the sides of `new` prompts, one after another, and adds them to `known` and `joined`.

    Only prompts that may be near to another one are searched. A search is limited, so that prompts of a crowded side would displace the few
    of the other one; hence there is an index per side.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        texts: Mapping[Digest, str],
        new: Sequence[Digest],
        threshold: float,
        known: dict[str, Placed],
        joined: Joined,
    ) -> None:
        self._connection, self._texts, self._known, self._joined = connection, texts, known, joined
        (count,) = connection.execute("SELECT count(*) FROM prompts WHERE recipe = ?", (RECIPE,)).fetchone()
        signatures = np.empty((count + len(new), PERMUTATIONS), dtype=np.uint32)  # the largest part of the memory, so there is one copy
        placed = list[tuple[str, int]]()
        for root, side, signed in connection.execute("SELECT root, side, signature FROM prompts WHERE recipe = ?", (RECIPE,)):
            signatures[len(placed)] = np.frombuffer(signed, dtype=np.uint32)
            placed.append((root, side))
        self._signatures = signatures[count:]
        _fill(self._signatures, connection, texts, new)
        near = may_be_near(signatures, threshold)
        self._is_searched = near[count:]
        self._indexes = {side: NearIndex(threshold) for side in Side}
        for at in np.flatnonzero(near[:count]).tolist():
            root, side = placed[at]
            self._indexes[Side(side)].add(root, signatures[at], texts.get(root))
        self._new: list[tuple[str, Placed]] = []

    def place(self, number: int, root: Digest, is_held: bool, hashed: bool) -> None:
        """Decide the side of the new prompt `number`. With `hashed`, the hash decides alone."""
        signed, own = self._signatures[number], Side.HELD if is_held else Side.TRAIN
        placed = Placed(own, root)
        if self._is_searched[number]:
            bands = buckets(signed)
            placed = self._near(root, signed, bands, own, hashed)
            self._indexes[placed.side].add(root, signed, self._texts[root], bands)
        self._new.append((root, placed))
        self._known[root] = placed

    def _near(self, root: Digest, signed: Signature, bands: Sequence[int], own: Side, hashed: bool) -> Placed:
        """Return side and cluster of a new prompt by its near-duplicates, and join their clusters."""

        def near(side: Side) -> list[str]:
            return self._indexes[side].near(self._texts[root], signed, lambda key: self._joined.root(self._known[key].cluster), bands)

        found = {side: near(side) for side in (Side.TRAIN, Side.HELD)}
        sides = [side for side in found if found[side]]
        side = own if hashed or not sides else sides[0] if len(sides) == 1 else Side.NEITHER
        alike = [self._known[key].cluster for key in (near(side) if side is Side.NEITHER else found[side])]
        cluster = alike[0] if alike else root
        for other in alike[1:]:
            self._connection.execute("INSERT OR IGNORE INTO joins VALUES (?, ?)", (cluster, other))
            self._joined.join(cluster, other)
        return Placed(side, cluster)

    def store(self) -> None:
        """Store the sides of the new prompts."""
        rows = (
            (root, int(placed.side), placed.cluster, self._signatures[number].tobytes(), RECIPE)
            for number, (root, placed) in enumerate(self._new)
        )
        self._connection.executemany("INSERT INTO prompts VALUES (?, ?, ?, ?, ?)", rows)
        self._connection.execute("DELETE FROM signatures WHERE root IN (SELECT root FROM prompts)")


def _renew(connection: sqlite3.Connection, texts: Mapping[Digest, str]) -> None:
    """Compute the signatures of prompts with a side and a signature of an earlier recipe, if their texts are known.

    After an upgrade, `Split.sign` does so in parts; this is for a line that freezes before. A prompt whose text is not known any more is
    not compared with others.
    """
    roots = [root for (root,) in connection.execute("SELECT root FROM prompts WHERE recipe <> ?", (RECIPE,)) if root in texts]
    rows = ((signature(shingles(texts[root])).tobytes(), RECIPE, root, RECIPE) for root in roots)
    connection.executemany(_RENEW, rows)


def _fill(signatures: npt.NDArray[np.uint32], connection: sqlite3.Connection, texts: Mapping[Digest, str], roots: Sequence[Digest]) -> None:
    """Set the signatures of new prompts (roots x PERMUTATIONS): the stored ones, and those that are computed now."""
    numbers = {root: number for number, root in enumerate(roots)}
    for root, signed in connection.execute("SELECT root, signature FROM signatures WHERE recipe = ?", (RECIPE,)):
        if (number := numbers.pop(root, None)) is not None:
            signatures[number] = np.frombuffer(signed, dtype=np.uint32)
    for root, number in numbers.items():
        signatures[number] = signature(shingles(texts[root]))
