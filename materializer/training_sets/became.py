"""Counts what became of all records of a freeze: traces, right answers that were logged, ratings, corrections and reviewers' references.

Each record has one destination, so the counts of a kind add up to its records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import polars as pl

from ratchet.contracts.data.records import FeedbackKind
from ratchet.materializer.usable import UsablePart

_OF_TEACHER = pl.col("kind") == FeedbackKind.TEACHER.value


def side_of(golden: Collection[str], alike: Collection[str]) -> pl.Expr:
    """Return an expression for why a prompt is not trained on, or null. It reads the columns of the sides.

    `golden` are the roots of golden prompts, `alike` those of their near-duplicates.
    """
    side = (
        pl.when(pl.col("excluded"))
        .then(pl.lit("near_duplicate_conflict"))
        .when(pl.col("held"))
        .then(pl.lit("holdout"))
        .when(pl.col("root_id").is_in(sorted(golden)))
        .then(pl.lit("golden"))
        .when(pl.col("root_id").is_in(sorted(alike)))
        .then(pl.lit("near_golden"))
    )
    return side.alias("side")


class Became:
    """Counts what became of the records of a freeze, part by part."""

    def __init__(self, side: pl.Expr, near: bool) -> None:
        """`side` is the result of `side_of`. `near`: near-duplicates are considered."""
        self._side, self._near = side, near
        self._traces, self._feedback, self._references = Counter[str | None](), Counter[str](), Counter[str]()
        self.contested = 0
        """Corrections that contradict each other."""

    def add(self, part: UsablePart, known: pl.DataFrame, contested: int) -> None:
        """Count the records of a part. `known` are the references of the prompts that are trained on; `contested` corrections contradict
        each other."""
        self._traces.update(dict(part.traces.select(self._side).group_by("side").len().iter_rows()))
        self._feedback.update(_feedback(part, self._side))
        self._references.update(_references(part.asked.with_columns(self._side), known))
        self.contested += contested

    def traces(self, out: Mapping[str, int]) -> dict[str, int]:
        """Return the counts of the traces: `considered`, `used`, `holdout` and `out:<reason>`. `out` are those of `govern`."""
        sides = self._traces
        reasons = [*(("near_duplicate_conflict", "near_golden") if self._near else ()), *(("golden",) if "golden" in sides else ())]
        counts = {"considered": sides.total() + sum(out.values()), "holdout": sides["holdout"], "used": sides[None]}
        counts |= {f"out:{reason}": sides[reason] for reason in reasons}
        return counts | {f"out:{reason}": n for reason, n in out.items()}

    def references(self, refused: Mapping[str, int]) -> dict[str, int]:
        """Return what became of the right answers that the application logged: destination -> number.

        The numbers add up to the traces with a reference and to the references that came later. `refused` are those whose question may not
        be used, or whose trace has a newer one.
        """
        return dict(sorted((self._references + Counter(refused)).items()))

    def feedback(self, ignored: Mapping[str, int], left_out: int, signals: int) -> dict[str, int]:
        """Return what became of ratings, corrections and reviewers' references: destination -> number of records.

        The numbers add up to all records of the lake's feedback. `ignored` do not count, `left_out` are on no row of a part, and `signals`
        were sent. SignalBelief and TeacherBelief say what signals and the answers of teachers do.
        """
        counts = dict(sorted((self._feedback + Counter(answer_left_out=left_out)).items()))
        if self.contested:
            counts |= {"used": counts["used"] - self.contested, "contradicted": self.contested}
        counts |= {"signal": signals}
        return {**ignored, **{name: n for name, n in counts.items() if n}}


def _references(asked: pl.DataFrame, known: pl.DataFrame) -> dict[str, int]:
    """Return what became of the right answers that were logged with `asked`. `known` is the result of `labels.scores.references`."""
    given = asked.filter(pl.col("reference").is_not_null()).select("reference", "prompt_id", "side")
    best = given.join(known.rename({"reference": "best"}), on="prompt_id", how="left")
    became = (
        pl.when(pl.col("side").is_not_null())
        .then(pl.col("side"))
        .when(pl.col("reference_kind") != "logged")
        .then(pl.lit("reviewer_knows_better"))
        .when(pl.col("reference") == pl.col("best"))
        .then(pl.lit("used"))
        .otherwise(pl.lit("newer_one_counts"))
    )
    return dict(best.select(became.alias("became")).group_by("became").len().iter_rows())


def _feedback(part: UsablePart, side: pl.Expr) -> dict[str, int]:
    """Return what became of the feedback of a part."""
    rows = pl.concat([part.traces.with_columns(side, answered=True), part.questions.with_columns(side, answered=False)])
    placed = part.feedback.filter(~_OF_TEACHER).join(rows.select("source", "id", "side", "answered"), on=["source", "id"], how="left")
    rating = pl.col("kind") == FeedbackKind.RATING.value
    became = (
        pl.when(pl.col("answered").is_null() | (rating & ~pl.col("answered")))
        .then(pl.lit("answer_left_out"))
        .when(pl.col("side").is_not_null())
        .then(pl.col("side"))
        .otherwise(pl.lit("used"))
    )
    counts = dict(placed.select(became.alias("became")).group_by("became").len().iter_rows())
    taught = len(part.feedback.filter(_OF_TEACHER))
    return counts | ({"teacher": taught} if taught else {})
