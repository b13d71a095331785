"""A reward that looks for the name of a ticket in the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.extend import Tier


class MentionsTicket:
    """Score 1 if the answer names a ticket, else 0. The option `prefix` is the start of a ticket name."""

    name = "mentions_ticket"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer"})

    def __init__(self, prefix: str = "OPS-") -> None:
        self._prefix = prefix

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Return one score per sample."""
        return [float(self._prefix in sample["answer"]) for sample in samples]
