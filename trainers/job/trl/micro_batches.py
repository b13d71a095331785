"""Assignment of the pairs of a step to micro-batches and ranks, with little padding and within a token budget.

The gradient of a step is a sum over its pairs, so every split gives the same gradient and the cheapest one is chosen.
Every rank computes the plan for all ranks, and all plans are equal. The module is pure arithmetic over lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

OVERHEAD = 256
"""Fixed cost of a micro-batch, in tokens. A further micro-batch is only used if it saves more padding than this."""


class PairSize(NamedTuple):
    """A preference pair or a demonstration as token ids. Each answer was tokenized together with its prompt."""

    prompt: list[int]
    chosen: list[int]
    """Answer without the prompt."""
    rejected: list[int]
    """Answer without the prompt; empty in a demonstration."""

    def cut(self, max_length: int) -> PairSize:
        """Return the pair with each answer truncated so that prompt and answer have at most `max_length` tokens."""
        room = max(0, max_length - len(self.prompt))
        return PairSize(self.prompt[:max_length], self.chosen[:room], self.rejected[:room])

    def length(self, shared: bool) -> int:
        """Return the number of tokens of the longest row.

        If `shared`, the prompt and both answers form one row. Otherwise, each answer forms a row with its prompt.
        """
        answers = (len(self.chosen), len(self.rejected))
        return len(self.prompt) + (sum(answers) if shared else max(answers))

    @property
    def tokens(self) -> int:
        """Number of tokens without padding in the separate layout, in which each answer has its own copy of the prompt."""
        return 2 * len(self.prompt) + len(self.chosen) + len(self.rejected)


Groups = list[list[int]]
"""Micro-batches as lists of pair indices."""


def plan_micro_batches(lengths: Sequence[int], budget: int, rows: int = 1, ranks: int = 1) -> list[Groups]:
    """Return the micro-batches of each rank.

    All ranks have the same number of micro-batches, because collective calls must match; some of them can be empty.
    `lengths` are the tokens of each pair's longest row. `budget` is the maximum number of tokens of a micro-batch with padding; a
    pair that exceeds it forms its own micro-batch. `rows` is the maximum number of rows per pair.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    turns = [*range(ranks), *reversed(range(ranks))]  # alternating direction, so that the long pairs are spread over the ranks
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for turn, index in enumerate(order):
        dealt[turns[turn % len(turns)]].append(index)
    plans = [_cheapest(hand, lengths, budget, rows) for hand in dealt]
    most = max(len(groups) for groups in plans)
    return [_stretched(groups, most) for groups in plans]


def _cheapest(hand: list[int], lengths: Sequence[int], budget: int, rows: int) -> Groups:
    """Split the indices `hand`, longest first, so that the sum of padded sizes and overheads is minimal (dynamic programming)."""
    best, cut = [0.0], [0]
    for end in range(1, len(hand) + 1):
        options = []
        for begin in range(end - 1, -1, -1):
            area = (end - begin) * rows * lengths[hand[begin]]
            if area > budget and begin < end - 1:
                break
            options.append((best[begin] + area + OVERHEAD, begin))
        cost, begin = min(options)
        best.append(cost)
        cut.append(begin)
    groups: Groups = []
    end = len(hand)
    while end:
        groups.append(hand[cut[end] : end])
        end = cut[end]
    return groups[::-1]


def _stretched(groups: Groups, most: int) -> Groups:
    """Return the same pairs in exactly `most` groups, some of which can be empty."""
    groups = [list(group) for group in groups]
    while len(groups) < most:
        widest = max(groups, key=len, default=[])
        half = len(widest) // 2
        groups.append(widest[half:] if half else [])
        del widest[half or len(widest) :]
    return groups


def in_order(n: int, rows: int) -> list[Groups]:
    """Return micro-batches of `rows` pairs each, in the given order and for one rank. This is the baseline for benchmarks."""
    return [[list(range(begin, min(begin + rows, n))) for begin in range(0, n, rows)]]
