"""Counts what became of all records of a freeze: traces, right answers that were logged, ratings, corrections and reviewers' references.

Each record has one destination, so the counts of a kind add up to its records.
"""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from ratchet.contracts.data.records import SENT_SIGNALS, FeedbackKind
from ratchet.materializer.usable import Usable


def side_of(golden: Collection[str], alike: Collection[str]) -> pl.Expr:
    """Return an expression for why a prompt is not trained on, or null. It reads the columns of `identify_prompts`.

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


def traces_became(every: Usable, side: pl.Expr, near: bool) -> dict[str, int]:
    """Return the counts of the traces: `considered`, `used`, `holdout` and `out:<reason>`. `near`: near-duplicates are considered."""
    sides = dict(every.traces.select(side).group_by("side").len().iter_rows())
    reasons = [*(("near_duplicate_conflict", "near_golden") if near else ()), *(("golden",) if "golden" in sides else ())]
    counts = {"considered": len(every.traces) + sum(every.out.values()), "holdout": sides.get("holdout", 0), "used": sides.get(None, 0)}
    counts |= {f"out:{reason}": sides.get(reason, 0) for reason in reasons}
    return counts | {f"out:{reason}": n for reason, n in every.out.items()}


def logged_references(traces: pl.DataFrame, asked: pl.DataFrame, refused: pl.DataFrame, known: pl.DataFrame) -> dict[str, int]:
    """Return what became of the right answers that the application logged: destination -> number of traces that carry one.

    The numbers add up to the traces with a reference. `traces` are all traces of the lake that are considered. `asked` are those whose
    question may be used, with the columns source, id, prompt_id and `side`: why the prompt is not trained on, or null. `refused` are the
    others, with the columns source, id and reason. `known` is the result of `labels.scores.references` of the prompts that are trained on.
    """
    given = traces.filter(pl.col("reference").is_not_null()).select("source", "id", "reference")
    placed = given.join(asked.select("source", "id", "prompt_id", "side"), on=["source", "id"], how="left")
    placed = placed.join(refused, on=["source", "id"], how="left")
    best = placed.join(known.rename({"reference": "best"}), on="prompt_id", how="left")
    logged = pl.col("reference_kind") == "logged"
    became = (
        pl.when(pl.col("prompt_id").is_null())
        .then(pl.col("reason"))
        .when(pl.col("side").is_not_null())
        .then(pl.col("side"))
        .when(~logged)
        .then(pl.lit("reviewer_knows_better"))
        .when(pl.col("reference") == pl.col("best"))
        .then(pl.lit("used"))
        .otherwise(pl.lit("newer_one_counts"))
    )
    return dict(best.select(became.alias("became")).group_by("became").len().sort("became").iter_rows())


def feedback_became(every: Usable, side: pl.Expr, contested: int) -> dict[str, int]:
    """Return what became of ratings, corrections and reviewers' references: destination -> number of records.

    The numbers add up to all records of the lake's feedback. `contested` of them contradict each other. Signals that count are `signal`,
    and answers of teachers `teacher`: SignalBelief and TeacherBelief say what they do.
    """
    rows = pl.concat([every.traces.with_columns(side, answered=True), every.questions.with_columns(side, answered=False)])
    taught = pl.col("kind") == FeedbackKind.TEACHER.value
    placed = every.feedback.filter(~taught).join(rows.select("source", "id", "side", "answered"), on=["source", "id"], how="left")
    rating = pl.col("kind") == FeedbackKind.RATING.value
    became = (
        pl.when(pl.col("answered").is_null() | (rating & ~pl.col("answered")))
        .then(pl.lit("answer_left_out"))
        .when(pl.col("side").is_not_null())
        .then(pl.col("side"))
        .otherwise(pl.lit("used"))
    )
    counts = dict(placed.select(became.alias("became")).group_by("became").len().sort("became").iter_rows())
    if contested:
        counts |= {"used": counts["used"] - contested, "contradicted": contested}
    sent = [signal.value for signal in SENT_SIGNALS]
    counts |= {"teacher": len(every.feedback.filter(taught))}
    counts |= {"signal": int(every.signals["signal"].is_in(sent).sum())}
    return {**every.ignored, **{name: n for name, n in counts.items() if n}}
