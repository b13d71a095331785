"""Remembers on which side of the holdout split each prompt is: training, holdout or neither.

A new prompt follows a near-duplicate that is known already; without one, its hash decides. A prompt that is near to prompts of both sides
is on neither. What was decided once never changes, so the result for a prompt may depend on what arrived before it, and is therefore
stored. The unit is the root of a conversation, its first user message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ratchet.contracts.ids import Digest
from ratchet.materializer.lake.places.place import LakePlace, place_of
from ratchet.materializer.partitioned.signature_file import SignatureFile
from ratchet.materializer.training_sets.near_duplicates import (
    PERMUTATIONS,
    THRESHOLD,
    WHOLE,
    Joined,
    NearIndex,
    Shingler,
    Signature,
    buckets,
    may_be_near,
    signature,
)
from ratchet.runtime.sql_store import Statements, StoreLayout

FILE = "prompts.sqlite"
"""Name of the file in the folder of a lake without a database. The rows contain digests and signatures, and no texts."""


LAYOUT = StoreLayout(
    "prompts",
    ("prompts", "joins", "signatures", "signed_until"),
    create=(
        "CREATE TABLE IF NOT EXISTS prompts (root TEXT PRIMARY KEY, side INTEGER NOT NULL, cluster TEXT NOT NULL, "
        "signature BLOB NOT NULL, recipe INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE IF NOT EXISTS joins (one TEXT NOT NULL, other TEXT NOT NULL, UNIQUE (one, other))",
        "CREATE TABLE IF NOT EXISTS signatures (root TEXT PRIMARY KEY, signature BLOB NOT NULL, recipe INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE IF NOT EXISTS signed_until (recipe INTEGER PRIMARY KEY, snapshot INTEGER NOT NULL)",
    ),
    sqlite=(
        "DROP TRIGGER IF EXISTS sides_stay",  # of earlier releases, which never computed a signature again
        "CREATE TRIGGER IF NOT EXISTS sides_never_change BEFORE UPDATE OF root, side, cluster ON prompts "
        "BEGIN SELECT RAISE(ABORT, 'a prompt never changes its side'); END",
        "DROP TABLE IF EXISTS signed",
    ),
    postgres=(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''a prompt never changes its side''; END'",
        "CREATE TRIGGER sides_never_change BEFORE UPDATE OF root, side, cluster ON prompts FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
    idle_seconds=3_600,  # the sides of millions of prompts take minutes between two statements
)
"""`signatures` has those of prompts without a side, `signed_until` the snapshot of the traces whose prompts have signatures of a recipe.

In Postgres, they are in the schema `ratchet_prompts_NAME` of the line NAME.
"""
_SIGNATURES = 2_000
"""Prompts whose signatures, and if needed texts, are in memory together."""
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


class Roots(Protocol):
    """Roots of prompts in ranges, which are not in memory together."""

    @property
    def count(self) -> int:
        """Number of ranges."""
        ...

    def range(self, number: int) -> Sequence[Digest]:
        """Return the distinct roots of a range, sorted. Each is greater than those of the ranges before."""
        ...

    def texts(self, roots: Sequence[Digest]) -> Mapping[Digest, str]:
        """Return the normalised texts of those of the roots, which are sorted, that are in the ranges."""
        ...


class RootsInMemory:
    """One range of roots with their texts in memory."""

    count = 1

    def __init__(self, texts: Mapping[Digest, str]) -> None:
        self._texts = texts
        self._sorted = sorted(texts)

    def range(self, number: int) -> Sequence[Digest]:
        """Return the roots of range 0, sorted."""
        return (self._sorted,)[number]

    def texts(self, roots: Sequence[Digest]) -> Mapping[Digest, str]:
        """Return the normalised texts of those of the roots that are known."""
        return {root: self._texts[root] for root in roots if root in self._texts}


class PromptSides:
    """The assignments of one line. The caller of `assign` holds the lake's write lock.

    `where` is the place of the lake; a path is the folder of a local one. `threshold` and `make` are those of `NearIndex`.
    """

    def __init__(self, where: LakePlace | Path, threshold: float = THRESHOLD, make: Shingler = WHOLE) -> None:
        place = place_of(where)
        self._folder = place.folder
        self._store = place.store(LAYOUT, FILE)
        self._threshold, self._make = threshold, make
        self._joined: Joined | None = None

    def assign(self, texts: Mapping[Digest, str], is_held: Callable[[Digest], bool], founding: bool = False) -> dict[Digest, Placed]:
        """Return the side and the cluster of each prompt, after `place`. `texts` maps roots to their normalised texts."""
        self.place(RootsInMemory(texts), is_held, founding)
        ordered = sorted(texts)
        return dict(zip(ordered, self.placed(ordered), strict=True))

    def place(self, roots: Roots, is_held: Callable[[Digest], bool], founding: bool = False) -> None:
        """Decide the sides of the prompts that are new, in one transaction.

        Pass all roots whose texts are still known: a new prompt is compared with these exactly, and with an erased one by its signature,
        whose standard error of 0.036 can miss a near-duplicate close to the threshold.

        `is_held` is the decision by hash. With `founding`, the first call of a database lets the hash decide for all of its prompts: these
        were used with that side before near-duplicates were considered. Raises Retryable if the disk is full or the database is away.
        """
        self._joined = None
        with self._store.changing() as connection:
            if any(_new(connection, roots.range(number)) for number in range(roots.count)):
                _renew(connection, roots, self._make)
                placing = _Placing(connection, roots, self._threshold, self._make, self._folder)
                for number in range(roots.count):
                    placing.place(number, is_held, founding)
                connection.execute("DELETE FROM signatures WHERE root IN (SELECT root FROM prompts)")

    def placed(self, roots: Sequence[Digest]) -> list[Placed]:
        """Return the side and the cluster of each of the roots, which are sorted and have sides."""
        if not roots:
            return []
        sides = list(Side)
        with self._store.reading() as connection:
            assert connection is not None, "the roots have sides"
            if self._joined is None:
                self._joined = Joined(connection.execute("SELECT one, other FROM joins").fetchall())
            name = self._joined.root
            rows = connection.execute("SELECT root, side, cluster FROM prompts WHERE root BETWEEN ? AND ?", (roots[0], roots[-1]))
            known = {root: Placed(sides[side], root if cluster == root else cluster) for root, side, cluster in rows}
        return [_named(known[root], name(known[root].cluster)) for root in roots]

    def unsigned(self, roots: Collection[Digest]) -> list[Digest]:
        """Return those of the roots whose signatures are not known, so that `assign` would compute them."""
        marks = ",".join("?" * len(roots))
        with self._store.changing() as connection:
            known = {
                root
                for table in ("prompts", "signatures")
                for (root,) in connection.execute(
                    f"SELECT root FROM {table} WHERE recipe = {self._make.recipe} AND root IN ({marks})",  # noqa: S608
                    list(roots),
                )
            }
        return [root for root in roots if root not in known]

    def keep(self, signatures: Mapping[Digest, bytes]) -> None:
        """Store the signatures of prompts that were `unsigned`: beside the side, if a prompt has one."""
        recipe = self._make.recipe
        with self._store.changing() as connection:
            connection.executemany(_RENEW, [(signed, recipe, root, recipe) for root, signed in signatures.items()])
            connection.executemany(
                "INSERT INTO signatures SELECT ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM prompts WHERE root = ?) "
                "ON CONFLICT (root) DO UPDATE SET signature = excluded.signature, recipe = excluded.recipe",
                [(root, signed, recipe, root) for root, signed in signatures.items()],
            )

    def signed(self) -> int | None:
        """Return the last argument of `sign_until`; None without any, or if the signatures of the lake have an earlier recipe."""
        with self._store.changing() as connection:
            row = connection.execute("SELECT snapshot FROM signed_until WHERE recipe = ?", (self._make.recipe,)).fetchone()
        return row[0] if row else None

    def sign_until(self, snapshot: int) -> None:
        """Remember that the prompts of an Iceberg snapshot of the traces have signatures."""
        with self._store.changing() as connection:
            connection.execute("DELETE FROM signed_until")
            connection.execute("INSERT INTO signed_until VALUES (?, ?)", (self._make.recipe, snapshot))

    def signatures(self, roots: Sequence[Digest]) -> dict[Digest, Signature]:
        """Return the signatures of those of the sorted roots that have a side."""
        if not roots:
            return {}
        marks = ",".join("?" * len(roots))
        with self._store.reading() as connection:
            if connection is None:
                return {}
            query = f"SELECT root, signature FROM prompts WHERE recipe = {self._make.recipe} AND root IN ({marks})"  # noqa: S608
            return {root: np.frombuffer(data, dtype=np.uint32) for root, data in connection.execute(query, roots)}

    def clusters(self) -> dict[Digest, tuple[str, tuple[str, ...]]]:
        """Return for each prompt the cluster that it got when it was first seen, and all clusters that are joined with it."""
        with self._store.reading() as connection:
            if connection is None:
                return {}
            rows = connection.execute("SELECT root, cluster FROM prompts").fetchall()
            joined = Joined(connection.execute("SELECT one, other FROM joins").fetchall())
        members: dict[str, list[str]] = {}
        for cluster in sorted({cluster for _, cluster in rows}):
            members.setdefault(joined.root(cluster), []).append(cluster)
        return {root: (cluster, tuple(members[joined.root(cluster)])) for root, cluster in rows}


def _named(placed: Placed, name: str) -> Placed:
    """Return a side with the present name of its cluster."""
    return placed if name == placed.cluster else Placed(placed.side, name)


def _new(connection: Statements, roots: Sequence[Digest]) -> list[Digest]:
    """Return those of the sorted roots that have no side."""
    if not roots:
        return []
    known = {root for (root,) in connection.execute("SELECT root FROM prompts WHERE root BETWEEN ? AND ?", (roots[0], roots[-1]))}
    return [root for root in roots if root not in known]


class _Placing:
    """Decides the sides of new prompts, one after another in the order of their roots, and stores them.

    Only prompts that may be near to another one are searched. A search is limited, so that prompts of a crowded side would displace the few
    of the other one; hence there is an index per side. Signatures are on disk, and those of the searched prompts in the indexes.
    """

    def __init__(self, connection: Statements, roots: Roots, threshold: float, make: Shingler, folder: Path) -> None:
        self._connection, self._roots, self._recipe = connection, roots, make.recipe
        self._joined = Joined(connection.execute("SELECT one, other FROM joins").fetchall())
        self._is_first = connection.execute("SELECT 1 FROM prompts LIMIT 1").fetchone() is None
        self._signatures, count = SignatureFile(folder), 0
        for found in _parts(connection, "signature", make.recipe):
            count += len(found)
            self._signatures.append(np.frombuffer(b"".join(data for _, data in found), dtype=np.uint32).reshape(-1, PERMUTATIONS))
        for number in range(roots.count):
            new = _new(connection, roots.range(number))
            for at in range(0, len(new), _SIGNATURES):
                self._signatures.append(_signed(connection, roots, new[at : at + _SIGNATURES], make))
        near = may_be_near(self._signatures, threshold)
        self._at, self._is_searched = count, near
        self._indexes = {side: NearIndex(threshold, make) for side in Side}
        self._clusters: dict[str, str] = {}
        self._joins: list[tuple[str, str]] = []
        known = list[tuple[Digest, int, str, bytes]]()
        if near[:count].any():
            every = chain.from_iterable(_parts(connection, "side, cluster, signature", make.recipe))
            known = [row for row, is_near in zip(every, near[:count].tolist(), strict=True) if is_near]
        texts = roots.texts([root for root, *_ in known])
        for root, side, cluster, signed in known:
            self._clusters[root] = cluster
            self._indexes[Side(side)].add(root, np.frombuffer(signed, dtype=np.uint32), texts.get(root))

    def place(self, number: int, is_held: Callable[[Digest], bool], founding: bool) -> None:
        """Decide and store the sides of the new prompts of a range. The ranges are passed in their order, once."""
        new = _new(self._connection, self._roots.range(number))
        for begin in range(0, len(new), _SIGNATURES):
            some = new[begin : begin + _SIGNATURES]
            end = self._at + len(some)
            searched, signatures = self._is_searched[self._at : end].tolist(), self._signatures.rows(self._at, end)
            texts = self._roots.texts([root for root, is_near in zip(some, searched, strict=True) if is_near])
            placed = [
                self._placed(root, signed, texts, is_held(root), founding and self._is_first)
                for root, signed in zip(some, signatures, strict=True)
            ]
            self._connection.executemany(
                "INSERT INTO prompts VALUES (?, ?, ?, ?, ?)",
                (
                    (root, int(one.side), one.cluster, signed.tobytes(), self._recipe)
                    for root, one, signed in zip(some, placed, signatures, strict=True)
                ),
            )
            self._at = end
        self._connection.executemany("INSERT INTO joins VALUES (?, ?) ON CONFLICT DO NOTHING", self._joins)
        self._joins.clear()

    def _placed(self, root: Digest, signed: Signature, texts: Mapping[Digest, str], is_held: bool, hashed: bool) -> Placed:
        """Return the side of a new prompt. With `hashed`, the hash decides alone. `texts` has those of the searched prompts."""
        own = Side.HELD if is_held else Side.TRAIN
        if root not in texts:
            return Placed(own, root)
        bands = buckets(signed)
        placed = self._near(root, texts[root], signed, bands, own, hashed)
        self._indexes[placed.side].add(root, signed, texts[root], bands)
        self._clusters[root] = placed.cluster
        return placed

    def _near(self, root: Digest, text: str, signed: Signature, bands: Sequence[int], own: Side, hashed: bool) -> Placed:
        """Return side and cluster of a new prompt by its near-duplicates, and join their clusters."""

        def near(side: Side) -> list[str]:
            return self._indexes[side].near(text, signed, lambda key: self._joined.root(self._clusters[key]), bands)

        found = {side: near(side) for side in (Side.TRAIN, Side.HELD)}
        sides = [side for side in found if found[side]]
        side = own if hashed or not sides else sides[0] if len(sides) == 1 else Side.NEITHER
        alike = [self._clusters[key] for key in (near(side) if side is Side.NEITHER else found[side])]
        cluster = alike[0] if alike else root
        for other in alike[1:]:
            self._joins.append((cluster, other))
            self._joined.join(cluster, other)
        return Placed(side, cluster)


def _parts(connection: Statements, columns: str, recipe: int) -> Iterator[list[Any]]:
    """Yield root and columns of the prompts with sides and present signatures, in the order of their roots, _SIGNATURES at a time."""
    query = f"SELECT root, {columns} FROM prompts WHERE recipe = ? AND root > ? ORDER BY root LIMIT {_SIGNATURES}"  # noqa: S608
    last = ""
    while found := connection.execute(query, (recipe, last)).fetchall():
        yield found
        last = found[-1][0]


def _renew(connection: Statements, roots: Roots, make: Shingler) -> None:
    """Compute the signatures of prompts with a side and a signature of another recipe, if their texts are known.

    After an upgrade, `Split.sign` does so in parts; this is for a line that freezes before. A prompt whose text is not known any more is
    not compared with others.
    """
    former = [root for (root,) in connection.execute("SELECT root FROM prompts WHERE recipe <> ? ORDER BY root", (make.recipe,))]
    for at in range(0, len(former), _SIGNATURES):
        texts = roots.texts(former[at : at + _SIGNATURES])
        rows = ((signature(make(text)).tobytes(), make.recipe, root, make.recipe) for root, text in texts.items())
        connection.executemany(_RENEW, rows)


def _signed(connection: Statements, roots: Roots, new: Sequence[Digest], make: Shingler) -> npt.NDArray[np.uint32]:
    """Return the signatures of sorted new prompts (roots x PERMUTATIONS): the stored ones, and those that are computed now."""
    stored = "SELECT root, signature FROM signatures WHERE recipe = ? AND root BETWEEN ? AND ?"
    known: dict[str, bytes] = dict(connection.execute(stored, (make.recipe, new[0], new[-1])).fetchall())
    texts = roots.texts([root for root in new if root not in known])
    signed = [known[root] if root in known else signature(make(texts[root])).tobytes() for root in new]
    return np.frombuffer(b"".join(signed), dtype=np.uint32).reshape(-1, PERMUTATIONS)
