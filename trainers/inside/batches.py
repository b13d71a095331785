"""Which pairs of a step share a micro-batch, on which rank: little padding, and as much in memory as was allowed.

A step's gradient is a sum over its pairs, so any split gives the same one, and the cheapest split may be taken. Pure
arithmetic over lengths: this module knows no tensors and no model. Every rank plans for all ranks and comes to the same plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

OVERHEAD = 256
"""What starting another micro-batch costs, in tokens: below it, one more group does not pay for the padding that it saves."""


class Pair(NamedTuple):
    """A preference as token ids; each answer was tokenised behind the prompt. A demonstration is one without a rejected answer."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    """Empty in a demonstration."""

    def cut(self, max_length: int) -> Pair:
        """Each answer cut where prompt and answer exceed `max_length` tokens."""
        room = max(0, max_length - len(self.prompt))
        return Pair(self.prompt[:max_length], self.chosen[:room], self.rejected[:room])

    def length(self, shared: bool) -> int:
        """Tokens of the pair's longest row: one row for both answers behind one prompt, or one row for each."""
        answers = (len(self.chosen), len(self.rejected))
        return len(self.prompt) + (sum(answers) if shared else max(answers))

    @property
    def tokens(self) -> int:
        """Tokens that carry content in the plain layout, where the prompt stands before each answer."""
        return 2 * len(self.prompt) + len(self.chosen) + len(self.rejected)


Groups = list[list[int]]
"""Micro-batches: indices of pairs."""


def plan(lengths: Sequence[int], budget: int, rows: int = 1, ranks: int = 1) -> list[Groups]:
    """Micro-batches for each rank, the same number for all: collective calls must meet. An empty one is idle work.

    `lengths`: tokens of each pair's row. `budget`: tokens of a micro-batch with its padding; a pair that exceeds it goes alone.
    `rows`: rows that a pair takes, at most.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    turns = [*range(ranks), *reversed(range(ranks))]  # there and back, so that no rank gets all the longer ones
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for turn, index in enumerate(order):
        dealt[turns[turn % len(turns)]].append(index)
    plans = [_cheapest(hand, lengths, budget, rows) for hand in dealt]
    most = max(len(groups) for groups in plans)
    return [_stretched(groups, most) for groups in plans]


def _cheapest(hand: list[int], lengths: Sequence[int], budget: int, rows: int) -> Groups:
    """Cuts the hand, longest first, where the sum of padded areas and overheads is smallest (dynamic programming)."""
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
    """The same pairs in exactly `most` groups."""
    groups = [list(group) for group in groups]
    while len(groups) < most:
        widest = max(groups, key=len, default=[])
        half = len(widest) // 2
        groups.append(widest[half:] if half else [])
        del widest[half or len(widest) :]
    return groups


def in_order(n: int, rows: int) -> list[Groups]:
    """Fixed numbers of pairs in the order given, on one rank: the plain way, for comparison."""
    return [[list(range(begin, min(begin + rows, n))) for begin in range(0, n, rows)]]
