"""How far the policy that wrote the logged answers is from the model that was probed, measured from texts alone: no server has to
give log-probabilities, and answers of models that nobody serves any more can be compared."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from statistics import fmean, pstdev

import polars as pl

from materializer.probe import unbiased

_LEAST_PROMPTS = 20
"""Prompts with answers of both below which the distance counts as unmeasured."""
_EQUAL = 9
"""Decimals to which two likenesses count as the same."""


def policy_distance(samples: pl.DataFrame, answers: pl.DataFrame, prompts: pl.DataFrame) -> tuple[float | None, float | None]:
    """(distance, its standard error over prompts); None where too few prompts have logged answers and two draws or more.

    `samples`: records.SAMPLES of traffic; `answers`: those of the probe; `prompts`: records.PROMPTS. A logged answer is put among
    the model's k draws to the same prompt; how typical each of the k + 1 is, is its mean likeness to the others. Had the model
    written the logged answer in the same way, it would be the least typical of them by chance 1 / (k + 1) (exchangeability, as in
    conformal prediction: Vovk, Gammerman and Shafer 2005). The distance is how much oftener it is: 0 for the model's own answers,
    1 for answers that it never gives, the share of such in a mixture, and down to -1 / k for answers that are likelier than its
    draws, as those of a lower temperature.
    """
    drawn: dict[str, list[str]] = defaultdict(list)
    for prompt, answer in answers.sort("prompt_id", "answer").select("prompt_id", "answer").iter_rows():
        drawn[prompt].append(answer)
    logged = samples.filter((pl.col("origin") == "traffic") & pl.col("prompt_id").is_in([p for p in drawn if len(drawn[p]) > 1]))
    grouped = unbiased(logged.group_by("prompt_id").agg("answer", "repeats"), prompts, _LEAST_PROMPTS).sort("prompt_id")
    found = [_of_prompt(texts, repeats, drawn[prompt]) for prompt, texts, repeats in grouped.iter_rows()]
    if len(found) < _LEAST_PROMPTS:
        return None, None
    return fmean(found), pstdev(found) / math.sqrt(len(found))


def _of_prompt(texts: list[str], repeats: list[int], drawn: list[str]) -> float:
    draws = [Counter(text.split()) for text in drawn]
    among = [[_likeness(one, other) for other in draws] for one in draws]
    inner = [sum(row) - row[i] for i, row in enumerate(among)]
    outside = [_outside([_likeness(Counter(text.split()), draw) for draw in draws], inner) for text in texts]
    share = sum(out * times for out, times in zip(outside, repeats, strict=True)) / sum(repeats)
    chance = 1.0 / (len(draws) + 1)
    return (share - chance) / (1.0 - chance)


def _outside(to_draws: list[float], inner: list[float]) -> float:
    """1 where every draw is more typical than the logged answer, its part of 1 where some are as typical, 0 where one is less."""
    typical = round(sum(to_draws), _EQUAL)
    others = [round(own + to, _EQUAL) for own, to in zip(inner, to_draws, strict=True)]
    return 0.0 if min(others) < typical else 1.0 / (1 + others.count(typical))


def _likeness(one: Counter[str], other: Counter[str]) -> float:
    """Dice coefficient of the two bags of words, in [0, 1]; two empty answers are alike."""
    total = one.total() + other.total()
    return 2.0 * (one & other).total() / total if total else 1.0
