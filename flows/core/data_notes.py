"""Sentences about the data of a cycle: what was masked, whether most prompts are near-duplicates, and what the training leaves out."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.contracts.data.datasets import MaskedData, PromptCluster, Snapshot
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


def silent_scorers(snapshot: Snapshot) -> list[str]:
    """Return a sentence for each scorer that gave no score to any logged answer of a snapshot, with the remedy."""
    return [f"The scorer {name} has no effect: {why}" for name, why in snapshot.silent_scorers.items()]


_REFERENCE = "reference:"
_KEPT_FOR = {
    "holdout": "in the holdout",
    "golden": "on golden prompts",
    "near_golden": "on near-duplicates of golden prompts",
    "near_duplicate_conflict": "on near-duplicates of prompts of both sides",
    "reviewer_knows_better": "to a question that a reviewer has answered",
    "newer_one_counts": "to a question with a newer one",
}
"""What became of a right answer that the application logged, in the counts of a snapshot -> the words for it."""


def references_note(counts: Mapping[str, int]) -> str | None:
    """Return what became of the right answers that the application logged, from the counts of a snapshot; None without any."""
    found = {name.removeprefix(_REFERENCE): n for name, n in counts.items() if name.startswith(_REFERENCE)}
    if not found:
        return None
    others = ", ".join(f"{n:,} {_KEPT_FOR.get(name, f'left out by the rule {name}')}" for name, n in found.items() if name != "used")
    return f"Of {sum(found.values()):,} right answers that the application logged, {found.get('used', 0):,} are used" + (
        f"; the others: {others}." if others else "."
    )


def left_out(choice: Choice) -> list[str]:
    """Return which rows the chosen training leaves out, by reason; nothing if it leaves out none, or if they were not counted."""
    return [f"The training job leaves rows out one by one: {one.sentence}." for one in choice.left_out if one.counts]


def warned(choice: Choice) -> list[str]:
    """Return what can spoil the result of the chosen training, a sentence for each warning."""
    return [f"Warning: {one}." for one in choice.warnings]
