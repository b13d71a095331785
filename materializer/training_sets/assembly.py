"""Assembles a training set: what each method trains on, the prompts that measure a training, and the facts by which a method is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from ratchet.contracts.data.datasets import CROSS_VALIDATED_BELOW, ProbeReport, Snapshot, TrainingSet
from ratchet.contracts.data.records import CROSS_VALIDATION, DEMONSTRATIONS, DEVELOPMENT, GRPO_PROMPTS, PAIRS, SAMPLES, Column
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.loop import Loop
from ratchet.contracts.ports import Artifacts
from ratchet.materializer.labels.conflicts import pooled, with_equal_calls
from ratchet.materializer.labels.silent_scorers import comparing_scorers
from ratchet.materializer.labels.teachers import TEACHER
from ratchet.materializer.lake.schemas import empty_frame, read_parquet
from ratchet.materializer.privacy.masked_values import has_unknown, placeholder_pattern
from ratchet.materializer.training_sets.account import account
from ratchet.materializer.training_sets.demonstrations import make_demonstrations, teachable, weigh_repeats
from ratchet.materializer.training_sets.development import (
    Part,
    clusters_to_measure,
    cross_validation_rows,
    development_rows,
)
from ratchet.materializer.training_sets.facts import label_noise, measure, slices_of
from ratchet.materializer.training_sets.pairs import make_pairs
from ratchet.materializer.training_sets.probe import group_rewards, in_order, scorable
from ratchet.materializer.training_sets.split import Split
from ratchet.rewards.scorer_set import ScorerSet

Store = Callable[[pl.DataFrame, Sequence[Column], Sequence[str]], Digest]
"""Stores the rows of a frame as an artifact, given its columns and the columns that order it, and returns its digest."""


class Assembly:
    """Assembles the training sets of one line."""

    def __init__(self, loop: Loop, rewards: ScorerSet, artifacts: Artifacts, split: Split, store: Store) -> None:
        self._loop = loop
        self._rewards = rewards
        self._artifacts = artifacts
        self._split = split
        self._store = store

    def assemble(self, name: str, snapshot: Snapshot, probe: ProbeReport | None) -> TrainingSet:
        """Return the training set of a snapshot and of the probe's answers to its prompts, with what each method would train on."""
        samples = read_parquet(self._artifacts.get(snapshot.samples))
        prompts = read_parquet(self._artifacts.get(snapshot.prompts))
        answers = read_parquet(self._artifacts.get(probe.answers)) if probe else empty_frame(SAMPLES)
        answers = answers.join(prompts, on=["prompt_id", "prompt"], how="semi", maintain_order="left")
        written = has_unknown(answers["answer"], answers, placeholder_pattern(self._loop.privacy), messages="prompt")
        answers = answers.with_columns(pl.when(~written).then(name).alias(name) for name in ("reward", "tier"))
        noise = label_noise(samples, snapshot.scorers)
        every = with_equal_calls(pl.concat([samples, answers]))
        evidence = pooled(every)
        usable = scorable(prompts, self._rewards, in_jobs=True)
        parts = self._split.by_part(prompts)
        measured = evidence.filter(pl.col("origin") != TEACHER)  # a teacher's error must not decide how long to train
        development = self._development(prompts, parts[Part.DEVELOPMENT], usable, measured, snapshot, noise)
        trained = pl.col("prompt_id").is_in(parts[Part.TRAIN])
        evidence, usable = evidence.filter(trained), usable.filter(trained)
        alike = self._split.clusters if self._split.near() else None
        rules, salt, comparing = self._loop.snapshot, self._loop.line.salt, comparing_scorers(self._rewards)
        pairs = make_pairs(evidence, rules, snapshot.scorers, noise, salt, alike, prompts.filter(trained), comparing)
        shown = self._shown(evidence, prompts.filter(trained), snapshot, noise)
        shown, repeats = (shown, 0) if alike is None else weigh_repeats(shown, alike, self._loop.snapshot.pairs_per_prompt)
        stored = (
            self._store(pairs.frame, PAIRS, ["prompt_id", "chosen", "rejected", "tier"]),
            self._store(in_order(usable, group_rewards(answers)), GRPO_PROMPTS, ["order", "prompt_id"]),
            self._store(shown, DEMONSTRATIONS, ["prompt_id", "answer"]),
        )
        sure = shown.filter(pl.col("source") != TEACHER)
        validation = self._cross_validation(prompts.filter(trained), usable, evidence, sure, development[1] if development else 0)
        return TrainingSet(
            name=name,
            snapshot=snapshot.content,
            probe=probe.answers if probe else None,
            pairs=stored[0],
            prompts=stored[1],
            demonstrations=stored[2],
            facts=measure(
                samples, prompts.filter(trained), pairs, shown, teachable(shown, every, snapshot.scorers, noise), noise, probe, answers
            ).model_copy(
                update={
                    "usable_prompts": len(usable),
                    "pair_prompts": None if pairs.clusters is None else pairs.frame["prompt_id"].n_unique(),
                    "pair_clusters": pairs.clusters,
                    "repeats": repeats,
                }
            ),
            content=digest([*stored, *([development[0]] if development else []), *([validation[0]] if validation else [])]),
            development=development[0] if development else None,
            development_prompts=development[1] if development else 0,
            cross_validation=validation[0] if validation else None,
            cross_validated_prompts=validation[1] if validation else 0,
            evidence=account(
                with_equal_calls(samples), evidence, prompts, parts, pairs, shown, self._loop.snapshot, snapshot.scorers, noise
            ),
            slices=slices_of({"pairs": pairs.frame, "prompts": usable, "demonstrations": shown}),
        )

    def _shown(self, evidence: pl.DataFrame, prompts: pl.DataFrame, snapshot: Snapshot, noise: float | None) -> pl.DataFrame:
        return make_demonstrations(evidence, prompts, self._loop.snapshot, snapshot.scorers, noise, self._loop.line.salt)

    def _development(
        self,
        prompts: pl.DataFrame,
        chosen: Sequence[str],
        usable: pl.DataFrame,
        evidence: pl.DataFrame,
        snapshot: Snapshot,
        noise: float | None,
    ) -> tuple[Digest, int] | None:
        """Return the artifact of the development prompts and their number; None without any."""
        own = pl.col("prompt_id").is_in(chosen)
        found = prompts.filter(own)
        shown = self._shown(evidence.filter(own), found, snapshot, noise)
        rows = development_rows(found, usable["prompt_id"].to_list(), shown, self._loop.line.salt)
        return (self._store(rows, DEVELOPMENT, ["prompt_id"]), len(rows)) if len(rows) else None

    def _cross_validation(
        self, prompts: pl.DataFrame, usable: pl.DataFrame, evidence: pl.DataFrame, shown: pl.DataFrame, development: int
    ) -> tuple[Digest, int] | None:
        """Return the artifact of the training prompts for a cross-validation, and the number of their clusters that can be scored.

        None if it is not needed because of the number of `development` prompts.
        """
        if development >= CROSS_VALIDATED_BELOW:
            return None
        known = pl.concat([usable["prompt_id"], shown["prompt_id"], evidence.filter(pl.col("reward").is_not_null())["prompt_id"]])
        found = prompts.filter(pl.col("prompt_id").is_in(known.unique().to_list()))
        if not len(found):
            return None
        texts = dict(found.select("prompt_id", "prompt").iter_rows())
        alike = self._split.clusters(texts) if self._split.near() else {}
        rows = cross_validation_rows(found, usable["prompt_id"].to_list(), shown, alike)
        return self._store(rows, CROSS_VALIDATION, ["prompt_id"]), clusters_to_measure(rows)
