"""Computes signatures of prompts by the engine of the port `Compute`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.contracts.ids import Digest
from ratchet.materializer.training_sets.near_duplicates import Shingler, signature


@dataclass(frozen=True)
class Signing:
    """The function of workers: roots and normalised texts of prompts -> their signatures."""

    make: Shingler

    def __call__(self, texts: Mapping[Digest, str]) -> dict[Digest, bytes]:
        """Return the signatures."""
        return {root: signature(self.make(text)).tobytes() for root, text in texts.items()}
