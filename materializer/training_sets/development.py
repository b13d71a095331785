"""The development prompts of a line: a part of the training prompts that no model of the line is ever trained on.

A training job measures with them how long to train. The clusters of near-duplicates are divided by hash, so that a prompt and its
near-duplicates are in one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

import orjson
import polars as pl

from ratchet.contracts.data.datasets import CROSS_VALIDATED_CLUSTERS, CROSS_VALIDATED_LEAST
from ratchet.contracts.data.records import CROSS_VALIDATION, DEVELOPMENT, PROMPTS
from ratchet.contracts.ids import Digest, SkippedTexts, hash_share, root_id
from ratchet.materializer.lake.schemas import frame_of

MOST = 300
"""Maximum number of development prompts that a job scores. More would barely change its choice; each costs an answer per measurement."""


class Part(Enum):
    """Part of the training side to which a prompt belongs."""

    TRAIN = "train"
    DEVELOPMENT = "development"
    NEITHER = "neither"
    """Was a development prompt until another prompt joined its cluster with a cluster that is trained on. It is used for neither."""


def part_of(own: str, joined: Iterable[str], is_chosen: Callable[[str], bool]) -> Part:
    """Return the part of a prompt.

    `own` is the cluster that the prompt got when it was first seen, which never changes. `joined` are all clusters that later prompts
    have joined with it, including itself. `is_chosen` tells whether a cluster is a development cluster. Because joins are never undone, a
    prompt that was trained on never becomes a development prompt.
    """
    if not is_chosen(own):
        return Part.TRAIN
    return Part.DEVELOPMENT if all(is_chosen(cluster) for cluster in joined) else Part.NEITHER


def is_development(salt: str, fraction: float) -> Callable[[str], bool]:
    """Return the function that tells by hash whether a cluster is a development cluster."""
    return lambda cluster: hash_share("development", salt, cluster) < fraction


def prompts_by_part(
    prompts: pl.DataFrame, parts: Callable[[Iterable[Digest]], Mapping[Digest, Part]], skipped: SkippedTexts = ()
) -> dict[Part, list[str]]:
    """Return the ids of the prompts (records.PROMPTS) of each part. `parts` maps roots of conversations to their parts.

    `skipped` is that of `root_id`.
    """
    roots = {row["prompt_id"]: root_id(orjson.loads(row["prompt"]), skipped) for row in prompts.select("prompt_id", "prompt").to_dicts()}
    found = parts(set(roots.values()))
    return {part: sorted(prompt for prompt, root in roots.items() if found[root] is part) for part in Part}


def development_rows(prompts: pl.DataFrame, scorable: Iterable[str], shown: pl.DataFrame, salt: str) -> pl.DataFrame:
    """Return records.DEVELOPMENT of at most MOST of the `prompts` (records.PROMPTS), chosen by hash.

    `scorable` are the ids of prompts whose new answers can be scored. `shown` (records.DEMONSTRATIONS) holds the answers that count as
    right; the one with the largest weight is taken. Prompts with neither are left out.
    """
    answers = _answers(shown)
    able = set(scorable)
    rows = [
        {**row, "reference": row["reference"] if row["prompt_id"] in able else None, "answer": answers.get(row["prompt_id"])}
        for row in prompts.select([column.name for column in PROMPTS]).to_dicts()
        if row["prompt_id"] in able or row["prompt_id"] in answers
    ]
    rows.sort(key=lambda row: (hash_share("development prompt", salt, row["prompt_id"]), row["prompt_id"]))
    return frame_of(rows[:MOST], DEVELOPMENT)


def cross_validation_rows(prompts: pl.DataFrame, scorable: Iterable[str], shown: pl.DataFrame, clusters: Mapping[str, str]) -> pl.DataFrame:
    """Return records.CROSS_VALIDATION of the `prompts` (records.PROMPTS) that are trained on: those of clusters that can be scored.

    The other arguments are those of `development_rows`. `clusters` maps ids of prompts to clusters of near-duplicates; a prompt that it
    lacks is a cluster of its own. Of more than CROSS_VALIDATED_CLUSTERS clusters, a part is chosen by hash, first among those whose answers
    can be scored.
    """
    answers, able = _answers(shown), set(scorable)
    rows = [
        {
            **row,
            "reference": row["reference"] if row["prompt_id"] in able else None,
            "answer": answers.get(row["prompt_id"]),
            "cluster": clusters.get(row["prompt_id"], row["prompt_id"]),
        }
        for row in prompts.select([column.name for column in PROMPTS]).to_dicts()
    ]
    answered = {row["cluster"] for row in rows if row["prompt_id"] in able}
    scored = answered | {row["cluster"] for row in rows if row["answer"] is not None}
    ranked = sorted(scored, key=lambda name: (name not in answered, hash_share("cross-validation", name), name))
    kept = set(ranked[:CROSS_VALIDATED_CLUSTERS])
    return frame_of([row for row in rows if row["cluster"] in kept], CROSS_VALIDATION)


def clusters_to_measure(rows: pl.DataFrame) -> int:
    """Return the number of clusters in records.CROSS_VALIDATION that a run can measure at least.

    A run scores answers if enough prompts have a reference, and otherwise the likelihood of known answers.
    """
    by_reference = rows.filter(pl.col("reference").is_not_null())["cluster"].n_unique()
    return by_reference if by_reference >= CROSS_VALIDATED_LEAST else rows["cluster"].n_unique()


def _answers(shown: pl.DataFrame) -> dict[str, str]:
    """Map the ids of prompts to the right answer with the largest weight."""
    best = shown.sort(["weight", "answer"], descending=[True, False]).unique("prompt_id", keep="first", maintain_order=True)
    return dict(best.select("prompt_id", "answer").iter_rows())
