"""Builds preference pairs: a better and a worse answer to one prompt, with a weight for their evidence.

The rewards of both answers come from the same tier, are on their side of the thresholds, and differ by the margin. The margin must
also hold on the scorers that scored both answers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from contracts.data.datasets import ScorerVersion
from contracts.data.records import PAIRS, Tier
from contracts.ids import hash_share
from contracts.loop import SnapshotSettings
from materializer.labels.conflicts import without_contradictions
from materializer.labels.label_confidence import believe
from materializer.lake.schemas import frame_of
from rewards.scorer_set import CORRECTION

_CANDIDATES = 64
"""Maximum number of candidates per prompt before caps. Those with the widest margins are kept; more add no information."""


@dataclass
class Pairs:
    """The pairs, and the reasons why the other candidates were dropped."""

    frame: pl.DataFrame
    """records.PAIRS"""
    own: list[tuple[bool, bool]]
    """(chosen, rejected) per pair: whether a version of this line wrote the answer, in the probe or by the router's attribution."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> number of candidates without a pair. `contested` counts answers with contradictory rewards."""
    clusters: int | None = None
    """Number of clusters of near-duplicate prompts; None if they were not searched."""


def make_pairs(
    samples: pl.DataFrame,
    settings: SnapshotSettings,
    scorers: Sequence[ScorerVersion],
    noise: float | None,
    salt: str,
    cluster: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None,
) -> Pairs:
    """Build pairs from `samples` (records.SAMPLES), with at most `pairs_per_prompt` per prompt and `pairs_per_person` per user.

    `noise` is the share of single ratings that are wrong; None means not measured. `salt` fixes the order of equal candidates. The
    weight of a pair is P(the order is right) - P(it is reversed). For user ratings this is P(chosen right) - P(rejected right); for
    other tiers it is 1.

    `cluster` maps prompt ids with their prompts (JSON) to clusters of near-duplicates. All pairs of a cluster together weigh as much as
    those of one prompt with the most pairs.
    """
    dropped: Counter[str] = Counter()
    taken = []
    persons: Counter[str] = Counter()
    prompts: Counter[str] = Counter()
    weights = {(version.tier, version.name): version.weight for version in scorers}
    believed = samples.with_columns(pl.Series("right", believe(samples, scorers, noise), dtype=pl.Float64))
    clear, contested = without_contradictions(believed, settings)
    dropped.update({"contested": contested} if contested else {})
    for row in _candidates(clear, settings, salt).iter_rows(named=True):
        people = {row["user"], row["user_rejected"]} - {None}
        row["weight"] = row["right"] - row["right_rejected"] if row["tier"] == Tier.FEEDBACK else 1.0
        if not _common_margin(row, settings.margin, weights):
            dropped["margin_on_common_parts"] += 1
        elif row["weight"] <= 0:
            dropped["noise"] += 1
        elif prompts[row["prompt_id"]] >= settings.pairs_per_prompt:
            dropped["per_prompt"] += 1
        elif any(persons[person] >= settings.pairs_per_person for person in people):
            dropped["per_person"] += 1
        else:
            prompts[row["prompt_id"]] += 1
            persons.update(people)
            taken.append(row)
    near = cluster({row["prompt_id"]: row["prompt"] for row in taken}) if cluster else None
    if near is not None:
        sizes = Counter(near[row["prompt_id"]] for row in taken)
        for row in taken:
            row["weight"] *= min(1.0, settings.pairs_per_prompt / sizes[near[row["prompt_id"]]])
    found = None if near is None else len(set(near.values()))
    return Pairs(frame_of(taken, PAIRS), [(row["ours"], row["ours_rejected"]) for row in taken], dict(sorted(dropped.items())), found)


def _candidates(samples: pl.DataFrame, settings: SnapshotSettings, salt: str) -> pl.DataFrame:
    """Return chosen and rejected answers as one row per candidate.

    The best candidate of every prompt comes before the second candidate of any prompt. Ties are in pseudo-random order.
    """
    keys = ["prompt_id", "tier"]
    kept = ["answer", "reward", "right", "user", "origin", "ours", "parts"]
    ours = (pl.col("origin") == "probe") | pl.col("model_version").is_not_null()
    scored = (
        samples.with_columns(ours.alias("ours"))
        .filter(pl.col("reward").is_not_null())
        .sort("prompt_id", "answer", "origin", "trace", nulls_last=True)
    )
    distinct = scored.unique(["prompt_id", "tier", "answer", "reward"], keep="first", maintain_order=True)
    chosen = distinct.filter(pl.col("reward") >= settings.chosen_min).select(*keys, "prompt", "slice", "tools", *kept)
    rejected = distinct.filter(pl.col("reward") < settings.rejected_max).select(
        *keys, *[pl.col(name).alias(f"{name}_rejected") for name in kept]
    )
    both = chosen.join(rejected, on=keys, how="inner").with_columns((pl.col("reward") - pl.col("reward_rejected")).alias("margin"))
    wide = both.filter((pl.col("margin") >= settings.margin) & (pl.col("answer") != pl.col("answer_rejected")))
    own = (pl.col("origin") == "probe").cast(pl.Int8) + (pl.col("origin_rejected") == "probe").cast(pl.Int8)
    ranked = (
        wide.with_columns(
            own.alias("own"),
            pl.concat_str("answer", pl.lit("\x1f"), "answer_rejected")
            .map_elements(lambda text: hash_share("pair", salt, text), return_dtype=pl.Float64)
            .alias("draw"),
            pl.col("prompt_id").map_elements(lambda prompt: hash_share("prompt", salt, prompt), return_dtype=pl.Float64).alias("turn"),
        )
        .sort(["margin", "own", "draw", "answer", "answer_rejected"], descending=[True, True, False, False, False])
        .with_columns(pl.int_range(pl.len()).over("prompt_id").alias("rank"))
    )
    return (
        ranked.filter(pl.col("rank") < _CANDIDATES)
        .sort("rank", "turn", "prompt_id")
        .rename({"answer": "chosen", "answer_rejected": "rejected"})
    )


def _common_margin(row: Mapping[str, Any], margin: float, weights: Mapping[tuple[Tier, str], float]) -> bool:
    """Return whether the margin holds on the tier's scorers that scored both answers.

    Without such a scorer, the pair is valid only if one of its answers is a user's correction.
    """
    parts, other = json.loads(row["parts"]), json.loads(row["parts_rejected"])
    own = {name: weight for (tier, name), weight in weights.items() if tier == row["tier"]}
    common = [name for name in own if parts.get(name) is not None and other.get(name) is not None]
    if not common:
        return CORRECTION in parts or CORRECTION in other
    total = sum(own[name] for name in common)
    difference = sum(own[name] * (parts[name] - other[name]) for name in common) / total
    return bool(difference >= margin - 1e-9)
