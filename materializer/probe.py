"""Asks the champion training prompts several times each, because traffic has one answer per prompt and so neither pairs nor
groups. Probe answers are samples of origin `probe`: never feedback, never evidence for a rollout. Knows no lake."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import orjson
import polars as pl

from contracts.errors import Retryable
from contracts.evaluation import ChatAnswer, ChatRequest
from contracts.loop import ProbeSettings
from contracts.ports import ModelClient, Progress
from contracts.records import SAMPLES
from materializer.holdout import share
from materializer.schemas import frame_of
from rewards.panel import Panel

MIXED = 1e-6
"""Rewards of one prompt that differ by more are mixed."""
_LEAST_UNBIASED = 20
"""Scored prompts with a reference that did not come from an error of the model, from which on these alone say how good it is."""


@dataclass(frozen=True)
class Probed:
    """The answers and what they measure."""

    answers: pl.DataFrame
    """records.SAMPLES"""
    prompts: int
    failures: int


def scorable(prompts: pl.DataFrame, panel: Panel) -> pl.DataFrame:
    """The prompts whose answers some scorer may score: those with a reference, and the others where one needs none."""
    return prompts if panel.without_reference() else prompts.filter(pl.col("reference").is_not_null())


def choose_prompts(known: pl.DataFrame, most: int, salt: str) -> pl.DataFrame:
    """At most `most` of the prompts, by hash: the same prompts for the same snapshot."""
    ranks = [share("probe", salt, prompt) for prompt in known["prompt_id"].to_list()]
    return known.with_columns(pl.Series("rank", ranks, dtype=pl.Float64)).sort("rank", "prompt_id").head(most).drop("rank")


def ask(prompts: pl.DataFrame, settings: ProbeSettings, panel: Panel, client: ModelClient, salt: str, progress: Progress) -> Probed:
    """Asks each prompt `settings.samples` times. Retryable where nothing at all is answered: the server is the trouble then."""
    asked = [row for row in prompts.to_dicts() for _ in range(settings.samples)]
    if not asked:
        return Probed(frame_of([], SAMPLES), 0, 0)
    requests = [_request(row, index, settings, salt) for index, row in enumerate(asked)]
    answers = client.chat(requests, progress)
    answered = [(row, answer.text) for row, answer in zip(asked, answers, strict=True) if answer.text is not None]
    if not answered:
        raise Retryable(f"the probe got no answer to {len(asked)} requests ({_first_error(answers)}); check the champion's server")
    return Probed(frame_of(_score(answered, panel), SAMPLES), len(prompts), len(asked) - len(answered))


def _request(row: Mapping[str, Any], index: int, settings: ProbeSettings, salt: str) -> ChatRequest:
    seed = int(share("seed", salt, row["prompt_id"], index) * (1 << 31))
    messages = tuple(orjson.loads(row["prompt"]))
    return ChatRequest(messages=messages, temperature=settings.temperature, max_tokens=settings.max_tokens, seed=seed)


def _first_error(answers: Sequence[ChatAnswer]) -> str:
    return next((answer.error for answer in answers if answer.error), "no reason given")


def _score(answered: Sequence[tuple[Mapping[str, Any], str]], panel: Panel) -> list[dict[str, Any]]:
    samples = [{"prompt": orjson.loads(row["prompt"]), "answer": text, "reference": row["reference"]} for row, text in answered]
    labels = panel.label_unseen(samples)
    return [
        {
            "prompt_id": row["prompt_id"],
            "prompt": row["prompt"],
            "answer": text,
            "reward": label.reward,
            "tier": label.tier.value if label.tier else None,
            "parts": label.parts_json,
            "votes": 0,
            "repeats": 1,
            "trace": None,
            "user": None,
            "origin": "probe",
            "model_version": None,
            "slice": row["slice"],
        }
        for (row, text), label in zip(answered, labels, strict=True)
    ]


def group_rewards(answers: pl.DataFrame) -> dict[str, list[float]]:
    """Rewards per prompt, of prompts with at least two scored answers."""
    scored = answers.filter(pl.col("reward").is_not_null()).group_by("prompt_id").agg("reward").sort("prompt_id")
    return {prompt: rewards for prompt, rewards in scored.iter_rows() if len(rewards) > 1}


def coverage(groups: Mapping[str, Sequence[float]]) -> float | None:
    """Share of groups with mixed rewards: what GRPO can learn from."""
    return fmean(max(group) - min(group) > MIXED for group in groups.values()) if groups else None


def best_of(groups: Mapping[str, Sequence[float]]) -> float | None:
    """Mean over prompts of the best reward."""
    return fmean(max(group) for group in groups.values()) if groups else None


def usual(answers: pl.DataFrame, prompts: pl.DataFrame) -> tuple[float | None, float | None]:
    """(mean over prompts of the reward of the most frequent answer, or of several as frequent; its standard error); None without rewards.

    `prompts`: records.PROMPTS of those that were asked. The mean over all draws would be lower: a model that is right on
    every prompt errs in draws at temperature 1.
    """
    scored = answers.filter(pl.col("reward").is_not_null())
    counted = scored.group_by("prompt_id", "answer").agg(pl.len(), pl.col("reward").mean())
    most = counted.filter(pl.col("len") == pl.col("len").max().over("prompt_id"))
    rewards = most.group_by("prompt_id").agg(pl.col("reward").mean()).sort("prompt_id")
    found = unbiased(rewards, prompts, _LEAST_UNBIASED)["reward"].to_list()
    return (fmean(found), pstdev(found) / math.sqrt(len(found))) if found else (None, None)


def unbiased(rows: pl.DataFrame, prompts: pl.DataFrame, least: int) -> pl.DataFrame:
    """The rows (one per `prompt_id`) of prompts whose reference says nothing of an answer of the model, where those are `least` or
    more; else all. A prompt that has its reference from a correction was answered wrong when it was logged."""
    fair = prompts.filter(pl.col("reference_kind").is_in(["reference", "logged"]))["prompt_id"].to_list()
    alone = rows.filter(pl.col("prompt_id").is_in(fair))
    return alone if len(alone) >= least else rows
