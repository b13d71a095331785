"""Finds scorers of the loop file that gave no score to any logged answer, and those whose scores are probably wrong, and says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import orjson
import polars as pl

from ratchet.contracts.data.decoding import Row
from ratchet.contracts.data.records import Tier
from ratchet.materializer.labels.same_answer import is_same_answer
from ratchet.rewards.scorer_set import Scorer, ScorerSet

_LEAST_SCORED, _NEARLY_ALL = 50, 0.95
"""A scorer that scored this many answers, and this share of them with 0, is doubtful."""
_LEAST_SAME, _SAME_SHARE = 10, 0.05
"""So is one that gave 0 to this many answers that say the same as the right answer, if they are this share of its zeros."""


def silent_scorers(scorer_set: ScorerSet, samples: pl.DataFrame, references: int) -> dict[str, str]:
    """Return each scorer without a score -> why, as far as the data tell, with the remedy; nothing without a logged answer.

    `samples` has one row per origin and parts of the samples of a snapshot (records.SAMPLES), with their sum of `votes` and their number
    `rows`. `references` is the number of training prompts with a right answer. Judges are left out: they grade a selection only.
    """
    answers = samples.filter(pl.col("origin") == "traffic")
    if answers.is_empty():
        return {}
    spoke = {name for parts in answers["parts"].unique() for name, score in orjson.loads(parts).items() if score is not None}
    found = {}
    for scorer in scorer_set.scorers:
        if scorer.judge is not None or scorer.version.name in spoke:
            continue
        if "reference" in scorer.function.needs and not references:
            found[scorer.version.name] = (
                "it compares answers with right answers, and no training prompt has one; log them (`reference` in JSON Lines, "
                "`metadata.reference` in OTLP, or reviewer_reference), or remove it"
            )
        elif "feedback" in scorer.function.needs and not answers["votes"].sum():
            found[scorer.version.name] = (
                "it reads ratings, and no logged answer has one that counts; send feedback with the trace_id or response_id of the answer, "
                "or remove it"
            )
        else:
            number = answers["rows"].sum()
            found[scorer.version.name] = f"it abstained on all {number:,} logged answers; compare its options with them, or remove it"
    return found


def wrong_by_form(scorer_set: ScorerSet, samples: pl.DataFrame, known: pl.DataFrame) -> Counter[str]:
    """Return scorer -> number of logged answers that it compared with the right one and found wrong, although they say the same.

    `samples` is records.SAMPLES, and `known` has the columns prompt_id and reference.
    """
    comparing = comparing_scorers(scorer_set)
    answers = samples.filter(pl.col("origin") == "traffic").select("prompt_id", "answer", "parts")
    zeros = {
        parts: found for parts in answers["parts"].unique() if (found := [name for name in comparing if orjson.loads(parts).get(name) == 0])
    }
    compared = answers.filter(pl.col("parts").is_in(sorted(zeros))).join(known, on="prompt_id", how="inner")
    rows = compared.select("answer", "reference", "parts").iter_rows()
    return Counter(name for answer, right, parts in rows if is_same_answer(answer, right) for name in zeros[parts])


def doubtful_scorers(scorer_set: ScorerSet, samples: pl.DataFrame, same: Mapping[str, int]) -> dict[str, str]:
    """Return each verifiable scorer whose scores are probably wrong -> what it did, with the remedy.

    `samples` is that of `silent_scorers`, and `same` adds up the results of `wrong_by_form`.
    """
    answers = samples.filter(pl.col("origin") == "traffic")
    scores = [(orjson.loads(parts), rows) for parts, rows in answers.select("parts", "rows").iter_rows()]
    found = {}
    comparing = comparing_scorers(scorer_set)
    for name in (scorer.version.name for scorer in _verifiable(scorer_set)):
        scored = sum(rows for parts, rows in scores if parts.get(name) is not None)
        zeros, alike = sum(rows for parts, rows in scores if parts.get(name) == 0), same.get(name, 0)
        many = alike >= _LEAST_SAME and alike >= _SAME_SHARE * zeros
        if not many and (scored < _LEAST_SCORED or zeros < _NEARLY_ALL * scored):
            continue
        told = f"it gave 0 to {zeros:,} of {scored:,} logged answers"
        told += f", and {alike:,} of these differ from the right answer only in {_FORM}" if many else ""
        found[name] = f"{told}; {_COMPARING if name in comparing else _OTHER}"
    return found


def doubtful_at_a_look(scorer_set: ScorerSet, traces: Sequence[Row]) -> dict[str, str]:
    """Return the result of `doubtful_scorers` for some traces and the scorers that compare them with the right answers logged with them.

    The scorer `code` is left out: it would run programs.
    """
    names = set(comparing_scorers(scorer_set)) - {"code"}
    comparing = ScorerSet([one for one in scorer_set.scorers if one.version.name in names])
    rows = [row for row in traces if row["messages"] is not None and row["answer"] is not None and row["reference"] is not None]
    if not rows or not comparing.scorers:
        return {}
    asked = [
        {"prompt": orjson.loads(row["messages"]), "answer": row["answer"], "reference": row["reference"], "feedback": [], "trace": row}
        for row in rows
    ]
    samples = pl.DataFrame(
        {
            "prompt_id": [str(n) for n in range(len(rows))],
            "answer": [row["answer"] for row in rows],
            "reference": [row["reference"] for row in rows],
            "parts": [orjson.dumps(dict(parts)).decode() for parts in comparing.compare(asked)],
            "origin": "traffic",
        }
    )
    totals = samples.group_by("origin", "parts").agg(pl.len().alias("rows"))
    known = samples.select("prompt_id", "reference")
    return doubtful_scorers(comparing, totals, wrong_by_form(comparing, samples.drop("reference"), known))


_FORM = "upper case, punctuation or white space, or in the form of JSON"
_COMPARING = (
    "log right answers in the form in which the model answers, or choose a scorer that suits them: exact_match with ignore_case, "
    "final_number or math for numbers, tool_call_match for calls of tools, code for programs, json_schema or regex for a form, or judge"
)
_OTHER = "compare its options with the answers, or remove it"


def comparing_scorers(scorer_set: ScorerSet) -> list[str]:
    """Return the names of the verifiable scorers that compare an answer with the right one."""
    return [scorer.version.name for scorer in _verifiable(scorer_set) if "reference" in scorer.function.needs]


def _verifiable(scorer_set: ScorerSet) -> list[Scorer]:
    return [scorer for scorer in scorer_set.scorers if scorer.judge is None and scorer.version.tier == Tier.VERIFIABLE]
