"""The probe: samples several answers of the start model to each selected training prompt, and scores them.

Prompts that the champion was not trained on come first. It may know the others by heart, and would seem to have nothing to learn.

Traffic usually has one answer per prompt, which gives neither pairs nor groups. Probe answers have the origin `probe`. They are never
used as feedback or as evidence for a rollout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import orjson
import polars as pl

from ratchet.contracts.data.datasets import is_mixed
from ratchet.contracts.data.records import SAMPLES, ProbeRewards
from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.evaluation import ChatRequest
from ratchet.contracts.failure_reasons import counted, told
from ratchet.contracts.ids import hash_share
from ratchet.contracts.loop import ProbeSettings
from ratchet.contracts.ports import ModelClient, Progress
from ratchet.materializer.lake.schemas import frame_of
from ratchet.rewards.scorer_set import ScorerSet

RIGHT = 0.5
"""Reward above which an answer of the probe counts as right."""
_LEAST = 20
"""Minimum number of scored prompts that are new to the model, or have an unbiased reference. From this number on, `usual` is measured on
these prompts only."""

_REFUSALS = ("HTTP 400", "HTTP 413", "HTTP 422")
"""How failures begin with which a server refuses a request itself: it is too long for the context, or the chat template rejects it."""


@dataclass(frozen=True)
class Probed:
    """Scored answers of the probe, and counts."""

    answers: pl.DataFrame
    """records.SAMPLES"""
    prompts: int
    """Number of prompts that were sent."""
    failures: int
    """Number of requests without an answer."""
    reasons: Mapping[str, int]
    """Why they have none -> how many."""
    cut: int | None
    """Number of answers that ended at the limit of tokens. None if the server does not say how they ended."""


def scorable(prompts: pl.DataFrame, scorer_set: ScorerSet, in_jobs: bool = False) -> pl.DataFrame:
    """Return the prompts whose answers can be scored: all prompts if some scorer needs no reference, else those with a reference.

    With `in_jobs`, only the scorers that run in training jobs count.
    """
    return prompts if scorer_set.without_reference(in_jobs) else prompts.filter(pl.col("reference").is_not_null())


def choose_prompts(prompts: pl.DataFrame, most: int, salt: str, known: Set[str]) -> pl.DataFrame:
    """Select at most `most` prompts by hash, first those that are not `known` to the champion. The same `salt` gives the same selection."""
    ranks = [(prompt in known) + hash_share("probe", salt, prompt) for prompt in prompts["prompt_id"].to_list()]
    return prompts.with_columns(pl.Series("rank", ranks, dtype=pl.Float64)).sort("rank", "prompt_id").head(most).drop("rank")


def ask(
    prompts: pl.DataFrame, settings: ProbeSettings, scorer_set: ScorerSet, client: ModelClient, salt: str, progress: Progress
) -> Probed:
    """Request `settings.samples` answers to each prompt, and score them.

    Raises Retryable if no request is answered at all, which indicates a problem of the server, and Permanent if the server refuses all
    of them, because another try would be refused as well.
    """
    asked = [row for row in prompts.to_dicts() for _ in range(settings.samples)]
    if not asked:
        return Probed(frame_of([], SAMPLES), 0, 0, {}, None)
    requests = [_request(row, index, settings, salt) for index, row in enumerate(asked)]
    answers = client.chat(requests, progress)
    answered = [(row, answer.text) for row, answer in zip(asked, answers, strict=True) if answer.text is not None]
    reasons = counted(answer.failure for answer in answers if answer.text is None)
    if not answered and all(answer.failure.startswith(_REFUSALS) for answer in answers):
        raise Permanent(
            f"the model server refuses all {len(asked)} requests of the probe: {told(reasons)}; adopt, in a new line, a model whose "
            "context and chat template suit these prompts, or log other prompts"
        )
    if not answered:
        raise Retryable(f"the probe got no answer to any of {len(asked)} requests: {told(reasons)}; check the model server")
    ends = [answer.cut for answer in answers if answer.text is not None]
    cut = None if None in ends else sum(map(bool, ends))
    return Probed(frame_of(_score(answered, scorer_set), SAMPLES), len(prompts), len(asked) - len(answered), reasons, cut)


def _request(row: Mapping[str, Any], index: int, settings: ProbeSettings, salt: str) -> ChatRequest:
    seed = int(hash_share("seed", salt, row["prompt_id"], index) * (1 << 31))
    messages, tools = tuple(orjson.loads(row["prompt"])), tuple(orjson.loads(row["tools"] or "[]"))
    return ChatRequest(messages=messages, tools=tools, temperature=settings.temperature, max_tokens=settings.max_tokens, seed=seed)


def _score(answered: Sequence[tuple[Mapping[str, Any], str]], scorer_set: ScorerSet) -> list[dict[str, Any]]:
    samples = [{"prompt": orjson.loads(row["prompt"]), "answer": text, "reference": row["reference"]} for row, text in answered]
    labels = scorer_set.label_unseen(samples)
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
            "tools": row["tools"],
        }
        for (row, text), label in zip(answered, labels, strict=True)
    ]


def group_rewards(answers: pl.DataFrame) -> dict[str, list[float]]:
    """Return prompt id -> rewards, for the prompts with at least two scored answers."""
    scored = answers.filter(pl.col("reward").is_not_null()).group_by("prompt_id").agg("reward").sort("prompt_id")
    return {prompt: rewards for prompt, rewards in scored.iter_rows() if len(rewards) > 1}


def coverage(groups: Mapping[str, Sequence[float]]) -> float | None:
    """Return the share of groups with mixed rewards, from which GRPO can learn; None without groups."""
    return fmean(map(is_mixed, groups.values())) if groups else None


def never_right(answers: pl.DataFrame, prompts: pl.DataFrame) -> float | None:
    """Return the share of probed prompts whose answers have equal rewards and are not right although a reference is known.

    `answers` are records.SAMPLES of the probe, `prompts` records.PROMPTS. Only prompts with at least two scored answers count; None
    without such prompts.
    """
    known = set(prompts.filter(pl.col("reference").is_not_null())["prompt_id"].to_list())
    groups = group_rewards(answers)
    lost = (prompt in known and max(rewards) <= RIGHT and not is_mixed(rewards) for prompt, rewards in groups.items())
    return fmean(lost) if groups else None


def in_order(prompts: pl.DataFrame, groups: Mapping[str, Sequence[float]]) -> pl.DataFrame:
    """Return the prompts for GRPO with the column `probe_rewards` (records.GRPO_PROMPTS), and their place in the column `order`.

    Prompts with mixed rewards come first, then prompts without probe rewards, then prompts with equal rewards.
    """
    found = {prompt: ProbeRewards.MIXED if is_mixed(rewards) else ProbeRewards.EQUAL for prompt, rewards in groups.items()}
    rewards = [found.get(prompt) for prompt in prompts["prompt_id"].to_list()]
    places = [(ProbeRewards.MIXED, None, ProbeRewards.EQUAL).index(one) for one in rewards]
    return prompts.with_columns(
        pl.Series("probe_rewards", [one and one.value for one in rewards], dtype=pl.String), pl.Series("order", places, dtype=pl.Int8)
    )


def best_of(groups: Mapping[str, Sequence[float]]) -> float | None:
    """Return the mean over prompts of the best reward; None without groups."""
    return fmean(max(group) for group in groups.values()) if groups else None


def mean_reward(answers: pl.DataFrame) -> float | None:
    """Return the mean reward of the scored answers; None without any."""
    rewards = answers["reward"].drop_nulls()
    return float(rewards.sum()) / len(rewards) if len(rewards) else None


def usual(answers: pl.DataFrame, prompts: pl.DataFrame, known: Set[str]) -> tuple[float | None, float | None, int | None]:
    """Return (mean over prompts of the reward of the most frequent answer, its standard error, number of prompts if all are new).

    Only prompts that are not `known` to the model count if there are at least _LEAST of them; else all count, and the number is None. All
    are None without rewards. If several answers are equally frequent, the mean of their rewards counts. `prompts` is records.PROMPTS of
    the prompts sent. The mean over all draws would be lower: at temperature 1, even a model whose usual answers are all right makes errors.
    """
    scored = answers.filter(pl.col("reward").is_not_null())
    counted = scored.group_by("prompt_id", "answer").agg(pl.len(), pl.col("reward").mean())
    most = counted.filter(pl.col("len") == pl.col("len").max().over("prompt_id"))
    rewards = most.group_by("prompt_id").agg(pl.col("reward").mean()).sort("prompt_id")
    unknown = rewards.filter(~pl.col("prompt_id").is_in(sorted(known)))
    new = len(unknown) >= _LEAST
    found = unbiased(unknown if new else rewards, prompts, _LEAST)["reward"].to_list()
    return (fmean(found), pstdev(found) / math.sqrt(len(found)), len(found) if new else None) if found else (None, None, None)


def unbiased(rows: pl.DataFrame, prompts: pl.DataFrame, least: int) -> pl.DataFrame:
    """Return the `rows` (one per `prompt_id`) of prompts with an unbiased reference if there are at least `least`; else all rows.

    A reference is unbiased if it comes from a reviewer or from the application. A reference from a correction is biased, because the
    logged answer to that prompt was wrong.
    """
    fair = prompts.filter(pl.col("reference_kind").is_in(["reference", "logged"]))["prompt_id"].to_list()
    alone = rows.filter(pl.col("prompt_id").is_in(fair))
    return alone if len(alone) >= least else rows
