"""Builds preference pairs: a better and a worse answer to one prompt, with a weight for their evidence.

The rewards of both answers come from the same tier, are on their side of the thresholds, and differ by the margin. The margin must
also hold on the scorers that scored both answers. If a prompt has fewer of these pairs than its limit, a right answer that a person or
the application gave is paired with answers that are known to be wrong. An answer that says the same as the right answer with which a
scorer compared it, or as the one that is rated better, is in no pair as the worse one: only its form differs.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ratchet.contracts.conversation import person_answer
from ratchet.contracts.data.datasets import ScorerVersion
from ratchet.contracts.data.records import PAIRS, Tier
from ratchet.contracts.ids import hash_share
from ratchet.contracts.loop import SnapshotSettings
from ratchet.materializer.labels.conflicts import without_contradictions
from ratchet.materializer.labels.label_confidence import believe
from ratchet.materializer.labels.same_answer import is_same_answer
from ratchet.materializer.labels.teachers import TEACHER
from ratchet.materializer.lake.schemas import frame_of
from ratchet.rewards.scorer_set import CORRECTION

_CANDIDATES = 64
"""Maximum number of candidates per prompt before caps. Those with the widest margins are kept; more add no information."""
_SIDES = ("prompt_id", "tier", "chosen", "rejected")
_KNOWN_WRONG = (Tier.VERIFIABLE.value, Tier.FEEDBACK.value)
"""Tiers whose wrong answers are compared with a given right answer, the more certain one first. A judge's score is no such knowledge."""


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
    causes: dict[tuple[str, str], str] = field(default_factory=dict)
    """(prompt_id, rejected answer) -> the reason in `dropped` for its first candidate without a pair."""


def make_pairs(
    samples: pl.DataFrame,
    settings: SnapshotSettings,
    scorers: Sequence[ScorerVersion],
    noise: float | None,
    salt: str,
    cluster: Callable[[Mapping[str, str]], Mapping[str, str]] | None = None,
    prompts: pl.DataFrame | None = None,
    comparing: Collection[str] | None = None,
) -> Pairs:
    """Build pairs from `samples` (records.SAMPLES), with at most `pairs_per_prompt` per prompt and `pairs_per_person` per user.

    `prompts` (records.PROMPTS) holds the references, which count as right answers if `references_are_answers` is on. No answer that says
    the same as one is wrong by a scorer of `comparing`, which are those that compare answers with references. None: all verifiable ones.

    `noise` is the share of single ratings that are wrong; None means not measured. `salt` fixes the order of equal candidates. The
    weight of a pair is P(the order is right) - P(it is reversed). For user ratings, signals and answers of a teacher this is P(chosen
    right) - P(rejected right); otherwise it is 1.

    `cluster` maps prompt ids with their prompts (JSON) to clusters of near-duplicates. All pairs of a cluster together weigh as much as
    those of one prompt with the most pairs.
    """
    dropped: Counter[str] = Counter()
    causes: dict[tuple[str, str], str] = {}
    taken = []
    persons: Counter[str] = Counter()
    of_prompt: Counter[str] = Counter()
    weights = {(version.tier, version.name): version.weight for version in scorers}
    believed = samples.with_columns(pl.Series("right", believe(samples, scorers, noise), dtype=pl.Float64))
    clear, contested = without_contradictions(believed, settings)
    dropped.update({"contested": contested} if contested else {})
    rights = {} if prompts is None else dict(prompts.select("prompt_id", "reference").drop_nulls().iter_rows())
    compared = list(_candidates(clear, settings, salt).iter_rows(named=True))
    for row in [*compared, *_with_given(clear, prompts, settings, salt, {tuple(row[name] for name in _SIDES) for row in compared})]:
        people = {row["user"], row["user_rejected"]} - {None}
        estimated = row["tier"] in (Tier.FEEDBACK, Tier.TEACHER, Tier.SIGNAL)
        row["weight"] = row["right"] - row["right_rejected"] if estimated else 1.0
        why = None
        if _differ_in_form(row, rights, comparing):
            why = "same_answer"
        elif not row.get("given") and row["tier"] != Tier.SIGNAL and not _common_margin(row, settings.margin, weights):
            why = "margin_on_common_parts"
        elif row["weight"] <= 0:
            why = "noise"
        elif of_prompt[row["prompt_id"]] >= settings.pairs_per_prompt:
            why = "per_prompt"
        elif any(persons[person] >= settings.pairs_per_person for person in people):
            why = "per_person"
        if why is not None:
            dropped[why] += 1
            causes.setdefault((row["prompt_id"], row["rejected"]), why)
            continue
        of_prompt[row["prompt_id"]] += 1
        persons.update(people)
        taken.append(row)
    near = cluster({row["prompt_id"]: row["prompt"] for row in taken}) if cluster else None
    if near is not None:
        sizes = Counter(near[row["prompt_id"]] for row in taken)
        for row in taken:
            row["weight"] *= min(1.0, settings.pairs_per_prompt / sizes[near[row["prompt_id"]]])
    found = None if near is None else len(set(near.values()))
    return Pairs(
        frame_of(taken, PAIRS), [(row["ours"], row["ours_rejected"]) for row in taken], dict(sorted(dropped.items())), found, causes
    )


def _differ_in_form(row: Mapping[str, Any], rights: Mapping[str, str], comparing: Collection[str] | None) -> bool:
    """Return whether the rejected answer says the same as the right answer with which a scorer compared it, or as the one that is rated
    better.

    A scorer without a reference may ask for a form, so its pairs are kept.
    """
    better = row["chosen"]
    if row["tier"] == Tier.VERIFIABLE:
        scores = json.loads(row["parts_rejected"])
        better = rights.get(row["prompt_id"]) if comparing is None or any(scores.get(name) == 0 for name in comparing) else None
    return better is not None and is_same_answer(row["rejected"], better)


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


def _with_given(
    samples: pl.DataFrame, prompts: pl.DataFrame | None, settings: SnapshotSettings, salt: str, known: Collection[tuple[Any, ...]]
) -> list[dict[str, Any]]:
    """Return candidates whose chosen answer was given as the right one: a correction, an answer of a teacher that counts, or a reference
    if `references_are_answers` is on.

    The rejected answer is wrong by a verifiable score, or more likely wrong than right by its ratings. Its tier is that of the pair. A
    given answer that is known to be wrong in the same way is not used. Candidates in `known`, a set of _SIDES, are left out. The order is
    that of `_candidates`.
    """
    given = given_answers(samples, prompts, settings)
    distinct: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in samples.sort("prompt_id", "answer", "origin", "trace", nulls_last=True).iter_rows(named=True):
        wrong = is_known_wrong(row["tier"], row["right"]) and row["reward"] is not None and row["reward"] < settings.rejected_max
        if wrong and 1.0 - row["reward"] >= settings.margin:
            distinct.setdefault((row["prompt_id"], row["tier"], row["answer"]), row)
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for (prompt, tier, answer), row in distinct.items():
        for right in given.get(prompt, ()):
            refuted = any((prompt, other, right["answer"]) in distinct for other in _KNOWN_WRONG)
            if refuted or (prompt, tier, right["answer"], answer) in known:
                continue
            known_wrong = {**{f"{name}_rejected": row[name] for name in ("right", "user", "parts")}, "ours_rejected": _is_own(row)}
            decided = Tier.TEACHER.value if right["taught"] else tier  # the weaker of the two answers' evidence
            pair = {"rejected": answer, "tier": decided, "margin": 1.0 - row["reward"], "ours": False, "given": True}
            draw = hash_share("pair", salt, f"{right['answer']}\x1f{answer}")
            order = (_KNOWN_WRONG.index(tier), row["right"], row["origin"] != "probe", draw, right["answer"], answer)
            found[prompt].append((*order, right | known_wrong | pair | {"chosen": right["answer"]}))
    ranked = [
        (rank, hash_share("prompt", salt, prompt), prompt, candidate[-1])
        for prompt, candidates in found.items()
        for rank, candidate in enumerate(sorted(candidates, key=lambda one: one[:-1])[:_CANDIDATES])
    ]
    return [row for *_, row in sorted(ranked, key=lambda one: one[:-1])]


def given_answers(samples: pl.DataFrame, prompts: pl.DataFrame | None, settings: SnapshotSettings) -> dict[str, list[dict[str, Any]]]:
    """Map the ids of prompts to the distinct right answers that were given for them, with the columns of a pair's chosen side."""
    columns = ["prompt_id", "prompt", "slice", "tools", "answer", "user", "right", "taught"]
    taught = pl.col("origin") == TEACHER
    given = samples.filter(((pl.col("origin") == CORRECTION) & (pl.col("reward") >= settings.chosen_min)) | taught)
    certain = pl.when(taught).then("reward").otherwise(1.0).alias("right")
    corrected = given.with_columns(certain, (taught & (pl.col("tier") == Tier.TEACHER.value)).alias("taught"))
    rows = corrected.sort("prompt_id", "answer", "trace", nulls_last=True).select(columns).to_dicts()
    if prompts is not None and settings.references_are_answers:
        rows = [
            {name: row[name] for name in columns if name in row}
            | {"answer": person_answer(row["reference"], row["tools"]), "user": None, "right": 1.0, "taught": False}
            for row in prompts.filter(pl.col("reference_kind").is_in(["reference", "logged"])).to_dicts()
        ] + rows
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        found[row["prompt_id"]].setdefault(row["answer"], row)
    return {prompt: list(answers.values()) for prompt, answers in found.items()}


def is_known_wrong(tier: str | None, right: float) -> bool:
    """Return whether an answer with this tier and this P(right) is known to be wrong, so that a given right answer is better."""
    return tier in _KNOWN_WRONG and right < 0.5


def _is_own(row: Mapping[str, Any]) -> bool:
    return row["origin"] == "probe" or row["model_version"] is not None


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
