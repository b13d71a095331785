"""Pairs as tensors: rows, who may look at whom, and which positions have to predict a token that is scored.

Shared layout, one row for a pair: prompt, chosen, rejected. Both answers continue the prompt's positions, and the rejected
one does not see the chosen one; so the prompt, often the longer part, is computed once. Separate layout: a row for each answer
that there is; a demonstration has one.
This module knows no model and no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from trainers.inside.batches import Pair

PROMPT, CHOSEN, REJECTED, NOTHING = range(4)


class Layout(NamedTuple):
    """A micro-batch. N scored tokens: all of chosen 0, rejected 0, chosen 1, and so on."""

    ids: torch.Tensor
    """[rows, width]"""
    mask: torch.Tensor
    """[rows, width] of what is no padding, or [rows, 1, width, width] of who sees whom."""
    positions: torch.Tensor
    """[rows, width]"""
    sources: torch.Tensor
    """[N]: index into rows * width of the position that predicts the token."""
    targets: torch.Tensor
    """[N]: the token."""
    counts: list[int]
    """Scored tokens of chosen 0, rejected 0, chosen 1, …"""
    lengths: torch.Tensor
    """[pairs, 2]: tokens of each answer, scored or not (a first token without a prompt before it is not)."""


def lay_out(pairs: Sequence[Pair], pad: int, shared: bool, device: torch.device | str = "cpu") -> Layout:
    """Rows for the pairs, padded on the right with `pad`."""

    def there(values: list[Any]) -> torch.Tensor:
        return torch.tensor(values, device=device)

    rows = [_row(pair) for pair in pairs] if shared else [row for pair in pairs for row in _two_rows(pair)]
    width = max(len(ids) for ids, _, _ in rows)
    ids = there([row + [pad] * (width - len(row)) for row, _, _ in rows])
    parts = there([part + [NOTHING] * (width - len(part)) for _, part, _ in rows])
    positions = there([position + [0] * (width - len(position)) for _, _, position in rows])
    sources, targets, counts = _scored(pairs, width, shared)
    lengths = there([[len(pair.chosen), len(pair.rejected)] for pair in pairs])
    mask = _who_sees_whom(parts) if shared else (parts != NOTHING).long()
    return Layout(ids, mask, positions, there(sources), there(targets), counts, lengths)


Row = tuple[list[int], list[int], list[int]]
"""Token ids, part of the pair, positions."""


def _row(pair: Pair) -> Row:
    prompt, chosen, rejected = (len(part) for part in pair)
    parts = [PROMPT] * prompt + [CHOSEN] * chosen + [REJECTED] * rejected
    positions = [*range(prompt + chosen), *range(prompt, prompt + rejected)]
    return pair.prompt + pair.chosen + pair.rejected, parts, positions


def _two_rows(pair: Pair) -> list[Row]:
    return [_row(Pair(pair.prompt, answer, [])) for answer in (pair.chosen, pair.rejected)[: _rows(pair)]]


def _rows(pair: Pair) -> int:
    """Of the separate layout."""
    return 2 if pair.rejected else 1


def _scored(pairs: Sequence[Pair], width: int, shared: bool) -> tuple[list[int], list[int], list[int]]:
    sources: list[int] = []
    targets: list[int] = []
    counts: list[int] = []
    above = 0
    for pair in pairs:
        prompt = len(pair.prompt)
        for which, answer in enumerate((pair.chosen, pair.rejected)):
            start = (above if shared else above + which) * width
            begin = start + prompt + (which * len(pair.chosen) if shared else 0)
            known = answer if prompt else answer[1:]
            first = [start + prompt - 1] if prompt and answer else []
            sources += first + list(range(begin, begin + len(answer) - 1))
            targets += known
            counts.append(len(known))
        above += 1 if shared else _rows(pair)
    return sources, targets, counts


def _who_sees_whom(parts: torch.Tensor) -> torch.Tensor:
    """Everyone sees what stands before it and itself; the rejected answer does not see the chosen one; nobody sees padding."""
    width = parts.shape[1]
    before = torch.ones(width, width, dtype=torch.bool, device=parts.device).tril()
    query, key = parts[:, :, None], parts[:, None, :]
    seen = before & (key != NOTHING) & ~((query == REJECTED) & (key == CHOSEN))
    return (seen | torch.eye(width, dtype=torch.bool, device=parts.device)).unsqueeze(
        1
    )  # padding sees itself: a row of nothing would be NaN
