"""The mirrored prompts of a rollout, folded from its rows: the batches, and the evidence of those that are complete. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.contracts.cycle import Entry
from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.mirror import MIRROR_PAIRS, MIRROR_PEOPLE, Mirrored
from ratchet.contracts.rows import MirrorBegun, MirrorEnd, content_of
from ratchet.contracts.serving import StepJudgement, StepResult

BATCH = 8
"""Maximum number of prompts that one tick asks again."""


@dataclass(frozen=True)
class Batch:
    """Prompts that are asked again together."""

    number: int
    secret: str
    """Name of the key of the hashes (`ratchet.contracts.mirror.MirrorPrompts`)."""
    prompts: tuple[tuple[str, str], ...]
    """(prompt, person), both as hashes."""
    result: Mirrored | None = None
    """None while the batch is not complete."""


def batches(rows: Sequence[Entry]) -> list[Batch]:
    """Return the batches of the rows `mirror_intended` and `mirrored` of a rollout, in their order. Only the last one can be incomplete.

    Raises Permanent if a row has invalid figures.
    """
    results = {row.key: content_of(MirrorEnd, row).mirrored for row in rows if row.kind == "mirrored"}
    begun = {row.key: content_of(MirrorBegun, row) for row in rows if row.kind == "mirror_intended"}
    return [Batch(int(key), one.secret, one.prompts, results.get(key)) for key, one in begun.items()]


def mirrored(known: Sequence[Batch]) -> Mirrored:
    """Return the evidence of the complete batches.

    Batches whose hashes have another key than the last one do not count: one person would look like two.
    """
    found = [batch.result for batch in known if batch.result is not None and batch.secret == known[-1].secret]
    return Mirrored(
        asked=sum(one.asked for one in found),
        failed=sum(one.failed for one in found),
        unscored=sum(one.unscored for one in found),
        pairs=tuple(pair for one in found for pair in one.pairs),
    )


def turns(known: Sequence[Batch]) -> Counter[str]:
    """Return how many prompts of each person were chosen so far, under the key of the last batch."""
    return Counter(person for batch in known if batch.secret == known[-1].secret for _, person in batch.prompts)


def left(known: Sequence[Batch], settings: RolloutSettings) -> int:
    """Return the number of prompts that the next batch may have."""
    return max(0, min(BATCH, settings.mirror - sum(len(batch.prompts) for batch in known)))


def is_wanted(settings: RolloutSettings, judgement: StepJudgement | None, index: int, largest: int, known: Sequence[Batch] = ()) -> bool:
    """Return whether more prompts are to be asked at step `index`.

    They are, while the step waits and either the pairs have not excluded a loss of the margin or too many prompts are left out. `known` are
    the batches so far, and `largest` is the position of the step that decides. No prompts are asked at later steps, and none while the
    evidence cannot be read, because it may be complete.
    """
    if not settings.mirror or judgement is None or judgement.unavailable or index > largest or judgement.result is not StepResult.WAIT:
        return False
    test = judgement.tests.get("mirrored")
    if known and mirrored(known).too_many_left_out(settings.margin):
        return True
    return test is None or test.n < MIRROR_PAIRS or (test.people or 0) < MIRROR_PEOPLE or test.equal < test.equal_at
