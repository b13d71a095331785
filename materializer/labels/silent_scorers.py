"""Finds scorers of the loop file that gave no score to any logged answer, and says why."""

from __future__ import annotations

import orjson
import polars as pl

from ratchet.rewards.scorer_set import ScorerSet


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
