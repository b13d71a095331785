"""Decides which answers of a teacher a run leaves out: those that a model trained without them finds unlikely.

The agreement of a teacher with people tells how many of its answers are wrong, not which ones. A model that is trained on the known right
answers alone gives most wrong answers a low likelihood, because it learns right answers before wrong ones (Arpit et al. 2017,
arXiv:1706.05394). Known right answers that this model was not trained on tell what a low likelihood is: an answer is unlikely if at most
LEVEL of them are as unlikely. No more answers are left out than may be wrong by the lower bound of the agreement. With a known share of
wrong answers, this is the selection by small loss of Han et al. 2018 (arXiv:1804.06872).
The comparison assumes that right answers of a teacher are as likely as those of people. Then LEVEL of them are left out, also if the model
cannot tell right from wrong. If many more answers are unlikely than the agreement explains, the assumption does not hold, for example
because the teacher writes in another style, and nothing is left out.
The module is pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.05
"""Share of the known right answers that are at most as likely as an answer that is left out."""
KNOWN_LEAST = 40
"""Least number of known right answers that a comparison needs: with fewer, LEVEL of them is less than two answers."""
DOUBTED_LEAST = 20
"""Least number of answers of a teacher for which a model is trained to compare them."""


class Doubted(NamedTuple):
    """An answer of a teacher."""

    row: int
    """Number of its row in the demonstrations."""
    wrong: float
    """Probability that it is wrong, at most, by the agreement of the teacher with people."""
    likelihood: float | None
    """Mean log-probability per token in nats under the model without teachers; None if it cannot be measured."""


class Sifted(NamedTuple):
    """The result of a comparison."""

    weights: Mapping[int, float | None]
    """Number of a row -> its weight. None: it is left out. Empty: nothing changes."""
    answers: int
    left_out: int
    why: str
    """The result as text."""


def unchanged(answers: int, why: str) -> Sifted:
    """Return the result of a comparison that decides nothing about so many answers."""
    return Sifted({}, answers, 0, f"no answer of a teacher is left out: {why}")


def is_worth(answers: int) -> bool:
    """Return whether a run with so many answers of teachers trains a model to compare them."""
    return answers >= DOUBTED_LEAST


def sift(known: Sequence[float | None], doubted: Sequence[Doubted]) -> Sifted:
    """Decide which answers of teachers are left out, and how much the others weigh.

    Answers with the same agreement are one group. Those that stay weigh P(right) - P(wrong), as the agreement says after the others were
    subtracted, and never less than before.

    Args:
        known: Mean log-probability per token in nats of known right answers, under a model that was not trained on them.
        doubted: The answers of teachers.
    """
    right = sorted(value for value in known if value is not None)
    if len(right) < KNOWN_LEAST:
        return unchanged(len(doubted), f"{len(right)} known right answers can be compared with, and {KNOWN_LEAST} are needed")
    ranked = sorted((one.likelihood, one.row) for one in doubted if one.likelihood is not None)
    unlikely = [row for value, row in ranked if (1 + bisect_right(right, value)) / (1 + len(right)) <= LEVEL]
    explained = sum(one.wrong for one in doubted) + LEVEL * len(doubted) + math.sqrt(len(doubted))
    if len(unlikely) > explained:
        found = f"{len(unlikely)} of {len(doubted)} are less likely than {100 * (1 - LEVEL):.0f} % of {len(right)} known right answers"
        return unchanged(len(doubted), f"{found}, more than the agreement explains; the teacher may write in another style")
    groups: dict[float, set[int]] = {}
    for one in doubted:
        groups.setdefault(one.wrong, set()).add(one.row)
    weights: dict[int, float | None] = {}
    for wrong, rows in groups.items():
        out = [row for row in unlikely if row in rows][: math.ceil(wrong * len(rows))]
        weights |= dict.fromkeys(rows, _weight(wrong, len(rows), len(out))) | dict.fromkeys(out)
    left_out = sum(weight is None for weight in weights.values())
    by = f"a model trained without teachers finds them less likely than {100 * (1 - LEVEL):.0f} % of {len(right)} known right answers"
    return Sifted(weights, len(doubted), left_out, f"{left_out} of {len(doubted)} answers of teachers are left out: {by}")


def _weight(wrong: float, rows: int, left_out: int) -> float:
    """Return the weight of the rows of a group that stay. `wrong` is the share of wrong rows in the whole group, at most."""
    kept, falsely = rows - left_out, LEVEL * (1 - wrong) * rows
    if not kept or not left_out:
        return 1 - 2 * wrong
    return max(1 - 2 * wrong, 1 - 2 * max(0.0, wrong * rows - left_out + falsely) / kept)
