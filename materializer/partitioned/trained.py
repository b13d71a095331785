"""The traces of a snapshot that are trained on, in parts by ranges of the ids of their prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields

import polars as pl

from ratchet.contracts.data.beliefs import SignalBelief
from ratchet.contracts.data.datasets import PromptGroup
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.ids import Digest
from ratchet.contracts.loop import SignalSettings
from ratchet.materializer.labels.conflicts import uncontested
from ratchet.materializer.labels.scores import has_names, prompts_of, references
from ratchet.materializer.labels.signals.agreement import measure_signals
from ratchet.materializer.labels.teachers import teacher_answers, teacher_prompts
from ratchet.materializer.training_sets.prompt_sides import Side
from ratchet.materializer.usable import Usable, UsablePart

_PARTS = 64
"""Parts whose figures are added up at once."""


@dataclass(frozen=True)
class TrainedPart:
    """A part of the usable traces."""

    every: UsablePart
    train: UsablePart
    """The rows of `every` that are trained on."""
    feedback: pl.DataFrame
    """The feedback of `every` without contradicted corrections."""
    contested: int
    """Number of contradicted corrections."""


class Trained:
    """The parts of a snapshot. Each iteration reads them again."""

    def __init__(self, every: Usable, out: Collection[Digest], together: bool) -> None:
        """`out` are the roots that are not trained on, although they are on the training side. `together`: all rows are one part."""
        self._every, self._together = every, together
        self._holds = ~pl.col("held") & ~pl.col("excluded") & ~pl.col("root_id").is_in(sorted(out))

    def __iter__(self) -> Iterator[TrainedPart]:
        """Yield the parts in the order of their ranges."""
        for part in [_one(list(self._every))] if self._together else self._every:
            train = part.where(self._holds)
            feedback, contested = uncontested(part.feedback, train.every(), self._every.texts)
            yield TrainedPart(part, train, feedback, contested)

    def has_names(self) -> bool:
        """Return whether a user or a rater of the traces that are trained on has an id."""
        return any(has_names(part.train.every(), part.feedback) for part in self)

    def beliefs(self, settings: SignalSettings) -> list[SignalBelief]:
        """Return for each signal how far it agrees with the ratings."""
        if self._every.rows[-1].is_empty():
            return []
        answers, ratings, signals = list[pl.DataFrame](), list[pl.DataFrame](), list[pl.DataFrame]()
        for part in self:
            rated = part.feedback.filter(pl.col("kind") == FeedbackKind.RATING.value)
            about = pl.concat([frame.select("source", "id") for frame in (rated, part.every.signals)])
            answers.append(part.train.traces.select("source", "id", "user", "session").join(about, on=["source", "id"], how="semi"))
            ratings.append(rated)
            signals.append(part.every.signals)
        return measure_signals(pl.concat(answers), pl.concat(ratings), pl.concat(signals), settings)

    def taught(self) -> pl.DataFrame:
        """Return the answers of teachers to the prompts that are trained on, for `TeacherLabels`."""
        found = list[pl.DataFrame]()
        for part in self:
            asked = part.train.every()
            taught = asked.filter(pl.col("prompt_id").is_in(teacher_prompts(part.feedback, asked)))
            if len(taught):
                prompts = prompts_of(taught, references(part.train.asked, part.feedback))
                found.append(teacher_answers(part.feedback, asked, self._every.texts.filled(prompts)))
        return pl.concat(found) if found else pl.DataFrame()


def _one(parts: list[UsablePart]) -> UsablePart:
    return UsablePart(**{field.name: pl.concat([getattr(part, field.name) for part in parts]) for field in fields(UsablePart)})


class Totals:
    """Figures of the samples of a snapshot, part by part."""

    def __init__(self) -> None:
        self.questions = self.references = 0
        self.wrong_by_form, self.roots = Counter[str](), Roots()
        self._parts: list[pl.DataFrame] = []

    def add(self, samples: pl.DataFrame) -> None:
        """Count some samples (records.SAMPLES)."""
        figures = (pl.len().cast(pl.Int64).alias("rows"), pl.col("reward").count().cast(pl.Int64).alias("scored"), pl.col("votes").sum())
        self._parts.append(samples.group_by("origin", "parts").agg(figures))
        if len(self._parts) > _PARTS:
            self._parts = [self.samples()]

    def samples(self) -> pl.DataFrame:
        """Return one row per `origin` and `parts`: the number of samples (`rows`), of those with a reward (`scored`), and all `votes`."""
        none = pl.DataFrame(
            schema={**dict.fromkeys(("origin", "parts"), pl.String), **dict.fromkeys(("rows", "scored", "votes"), pl.Int64)}
        )
        return pl.concat([none, *self._parts]).group_by("origin", "parts").agg(pl.col("rows", "scored", "votes").sum())

    def sum(self, figure: str, holds: pl.Expr | None = None) -> int:
        """Return the sum of a figure, of the rows that fulfil a condition."""
        rows = self.samples()
        return int((rows if holds is None else rows.filter(holds))[figure].sum())


class Roots:
    """How many prompts each root has, part by part."""

    def __init__(self) -> None:
        kinds = {"root": pl.UInt64, "held": pl.Boolean, "excluded": pl.Boolean, "prompts": pl.Int64, "one": pl.UInt64, "other": pl.UInt64}
        self._parts = [pl.DataFrame(schema={**kinds, "nameless": pl.Int64})]

    def add(self, traces: pl.DataFrame) -> None:
        """Count the prompts of some traces. No other part has one of these prompts."""
        session = pl.when(pl.col("session").is_not_null()).then(pl.struct("source", "session").hash())
        figures = pl.col("prompt_id").n_unique().cast(pl.Int64).alias("prompts"), session.min().alias("one"), session.max().alias("other")
        nameless = pl.col("session").null_count().cast(pl.Int64).alias("nameless")
        self._parts.append(traces.group_by(pl.col("root_id").hash().alias("root"), "held", "excluded").agg(*figures, nameless))
        if len(self._parts) > _PARTS:
            self._parts = [self._together()]

    def _together(self) -> pl.DataFrame:
        figures = pl.col("prompts", "nameless").sum(), pl.col("one").min(), pl.col("other").max()
        rows = pl.concat(self._parts, how="diagonal").group_by("root", "held", "excluded").agg(*figures)
        return rows.select(self._parts[0].columns)

    def largest(self) -> PromptGroup | None:
        """Return the root of the most prompts, besides those of a single session, which are one conversation. None without any."""
        rows = self._together()
        shared = rows.filter((pl.col("one") != pl.col("other")) | (pl.col("nameless") > 0))
        if shared.is_empty():
            return None
        first = shared.sort("prompts", "held", "excluded", "root", descending=True).row(0, named=True)
        side = Side.HELD if first["held"] else Side.NEITHER if first["excluded"] else Side.TRAIN
        return PromptGroup(prompts=first["prompts"], of=int(rows["prompts"].sum()), side=side.name.lower())
