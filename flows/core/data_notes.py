"""Sentences about the data of a cycle: what was masked, whether most prompts are near-duplicates, and what the training leaves out."""

from __future__ import annotations

from ratchet.contracts.data.datasets import MaskedData, PromptCluster
from ratchet.contracts.jobs.training import Choice

CROWDED_SHARE = 0.2
"""Share of the prompts above which a cluster of near-duplicates is reported."""
_LEAST = 50
"""Number of prompts in a cluster below which it is not reported."""

_CONSEQUENCE = {
    "train": "all of them are for training, so that the gate does not measure this kind of request",
    "held": "all of them are in the holdout, so that no version is trained on this kind of request",
    "neither": "they are near to prompts of both sides, so that none of them is used",
}


def crowding(cluster: PromptCluster | None) -> str | None:
    """Return a warning if the largest cluster contains too many of the prompts, with its consequence and what to do; otherwise None."""
    if cluster is None or cluster.prompts < _LEAST or cluster.prompts <= CROWDED_SHARE * cluster.of:
        return None
    return (
        f"{cluster.prompts:,} of {cluster.of:,} prompts ({cluster.prompts / cluster.of:.0%}) are near-duplicates of each other, for "
        f"example because they come from one template; {_CONSEQUENCE[cluster.side]}. To separate the prompts that come later, send the "
        "template as the system message and its values as the user message, or raise holdout.similarity"
    )


def masking_note(masked: MaskedData) -> str:
    """Return what was masked in the data, by which rules, and what the rules do not mask."""
    if not masked.on and not masked.found:
        return "Personal data in the texts is not masked"
    counts = {kind: masked.found.get(kind, 0) for kind in [*masked.on, *sorted(masked.found.keys() - set(masked.on))]}
    found = ", ".join(f"{kind} {n:,}" for kind, n in counts.items())
    off = ", ".join(masked.off) or "nothing"
    return (
        f"Placeholders in the texts, which replaced personal data at ingest: {found}. The rules (version {masked.rules}) do not mask: "
        f"{off}; records that were ingested under other rules were masked by those"
    )


def left_out(choice: Choice) -> list[str]:
    """Return which rows the chosen training leaves out, by reason; nothing if it leaves out none, or if they were not counted."""
    return [f"The training job leaves rows out one by one: {one.sentence}." for one in choice.left_out if one.counts]
