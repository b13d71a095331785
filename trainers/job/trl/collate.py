"""Collation: converts pairs into tensors with token rows, the attention mask, and the positions that predict scored tokens.

In the shared layout, each pair is one row: prompt, chosen answer, rejected answer. The position ids of both answers continue those
of the prompt, and the rejected answer cannot attend to the chosen one. So the prompt, often the longest part, is computed once.
In the separate layout, each answer is a row of its own, with its prompt. A demonstration has one answer.
The module does not depend on a model or a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ratchet.trainers.job.trl.micro_batches import PairSize

PROMPT, CHOSEN, REJECTED, NOTHING = range(4)


class Layout(NamedTuple):
    """Tensors of a micro-batch. Integer tensors are int64.

    The N scored tokens are ordered by answer: those of chosen 0, rejected 0, chosen 1, and so on.
    """

    ids: torch.Tensor
    """[rows, width], int64: token ids, padded on the right."""
    mask: torch.Tensor
    """Separate layout: [rows, width], int64, 0 for padding. Shared layout: [rows, 1, width, width], bool, True where a query may attend
    to a key."""
    positions: torch.Tensor
    """[rows, width], int64: position ids."""
    sources: torch.Tensor
    """[N], int64: index into the flattened rows * width of the position that predicts each token."""
    targets: torch.Tensor
    """[N], int64: ids of the scored tokens."""
    counts: list[int]
    """Number of scored tokens of chosen 0, rejected 0, chosen 1, and so on."""
    lengths: torch.Tensor
    """[pairs, 2], int64: number of tokens of each answer, including the first token of an answer without a prompt, which is not scored."""


def lay_out(pairs: Sequence[PairSize], pad: int, shared: bool, device: torch.device | str = "cpu") -> Layout:
    """Return the tensors of the pairs on `device`.

    `pad` is the token id for padding on the right. `shared` selects the shared layout, with one row per pair.
    """

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
"""Token ids, part of the pair for each token (PROMPT, CHOSEN, REJECTED), and position ids."""


def _row(pair: PairSize) -> Row:
    prompt, chosen, rejected = (len(part) for part in pair)
    parts = [PROMPT] * prompt + [CHOSEN] * chosen + [REJECTED] * rejected
    positions = [*range(prompt + chosen), *range(prompt, prompt + rejected)]
    return pair.prompt + pair.chosen + pair.rejected, parts, positions


def _two_rows(pair: PairSize) -> list[Row]:
    return [_row(PairSize(pair.prompt, answer, [])) for answer in (pair.chosen, pair.rejected)[: _rows(pair)]]


def _rows(pair: PairSize) -> int:
    """Number of rows of the pair in the separate layout."""
    return 2 if pair.rejected else 1


def _scored(pairs: Sequence[PairSize], width: int, shared: bool) -> tuple[list[int], list[int], list[int]]:
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
    """The attention mask of the shared layout, bool, [rows, 1, width, width], for `parts` of shape [rows, width].

    Attention is causal. The rejected answer does not attend to the chosen answer, and no token attends to padding.
    """
    width = parts.shape[1]
    before = torch.ones(width, width, dtype=torch.bool, device=parts.device).tril()
    query, key = parts[:, :, None], parts[:, None, :]
    seen = before & (key != NOTHING) & ~((query == REJECTED) & (key == CHOSEN))
    # Padding attends to itself: an empty row in the mask would give NaN.
    return (seen | torch.eye(width, dtype=torch.bool, device=parts.device)).unsqueeze(1)
