"""Joins feedback to the answers it refers to, and scores the answers with the scorer set.

Feedback refers to its trace by trace id or by response id. It may arrive before or after the trace. For each rater and kind, only the
latest feedback counts. A correction becomes the reference of its prompt if there is no better reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import orjson
import polars as pl

from ratchet.contracts.conversation import person_answer
from ratchet.contracts.data.datasets import Label
from ratchet.contracts.data.records import PROMPTS, SAMPLES, FeedbackKind, Tier
from ratchet.materializer.governance import Governed
from ratchet.materializer.labels.credible import credible
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.texts import AT_ONCE, PLACE, Texts
from ratchet.rewards.scorer_set import CORRECTION, ScorerSet
from ratchet.runtime.collection import without_collection

ANONYMOUS = "\x00anonymous"
"""Id for raters and users without an id. If others have an id, all of them count as one person. If nobody has an id, users cannot be
distinguished, and caps per person do not apply."""
TRACE_KEYS = ("latency_ms", "input_tokens", "output_tokens", "model")
"""Columns of a trace that a scorer of logged answers may read."""
_RATER = pl.col("rater").fill_null(ANONYMOUS)
PARTITION = "of_partition"
"""Column with the partition of a trace."""


_COUNTED = ["source", "id", "rater", "kind", "time", "value", "text", "signal"]


def attach(feedback: pl.DataFrame, traces: pl.DataFrame, governed: Governed) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the feedback on admitted traces that counts, the latest per rater and kind, and reason -> number of records that do not count.

    Each signal counts as a kind of its own. The columns are source, id, rater, kind, time, value, text and signal. `source` and `id` are
    those of the trace that represents equal traces. `traces` has the columns source, id, response_id, user and verified of the traces that
    feedback may refer to.
    """
    found, unattached = linked(feedback, traces, governed.refused)
    counted, ignored = counting(found, traces, governed.merged)
    return counted, ignored | unattached


def linked(feedback: pl.DataFrame, traces: pl.DataFrame, refused: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the feedback with the `source` and `id` of its trace, and reason -> number of records that refer to no trace of `traces`.

    `traces` has the columns source, id, response_id and verified of the traces that feedback may refer to, `refused` those of
    `Governed.refused`. Traces to which no feedback refers change nothing. Further columns of `traces` are in the result.
    """
    links = traces.select("source", "id", "response_id", "verified", *_more(traces))
    by_id = feedback.filter(pl.col("trace_id").is_not_null()).join(
        links.select("source", pl.col("id").alias("trace_id"), "id", *_more(traces)), on=["source", "trace_id"], how="left"
    )
    found = by_id.filter(pl.col("id").is_not_null())
    rest = pl.concat([feedback.filter(pl.col("trace_id").is_null()), by_id.filter(pl.col("id").is_null()).select(feedback.columns)])
    named = (
        links.filter(pl.col("response_id").is_not_null())
        .sort(pl.col("verified").fill_null(False), "id", descending=[True, False])
        .unique(["source", "response_id"], keep="first", maintain_order=True)
        .drop("verified")
    )
    by_response = rest.join(named, on=["source", "response_id"], how="inner")
    wanted = [*_COUNTED, "ingested", "sender", "trusted", *_more(traces)]
    every = pl.concat([found.select(wanted), by_response.select(wanted)])
    return every, _unattached(rest.join(named, on=["source", "response_id"], how="anti"), refused)


def _more(traces: pl.DataFrame) -> list[str]:
    return [name for name in traces.columns if name == PARTITION]


def counting(found: pl.DataFrame, traces: pl.DataFrame, merged: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the feedback that counts, and reason -> number of the other records, as `attach` does.

    `found` is the result of `linked` with all feedback on some traces, `traces` has the columns source, id and user of these, and `merged`
    those of `Governed.merged`.
    """
    credited, ignored = credible(found.join(traces.select("source", "id", "user"), on=["source", "id"], how="inner"))
    joined = credited.select(_COUNTED).join(merged, on=["source", "id"], how="inner")
    kept = joined.select(pl.col("keeper_source").alias("source"), pl.col("keeper_id").alias("id"), *_COUNTED[2:])
    ordered = kept.with_columns(_RATER.alias("who")).sort("time", "value", "text", nulls_last=False)
    latest = ordered.unique(["source", "id", "who", "kind", "signal"], keep="last", maintain_order=True)
    ignored |= {"replaced": len(kept) - len(latest)} if len(latest) < len(kept) else {}
    return latest.drop("who").sort("source", "id", "time", "kind", "rater", "signal"), ignored


def _unattached(feedback: pl.DataFrame, refused: pl.DataFrame) -> dict[str, int]:
    """Return why `feedback` refers to no trace that may be used: the rule that its trace breaks, or `unknown_answer` -> number."""
    by_id = refused.select("source", pl.col("id").alias("trace_id"), "reason")
    by_response = refused.filter(pl.col("response_id").is_not_null()).sort("id").unique(["source", "response_id"], keep="first")
    other = by_response.select("source", "response_id", pl.col("reason").alias("other"))
    found = feedback.join(by_id, on=["source", "trace_id"], how="left").join(other, on=["source", "response_id"], how="left")
    reason = pl.coalesce("reason", "other", pl.lit("unknown_answer"))
    return dict(found.select(reason.alias("why")).group_by("why").len().sort("why").iter_rows())


def references(traces: pl.DataFrame, feedback: pl.DataFrame) -> pl.DataFrame:
    """Return the best reference of each prompt, with columns prompt_id, reference and reference_kind.

    A reviewer's reference has priority over one that the application logged, and both over a user's correction. Within a kind, the
    newest counts. `traces` are all traces whose question may be used, also those that an equal trace represents, with the columns source,
    id, prompt_id, time and reference. `feedback` is the result of `attach`.
    """
    texts = feedback.join(traces.select("source", "id", "prompt_id"), on=["source", "id"], how="inner").filter(pl.col("text").is_not_null())
    order = {FeedbackKind.REFERENCE.value: 0, "logged": 1, FeedbackKind.CORRECTION.value: 2}
    spoken = texts.filter(pl.col("kind").is_in([kind for kind in order if kind != "logged"]))
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
    """Return records.PROMPTS: one row per prompt, with the text of its first trace, its first slice, and its reference if there is one.

    `known` is the result of `references`. If `traces` have keys of texts, the rows have keys and PLACE, too.
    """
    given = pl.col("slice").sort_by("time", "source", "id").drop_nulls().first().over("prompt_id")
    first = traces.with_columns(given).sort("time", "source", "id").unique("prompt_id", keep="first", maintain_order=True)
    places = [name for name in first.columns if name == PLACE]
    named = first.select("prompt_id", pl.col("messages").alias("prompt"), "slice", "tools", *places).join(known, on="prompt_id", how="left")
    return named.select(*(column.name for column in PROMPTS), *places).sort("prompt_id")


class AnswerPart(NamedTuple):
    """Some answers, and the feedback on them."""

    asked: pl.DataFrame
    feedback: pl.DataFrame


class PartLabeller(Protocol):
    """Scores parts of the answers elsewhere (workers/labelling.py)."""

    def each(self, parts: Iterable[AnswerPart], salt: str, nameless: str | None) -> Iterator[pl.DataFrame]:
        """Yield the result of `labelled` for each part, in order."""
        ...


def label(
    traces: pl.DataFrame,
    questions: pl.DataFrame,
    feedback: pl.DataFrame,
    known: pl.DataFrame,
    scorer_set: ScorerSet,
    salt: str,
    texts: Texts,
    nameless: str | None,
    elsewhere: tuple[PartLabeller, int] | None = None,
) -> Iterator[pl.DataFrame]:
    """Yield records.SAMPLES: the answers of `traces` with their scores, and the corrections that users wrote of these and of `questions`.

    Each frame has all samples of some prompts, and the prompts are in the order of their ids. With a judge, it is one frame.

    `feedback` is the result of `attach`, `known` that of `references`, and `texts` has the texts of the rows. The column `user` is the
    pseudonym to which caps per person apply; `salt` is part of its hash. `nameless` is that of people without an id.
    `elsewhere` scores the answers, in parts of the given number, unless they are fewer or judged.
    """
    judged = scorer_set.has_judges()  # a judge is measured on all samples
    asked = pl.concat([traces, questions]).join(known, on="prompt_id", how="left", suffix="_known")
    asked = asked.sort("source", "id") if judged else asked.sort("prompt_id", "source", "id")
    feedback = feedback.join(asked.select("source", "id"), on=["source", "id"], how="semi", maintain_order="left")
    for part in [asked] if judged else whole_groups(asked, "prompt_id", AT_ONCE):
        about = _about(part, feedback)
        if elsewhere is not None and not judged and len(asked) > elsewhere[1]:
            yield pl.concat(list(elsewhere[0].each(_parts(part, about, texts, elsewhere[1]), salt, nameless)))
        elif len(part):
            size = len(part) if judged else AT_ONCE
            yield pl.concat([labelled(one, scorer_set, salt, nameless) for one in _parts(part, about, texts, size)])


def has_names(traces: pl.DataFrame, feedback: pl.DataFrame) -> bool:
    """Return whether a user or a rater of these traces has an id. `feedback` is the result of `attach`."""
    raters = feedback.filter(pl.col("rater").is_not_null())
    return bool(traces["user"].is_not_null().any()) or not raters.join(traces, on=["source", "id"], how="semi").is_empty()


def _parts(asked: pl.DataFrame, feedback: pl.DataFrame, texts: Texts, size: int) -> Iterator[AnswerPart]:
    for part in asked.iter_slices(size):
        yield AnswerPart(texts.filled(part), _about(part, feedback))


def _about(asked: pl.DataFrame, feedback: pl.DataFrame) -> pl.DataFrame:
    return feedback.join(asked.select("source", "id"), on=["source", "id"], how="semi", maintain_order="left")


def whole_groups(rows: pl.DataFrame, key: str, least: int) -> Iterator[pl.DataFrame]:
    """Yield the rows, which are ordered by `key`, in parts of at least `least` rows (the last one may have fewer).

    All rows with one value of `key` are in one part.
    """
    begins = (rows[key] != rows[key].shift()).fill_null(True).arg_true().to_numpy()
    at = 0
    while at < len(rows):
        after = int(np.searchsorted(begins, at + least))
        end = int(begins[after]) if after < len(begins) else len(rows)
        yield rows[at:end]
        at = end


def labelled(part: AnswerPart, scorer_set: ScorerSet, salt: str, nameless: str | None) -> pl.DataFrame:
    """Return records.SAMPLES of some rows. `nameless` is the user to whom corrections of unknown people are charged."""
    with without_collection():
        return _labelled(part, scorer_set, salt, nameless)


def _labelled(part: AnswerPart, scorer_set: ScorerSet, salt: str, nameless: str | None) -> pl.DataFrame:
    asked, feedback = part
    feedback_of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in feedback.iter_rows(named=True):
        feedback_of.setdefault((row["source"], row["id"]), []).append(row)
    rows = asked.to_dicts()
    samples = [
        {
            "prompt": orjson.loads(row["messages"]),
            "answer": row["answer"],
            "reference": row["reference_known"],
            "feedback": feedback_of.get((row["source"], row["id"]), []),
            "trace": {name: row[name] for name in TRACE_KEYS},
        }
        for row in rows
    ]
    given = [(row, sample) for row, sample in zip(rows, samples, strict=True) if row["answer"] is not None]
    labels = scorer_set.label([sample for _, sample in given])
    answered = [
        _sample(row, row["answer"], label, "traffic", pseudonym(_judge(row, sample, label), salt))
        for (row, sample), label in zip(given, labels, strict=True)
    ]
    return frame_of(answered + _corrections(rows, samples, scorer_set, salt, nameless), SAMPLES)


def _corrections(
    rows: Sequence[dict[str, Any]], samples: Sequence[dict[str, Any]], scorer_set: ScorerSet, salt: str, nameless: str | None
) -> list[dict[str, Any]]:
    """Return corrections as separate answers with reward 1. A correction that a better reference proves wrong is left out."""
    found = [
        (row, sample, item)
        for row, sample in zip(rows, samples, strict=True)
        for item in sample["feedback"]
        if item["kind"] == FeedbackKind.CORRECTION and item["text"]
    ]
    checked = scorer_set.verify(
        [sample | {"answer": person_answer(item["text"], row["tools"]), "feedback": []} for row, sample, item in found]
    )
    right = Label(1.0, Tier.VERIFIABLE, {CORRECTION: 1.0}, 0)
    rights = []
    for (row, _, item), seen in zip(found, checked, strict=True):
        refuted = row["reference_kind"] != FeedbackKind.CORRECTION and seen.tier == Tier.VERIFIABLE and (seen.reward or 0.0) < 1
        if not refuted:
            author = item["rater"] or row["user"] or nameless
            rights.append(_sample(row, person_answer(item["text"], row["tools"]), right, "correction", pseudonym(author, salt)))
    return rights


def _judge(row: dict[str, Any], sample: dict[str, Any], label: Label) -> str | None:
    """Return the user to whom an answer's evidence is charged: its rater if there is exactly one, else the author of the request."""
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
        "model_version": row["model_version"] if origin == "traffic" and (row["verified"] or row["sender"] is None) else None,
        "slice": row["slice"],
        "tools": row["tools"],
    }


def pseudonym(user: str | None, salt: str) -> str | None:
    """Return a stable pseudonym (salted hash) of a user id. User ids leave the lake only in this form."""
    return None if user is None else hashlib.sha256(f"user\x1f{salt}\x1f{user}".encode()).hexdigest()[:16]
