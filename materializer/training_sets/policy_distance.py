"""Measures the distance between the policy that wrote the logged answers and the probed model, from texts only.

No server has to return log-probabilities. The method also works for models that are no longer served.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from statistics import fmean, pstdev

import polars as pl

from ratchet.contracts.conversation import answer_message
from ratchet.materializer.training_sets.probe import unbiased

_LEAST_PROMPTS = 20
"""Minimum number of prompts with both logged and probe answers. With fewer prompts, the distance is not measured."""
_JSON_WORDS = re.compile(r"[\w.-]+")
_EQUAL = 9
"""Number of decimals to which two similarities are compared."""


def policy_distance(samples: pl.DataFrame, answers: pl.DataFrame, prompts: pl.DataFrame) -> tuple[float | None, float | None]:
    """Return (distance, its standard error over prompts).

    Both are None if fewer than _LEAST_PROMPTS prompts have a logged answer and at least two draws.

    `samples`: records.SAMPLES, of which only traffic counts. `answers`: records.SAMPLES of the probe. `prompts`: records.PROMPTS.

    Each logged answer is compared with the model's k draws (probe answers) to the same prompt. The typicality of each of these k + 1
    answers is its mean similarity to the others. If the model had written the logged answer in the same way, that answer would be
    the least typical one with probability 1 / (k + 1). This follows from exchangeability, as in conformal prediction (Vovk,
    Gammerman and Shafer 2005).

    The distance is the excess of the observed frequency over this probability, scaled so that its maximum is 1. It is 0 for the
    model's own answers and 1 for answers that the model never gives. For a mixture it is the share of such answers. It falls to
    -1 / k for answers that are more likely than the draws, such as answers sampled at a lower temperature.
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
    draws = [_words(text) for text in drawn]
    among = [[_likeness(one, other) for other in draws] for one in draws]
    inner = [sum(row) - row[i] for i, row in enumerate(among)]
    outside = [_outside([_likeness(_words(text), draw) for draw in draws], inner) for text in texts]
    share = sum(out * times for out, times in zip(outside, repeats, strict=True)) / sum(repeats)
    chance = 1.0 / (len(draws) + 1)
    return (share - chance) / (1.0 - chance)


def _outside(to_draws: list[float], inner: list[float]) -> float:
    """Return 1 if every draw is more typical than the logged answer, and 0 if any draw is less typical.

    If n draws are equally typical and none is less typical, the result is 1 / (n + 1).
    """
    typical = round(sum(to_draws), _EQUAL)
    others = [round(own + to, _EQUAL) for own, to in zip(inner, to_draws, strict=True)]
    return 0.0 if min(others) < typical else 1.0 / (1 + others.count(typical))


def _words(answer: str) -> Counter[str]:
    """Return the words of an answer. Those of a tool call are the parts of its JSON."""
    return Counter(_JSON_WORDS.findall(answer) if "tool_calls" in answer_message(answer) else answer.split())


def _likeness(one: Counter[str], other: Counter[str]) -> float:
    """Return the Dice coefficient of two bags of words, in [0, 1]. Two empty answers have similarity 1."""
    total = one.total() + other.total()
    return 2.0 * (one & other).total() / total if total else 1.0
