"""Types for mirrored prompts: users' prompts that a rollout asks again at both versions, and what their answers show."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from ratchet.contracts.model import Count, Frozen

MIRROR_PEOPLE = 10
"""Minimum effective number of people whose prompts were mirrored, before the pairs decide anything."""
MIRROR_SHARE = 0.1
"""Largest share of the chosen prompts that are of one person, apart from the first few. A few busy people would otherwise decide alone."""
MIRROR_PAIRS = 50
"""Minimum number of scored pairs before they decide anything."""
MOST_FAILED = 0.1
"""Largest share of mirrored prompts that the champion did not answer, with which a step may advance."""


class MirrorPrompt(Frozen):
    """One prompt of a user that may be asked again."""

    key: str
    """Identity of the trace within the rollout: a keyed hash (see `MirrorPrompts.secret`)."""
    person: str
    """Identity of the user within the rollout: a keyed hash. All prompts without user have the same one."""
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    reference: str | None = None


class MirrorAsk(Frozen):
    """Which prompts of a rollout are wanted."""

    limit: Count
    """Maximum number of prompts."""
    asked: frozenset[str] = frozenset()
    """Keys of the prompts that were chosen before. Neither they nor their near-duplicates are returned."""
    turns: dict[str, Count] = Field(default_factory=dict)
    """Person -> number of prompts that were chosen before. People with fewer come first."""
    only: tuple[str, ...] | None = None
    """Return the prompts with these keys that may still be used, and no others."""


class MirrorPrompts(Frozen):
    """Prompts of a rollout that may be asked again now."""

    secret: str
    """Name of the secret key of all hashes. If the key is lost or deleted, a new one has another name, and earlier pairs no longer count:
    their people cannot be recognised any more."""
    prompts: tuple[MirrorPrompt, ...] = ()


class MirrorOutcome(Frozen):
    """What became of one mirrored prompt."""

    difference: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)] | None
    """Reward of the candidate minus that of the champion. None if the pair is left out."""
    failed: bool = False
    """Whether the pair is left out because the champion gave no answer. Otherwise a left-out pair has no comparable rewards."""

    @model_validator(mode="after")
    def _left_out_if_failed(self) -> MirrorOutcome:
        if self.failed and self.difference is not None:
            raise ValueError("a pair of a failed request has a difference")
        return self


class Mirrored(Frozen):
    """Evidence of the mirrored prompts of a rollout, over all steps."""

    asked: Count
    """Number of prompts that both versions were asked."""
    failed: Count
    """Number of prompts that are left out because the champion gave no answer."""
    unscored: Count
    """Number of prompts that are left out because their two answers have no comparable rewards."""
    pairs: tuple[tuple[str, Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]], ...]
    """(person, reward of the candidate minus that of the champion) of the other prompts. `person` is no user id."""

    def too_many_left_out(self, margin: float) -> bool:
        """Return whether the prompts without a pair could hide a loss of `margin`.

        The candidate can influence which answers have no comparable rewards, so these may cause half of such a loss at the most.
        """
        return self.failed > MOST_FAILED * self.asked or self.unscored > margin / 2 * self.asked

    @model_validator(mode="after")
    def _complete(self) -> Mirrored:
        if self.failed + self.unscored + len(self.pairs) != self.asked:
            raise ValueError(f"{self.failed} failed, {self.unscored} unscored and {len(self.pairs)} pairs are not {self.asked} prompts")
        return self
