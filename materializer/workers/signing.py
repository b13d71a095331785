"""Computes signatures of prompts by the engine of the port `Compute`."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.contracts.ids import Digest
from ratchet.materializer.training_sets.near_duplicates import shingles, signature


def signatures_of(texts: Mapping[Digest, str]) -> dict[Digest, bytes]:
    """The function of workers: roots and normalised texts of prompts -> their signatures."""
    return {root: signature(shingles(text)).tobytes() for root, text in texts.items()}
