"""Joins what people said to the answers they said it of, and lets the panel score them.

Feedback finds its trace by trace id or by response id, whenever it arrives; of one rater the latest of a kind counts.
A correction becomes its prompt's reference where there is none better. Knows nothing of pairs or of holdout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson
import polars as pl

from contracts.data import Label
from contracts.records import PROMPTS, SAMPLES, FeedbackKind, Tier
from materializer.govern import Governed
from materializer.schemas import empty, frame_of
from rewards.panel import CORRECTION, Panel

ANONYMOUS = "\x00anonymous"
"""Whoever gave no name where others have one: one person, as far as anybody can tell. Where nobody has a name, nobody can be told from
anybody, and caps per person do not hold."""
_RATER = pl.col("rater").fill_null(ANONYMOUS)


def attach(feedback: pl.DataFrame, traces: pl.DataFrame, governed: Governed) -> pl.DataFrame:
    """Feedback on admitted traces, latest per rater and kind: source, id (of the trace that stands for it), rater, kind, time, value, text.

    `traces` gives source, id and response_id of the traces that feedback may name.
    """
    links = traces.select("source", "id", "response_id")
    by_id = feedback.filter(pl.col("trace_id").is_not_null()).join(
        links.select("source", pl.col("id").alias("trace_id"), "id"), on=["source", "trace_id"], how="left"
    )
    found = by_id.filter(pl.col("id").is_not_null())
    rest = pl.concat([feedback.filter(pl.col("trace_id").is_null()), by_id.filter(pl.col("id").is_null()).drop("id")])
    named = (
        links.filter(pl.col("response_id").is_not_null()).sort("id").unique(["source", "response_id"], keep="first", maintain_order=True)
    )
    by_response = rest.join(named, on=["source", "response_id"], how="inner")
    columns = ["source", "id", "rater", "kind", "time", "value", "text"]
    joined = pl.concat([found.select(columns), by_response.select(columns)]).join(governed.merged, on=["source", "id"], how="inner")
    kept = joined.select(pl.col("keeper_source").alias("source"), pl.col("keeper_id").alias("id"), *columns[2:])
    ordered = kept.with_columns(_RATER.alias("who")).sort("time", "value", "text", nulls_last=False)
    return (
        ordered.unique(["source", "id", "who", "kind"], keep="last", maintain_order=True)
        .drop("who")
        .sort("source", "id", "time", "kind", "rater")
    )


def references(traces: pl.DataFrame, feedback: pl.DataFrame) -> pl.DataFrame:
    """prompt_id, reference, reference_kind: a reviewer's word before the application's, and a user's correction last; the newest of a kind.

    `traces` has source, id, prompt_id, time, reference; `feedback` is as `attach` gives it.
    """
    said = feedback.join(traces.select("source", "id", "prompt_id"), on=["source", "id"], how="inner").filter(pl.col("text").is_not_null())
    order = {FeedbackKind.REFERENCE.value: 0, "logged": 1, FeedbackKind.CORRECTION.value: 2}
    spoken = said.filter(pl.col("kind").is_in([kind for kind in order if kind != "logged"]))
    logged = traces.filter(pl.col("reference").is_not_null())
    every = pl.concat(
        [
            spoken.select("prompt_id", "time", pl.col("text").alias("reference"), pl.col("kind").alias("reference_kind")),
            logged.select("prompt_id", "time", "reference", pl.lit("logged").alias("reference_kind")),
        ]
    )
    ranked = every.with_columns(pl.col("reference_kind").replace_strict(order, return_dtype=pl.Int8).alias("order"))
    best = ranked.sort(["order", "time", "reference"], descending=[False, True, False])
    return best.unique("prompt_id", keep="first", maintain_order=True).select("prompt_id", "reference", "reference_kind").sort("prompt_id")


def prompts_of(traces: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """records.PROMPTS: one row per prompt, in the words of its first trace, with its reference where one is known."""
    first = traces.sort("time", "source", "id").unique("prompt_id", keep="first", maintain_order=True)
    named = first.select("prompt_id", pl.col("messages").alias("prompt"), "slice").join(known, on="prompt_id", how="left")
    return named.select([column.name for column in PROMPTS]).sort("prompt_id")


def label(traces: pl.DataFrame, feedback: pl.DataFrame, known: pl.DataFrame, panel: Panel, salt: str) -> pl.DataFrame:
    """records.SAMPLES of logged answers, scored, and of the corrections that users wrote. `user` is whom caps per person charge."""
    if traces.is_empty():
        return empty(SAMPLES)
    said: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in feedback.iter_rows(named=True):
        said.setdefault((row["source"], row["id"]), []).append(row)
    rows = traces.join(known, on="prompt_id", how="left", suffix="_known").sort("source", "id").to_dicts()
    samples = [
        {
            "prompt": orjson.loads(row["messages"]),
            "answer": row["answer"],
            "reference": row["reference_known"],
            "feedback": said.get((row["source"], row["id"]), []),
        }
        for row in rows
    ]
    labels = panel.label(samples)
    answered = [
        _sample(row, row["answer"], label, "traffic", pseudonym(_judge(row, sample, label), salt))
        for row, sample, label in zip(rows, samples, labels, strict=True)
    ]
    return frame_of(answered + _corrections(rows, samples, panel, salt), SAMPLES)


def _corrections(rows: Sequence[dict[str, Any]], samples: Sequence[dict[str, Any]], panel: Panel, salt: str) -> list[dict[str, Any]]:
    """Corrections as answers of their own: right by their user's word, unless a better reference says that they are wrong."""
    found = [
        (row, sample, item)
        for row, sample in zip(rows, samples, strict=True)
        for item in sample["feedback"]
        if item["kind"] == FeedbackKind.CORRECTION and item["text"]
    ]
    checked = panel.label_unseen([sample | {"answer": item["text"], "feedback": []} for _, sample, item in found])
    right = Label(1.0, Tier.VERIFIABLE, {CORRECTION: 1.0}, 0)
    named = any(row["user"] for row in rows) or any(item["rater"] for sample in samples for item in sample["feedback"])
    nameless = ANONYMOUS if named else None
    rights = []
    for (row, _, item), seen in zip(found, checked, strict=True):
        refuted = row["reference_kind"] != FeedbackKind.CORRECTION and seen.tier == Tier.VERIFIABLE and (seen.reward or 0.0) < 1
        if not refuted:
            author = item["rater"] or row["user"] or nameless
            rights.append(_sample(row, item["text"], right, "correction", pseudonym(author, salt)))
    return rights


def _judge(row: dict[str, Any], sample: dict[str, Any], label: Label) -> str | None:
    """Whom an answer's evidence is charged to: the rater where a single one is all of it, else who asked."""
    raters: set[str | None] = {item["rater"] for item in sample["feedback"] if item["kind"] == FeedbackKind.RATING}
    asker: str | None = row["user"]
    return (next(iter(raters)) if label.tier is Tier.FEEDBACK and len(raters) == 1 else None) or asker


def _sample(row: dict[str, Any], answer: str, label: Label, origin: str, person: str | None) -> dict[str, Any]:
    return {
        "prompt_id": row["prompt_id"],
        "prompt": row["messages"],
        "answer": answer,
        "reward": label.reward,
        "tier": label.tier.value if label.tier else None,
        "parts": label.parts_json,
        "votes": label.votes,
        "repeats": row["repeats"] if origin == "traffic" else 1,
        "trace": f"{row['source']}/{row['id']}",
        "user": person,
        "origin": origin,
        "model_version": row["model_version"] if origin == "traffic" else None,
        "slice": row["slice"],
    }


def pseudonym(user: str | None, salt: str) -> str | None:
    """A stable stand-in for a user id, which leaves the lake nowhere else."""
    return None if user is None else hashlib.sha256(f"user\x1f{salt}\x1f{user}".encode()).hexdigest()[:16]
