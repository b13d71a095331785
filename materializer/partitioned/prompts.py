"""Identifies the prompts of a lake, and finds the sides of their roots, with one partition of them in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import orjson
import polars as pl

from ratchet.contracts.data.datasets import PromptGroup
from ratchet.contracts.ids import Digest, SkippedTexts, root_text
from ratchet.materializer.partitioned.partitions import Partitions, range_of
from ratchet.materializer.texts import PLACE, TextFile
from ratchet.materializer.training_sets.holdout import identify_prompts
from ratchet.materializer.training_sets.prompt_sides import Placed, Side

_AT_ONCE = 2_000
"""Roots whose texts are read together."""
_RANGE = "range"
"""Column with the range of a prompt's id."""

_SIDES = {"root_id": pl.String, "held": pl.Boolean, "excluded": pl.Boolean, "cluster": pl.String, "first": pl.Boolean}
_HALVES = (("high", 0), ("low", 8))
_CLUSTER = [
    pl.col("cluster").str.decode("hex").bin.slice(at, 8).bin.reinterpret(dtype=pl.UInt64, endianness="big").alias(name)
    for name, at in _HALVES
]
"""The first half of the name of a cluster, a digest, as two numbers, which no two names share."""

Place = Callable[["PromptRoots"], Callable[[Sequence[Digest]], list[Placed]]]
"""Decides the sides of new roots. Returns a function that returns the sides of sorted roots."""


class Identities:
    """The ids of prompts, by the partitions of their traces. They are kept for a second call with the same partitions."""

    def __init__(self, folder: Path, count: int, known: Identities | None = None, skipped: SkippedTexts = ()) -> None:
        """`known` are former identities. Prompts of a partition there are not identified again. `skipped` is that of `root_id`."""
        self._ids, self._skipped = Partitions(folder, count), skipped
        self._known: Partitions | None = known._ids if known is not None and known._ids.count == count else None

    def identify(self, number: int, prompts: pl.DataFrame, texts: TextFile) -> pl.DataFrame:
        """Return messages, tools, prompt_id, root_id and PLACE of the distinct `prompts` (messages, tools and PLACE) of a partition."""
        found = identify_prompts(prompts, None if self._known is None else self._known.read(number), texts, self._skipped)
        self._ids.put(found.drop(PLACE), number)
        return found


class PromptRoots:
    """The roots of identified prompts, in ranges."""

    def __init__(self, folder: Path, count: int, texts: TextFile, skipped: SkippedTexts = ()) -> None:
        """`texts` has the texts of the prompts. `skipped` is that of `root_text`."""
        self._texts, self._skipped = texts, skipped
        none = pl.DataFrame(schema={"root_id": pl.String, "messages": pl.Binary, PLACE: pl.UInt32, _RANGE: pl.UInt64})
        self._rows = Partitions(folder, count, none)
        self._last: tuple[int, pl.DataFrame] | None = None

    def add(self, identified: pl.DataFrame) -> None:
        """Add the result of `Identities.identify`."""
        rows = identified.select("root_id", "messages", PLACE, range_of("prompt_id", self.count).alias(_RANGE))
        self._rows.add_digests(rows.unique(["root_id", _RANGE]), "root_id")

    @property
    def count(self) -> int:
        """Number of ranges."""
        return self._rows.count

    def rows(self, number: int) -> pl.DataFrame:
        """Return root_id, messages, PLACE and the range of the prompts with this root, of a range of roots."""
        if self._last is None or self._last[0] != number:
            self._last = number, self._rows.read(number).unique(["root_id", _RANGE]).sort("root_id", _RANGE)
        return self._last[1]

    def range(self, number: int) -> Sequence[Digest]:
        """Return the distinct roots of a range, sorted."""
        found: list[Digest] = self.rows(number)["root_id"].unique(maintain_order=True).to_list()
        return found

    def texts(self, roots: Sequence[Digest]) -> Mapping[Digest, str]:
        """Return the normalised texts of those of the roots that are in the ranges."""
        found: dict[Digest, str] = {}
        wanted = pl.DataFrame({"root_id": roots}, schema={"root_id": pl.String})
        numbered = wanted.with_columns(range_of("root_id", self.count).alias(_RANGE))
        for (number,), some in numbered.partition_by(_RANGE, as_dict=True, maintain_order=True).items():
            rows = self.rows(int(number)).join(some, on="root_id", how="semi").unique("root_id")
            for part in rows.iter_slices(_AT_ONCE):
                texts = self._texts.filled(part.select("root_id", "messages", PLACE))
                pairs = texts.select("root_id", "messages").iter_rows()
                found |= {root: root_text(orjson.loads(messages), self._skipped) for root, messages in pairs}
        return found


class Sides:
    """The sides of all roots."""

    def __init__(self, folder: Path, roots: PromptRoots, place: Place) -> None:
        self.roots, self._placed = roots, place(roots)
        self._rows = Partitions(folder, roots.count, pl.DataFrame(schema={**_SIDES, _RANGE: pl.UInt64}))
        for number in range(roots.count):
            names = roots.range(number)
            found = self._placed(names)
            sides = pl.DataFrame(
                {
                    "root_id": names,
                    "held": [one.side is Side.HELD for one in found],
                    "excluded": [one.side is Side.NEITHER for one in found],
                    "cluster": [one.cluster for one in found],
                },
                schema={name: kind for name, kind in _SIDES.items() if name != "first"},
            )
            rows = roots.rows(number).select("root_id", _RANGE, first=pl.col("root_id").is_first_distinct())
            self._rows.add(rows.join(sides, on="root_id").select(*_SIDES, _RANGE), pl.col(_RANGE))

    def read(self, number: int) -> pl.DataFrame:
        """Return root_id, held, excluded and cluster of the roots of a range of prompts."""
        return self._rows.read(number).select("root_id", "held", "excluded", "cluster")

    def trained(self, roots: Sequence[Digest]) -> list[Digest]:
        """Return those of sorted roots that are on the training side."""
        return [root for root, one in zip(roots, self._placed(roots), strict=True) if one.side is Side.TRAIN]

    def training_clusters(self, out: Sequence[Digest]) -> int:
        """Return the number of clusters on the training side, without the roots `out`."""
        trained = ~pl.col("held") & ~pl.col("excluded") & ~pl.col("root_id").is_in(out)
        found = [rows.filter(trained).select(_CLUSTER).unique() for rows in self._rows]
        return pl.concat(found).n_unique()

    def largest_cluster(self) -> PromptGroup | None:
        """Return the largest cluster of near-duplicates. Of equally large ones, the first by name is returned. None without roots."""
        rows = pl.concat([rows.filter("first").select(*_CLUSTER, "held", "excluded") for rows in self._rows])
        if rows.is_empty():
            return None
        sizes = rows.group_by("high", "low", "held", "excluded").len("prompts")
        first = sizes.sort("prompts", "high", "low", descending=[True, False, False]).row(0, named=True)
        side = Side.HELD if first["held"] else Side.NEITHER if first["excluded"] else Side.TRAIN
        return PromptGroup(prompts=first["prompts"], of=len(rows), side=side.name.lower())
