"""Orders of GRPO's prompts: decide which prompts the next answers are sampled for.

GRPO learns from a group only if its answers have different rewards. Otherwise all advantages are 0, and the answers were sampled for
nothing. The order `signal` raises the share of groups with signal. More signal is not more accuracy: in `benchmarks/grpo_order.py`, unseen
questions were answered no better with it than with the order `uniform`, and on one task much worse. So `uniform` is the default.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from typing import NamedTuple

from ratchet.contracts.data.records import ProbeRewards

FULL = 1.0
"""Weight of a prompt with mixed rewards in the probe, and of one whose newest group had signal."""
UNKNOWN = 0.5
"""Weight of a prompt without probe rewards, before its first group."""
EQUAL = 0.125
"""Weight of a prompt with equal rewards in the probe, before its first group."""
LEAST = 0.0625
"""Smallest weight. It is above 0, because a prompt can gain signal while the model learns."""
_FIRST = {ProbeRewards.MIXED: FULL, None: UNKNOWN, ProbeRewards.EQUAL: EQUAL}


class Group(NamedTuple):
    """A group of sampled answers to one prompt."""

    prompt: int
    """Index of the prompt."""
    signal: bool
    """Whether the answers had different rewards."""


def uniform(probed: Sequence[str | None], groups: Sequence[Group], n: int, seed: int) -> list[int]:
    """Return the next `n` indices of repeated random permutations of all prompts. The arguments are those of `by_signal`."""
    chance = random.Random(seed)
    drawn: list[int] = []
    while len(drawn) < len(groups) + n:
        drawn += chance.sample(range(len(probed)), len(probed))
    return drawn[len(groups) : len(groups) + n]


def by_signal(probed: Sequence[str | None], groups: Sequence[Group], n: int, seed: int) -> list[int]:
    """Return the indices of the `n` prompts whose turn is next.

    Every prompt has a weight, and in the long run it is drawn in proportion to it (stride scheduling; Waldspurger and Weihl 1995). The
    weight is FULL for mixed rewards in the probe, UNKNOWN without probe rewards, and EQUAL for equal ones. A group with signal sets it to
    FULL. A group without signal halves it, down to LEAST. So prompts with mixed rewards come first and most often, a prompt whose group
    had no signal waits for longer and longer while other prompts take its place, and no prompt is left out forever: all prompts are drawn
    at least once in 17 draws per prompt. The reason is the share of groups with signal, which a uniform order leaves at the share of
    prompts with mixed rewards.

    The result depends on the arguments only, so a run that resumes with the groups of its checkpoint continues with the same prompts.
    The prompts are different if there are at least `n`.

    Args:
        probed: For each prompt, a ProbeRewards, or None without probe rewards.
        groups: Groups of the run so far, in order.
        n: Number of prompts to draw.
        seed: Determines the order of prompts with equal weights.
    """
    chance = random.Random(seed)
    weights = [_FIRST[None if one is None else ProbeRewards(one)] for one in probed]
    # The factor spreads the first turns of prompts with equal weights. Above 0.5, those of prompts with mixed rewards are the first.
    turns = [(1 - chance.random() / 2) / weight for weight in weights]
    for prompt, signal in groups:
        weights[prompt] = FULL if signal else max(LEAST, weights[prompt] / 2)
        turns[prompt] += 1 / weights[prompt]
    tied = random.Random(f"{seed} {len(groups)}")  # otherwise prompts with the same turn would stay in the same order
    ranked = [index for *_, index in heapq.nsmallest(n, ((turn, tied.random(), index) for index, turn in enumerate(turns)))]
    return [ranked[place % len(ranked)] for place in range(n)]


ORDERS = {"uniform": uniform, "signal": by_signal}
"""Value of the recipe's `prompt_order` -> the order."""
