"""Settings of the datasets: the scorers, the holdout, the training data of a snapshot, and the probe."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ratchet.contracts.data.records import Signal, Tier
from ratchet.contracts.ids import AFTER, END, UNTIL, SkippedTexts, normalise, whole_text
from ratchet.contracts.loop.field_types import Positive, Share
from ratchet.contracts.model import Frozen


class RewardSettings(Frozen):
    """Settings of one reward scorer."""

    name: str
    """Entry point name of an installed reward (group `ratchet.rewards`)."""
    tier: Literal[Tier.VERIFIABLE, Tier.FEEDBACK, Tier.JUDGE] | None = None
    """Tier of the scorer. None selects the scorer's default tier."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the scorer in the weighted mean of its tier."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the scorer, which validates them."""


def _long_enough(text: str) -> str:
    if len(normalise(text)) < 3:
        raise ValueError("a beginning needs at least three characters that are not white space; name a short message in skip_greetings")
    return text


def _is_mark(text: str) -> str:
    if len(normalise(text)) < 2:
        raise ValueError("the text around a question needs at least two characters that are not white space")
    return text


def _has_letters(text: str) -> str:
    if whole_text(text) == END:
        raise ValueError("a greeting needs a letter or a digit")
    return text


class HoldoutSettings(Frozen):
    """Settings of the holdout, which is never used for training."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of prompts, selected by hash, that belong to the holdout permanently."""
    max_size: Positive = 1000
    """Maximum number of prompts per edition."""
    golden: str | None = None
    """JSONL file with records {prompt | question | messages, reference, slice?} that only the gate uses. None: no golden set."""
    near_duplicates: bool = True
    """Whether near-duplicates of a prompt are on the same side of the split: they differ in a few characters or words. If it is switched on
    later, it applies to the prompts that are new then. It cannot be switched off again."""
    similarity: Annotated[float, Field(ge=0.7, le=1)] | Literal["auto"] = 0.8
    """Least Jaccard similarity of the character 5-grams of near-duplicates. A higher value separates prompts of one template, which
    otherwise are all on one side. "auto" begins with 0.8, and rises to 0.9, 0.95 or 1 if right answers show that more similar prompts are
    different questions; it never falls. A change applies to the sides of prompts that are frozen for the first time afterwards, and at
    once to what is left out because of golden prompts."""
    skip_messages: tuple[Annotated[str, Field(max_length=2000), AfterValidator(_long_enough)], ...] = ()
    """Beginnings of user messages that are no question: few-shot examples, or the environment that an agent describes. Conversations count
    as one if their first other user message is the same. Upper case and white space do not count. It cannot be changed after the first
    edition of the holdout."""
    skip_greetings: tuple[Annotated[str, Field(max_length=100), AfterValidator(_has_letters)], ...] = ()
    """Whole user messages that are no question, such as "hi" or "good morning". "Hi!" is one then, and "hire" or "hi, I have a question" is
    none. Conversations count as one if their first other user message is the same. Upper case, white space, and punctuation and emojis at
    the ends do not count. It cannot be changed after the first edition of the holdout."""
    question_after: tuple[Annotated[str, Field(max_length=200), AfterValidator(_is_mark)], ...] = ()
    """What stands before the question in a user message that also contains other text, such as "Question:" behind retrieved documents.
    Conversations with the same question are on one side of the split then, also if their documents differ. The question is the text behind
    the last occurrence; with `question_until`, behind the last occurrence that such a text follows. A message without it counts as a whole.
    Upper case and white space do not count. It cannot be changed after the first edition of the holdout."""
    question_until: tuple[Annotated[str, Field(max_length=200), AfterValidator(_is_mark)], ...] = ()
    """What stands behind the question in such a message, for example "Context:" before retrieved documents. It cannot be changed after the
    first edition of the holdout."""
    development: Annotated[float, Field(ge=0, lt=0.5)] = 0.15
    """Share of the training prompts, selected by hash of their cluster of near-duplicates, that the line never trains on. Training jobs
    measure with them how long to train (`steps = "auto"`). It can be lowered later, not raised. 0: none; SFT and DPO on TRL in one process
    then train on all prompts, after a cross-validation of the length (`folds`), and other runs are not measured. It suits a start from the
    base model (`line.start_from`): a champion has been trained on most of the prompts that would measure it."""
    rotate_after: Positive = 8
    """Number of evaluations per edition. The next evaluation uses the next edition. All evaluations of an edition share the error
    1 - gate.level."""

    @property
    def skipped(self) -> SkippedTexts:
        """`skip_messages`, `skip_greetings`, `question_after` and `question_until`, normalised."""
        after, until = (
            {normalise(mark) + end for mark in marks} for marks, end in ((self.question_after, AFTER), (self.question_until, UNTIL))
        )
        return tuple(sorted({*map(normalise, self.skip_messages), *map(whole_text, self.skip_greetings), *after, *until}))


class SnapshotSettings(Frozen):
    """Settings for building pairs and demonstrations."""

    chosen_min: Share = 0.7
    """Minimum reward of a chosen answer."""
    rejected_max: Share = 0.5
    """Exclusive upper limit for the reward of a rejected answer."""
    margin: Share = 0.3
    """Minimum reward difference between the chosen and the rejected answer."""
    pairs_per_prompt: Positive = 2
    """Maximum pairs (and demonstrations) per prompt."""
    pairs_per_person: Positive = 20
    """Maximum pairs (and demonstrations) per user. A correction counts for its author, and a single rating for its rater. All anonymous
    corrections count as those of one user. Traffic without user names has no limit."""
    newcomer_days: float = Field(default=7, ge=0)
    """Days for which the ratings and corrections of a new user wait before they are used, from the ingest of the user's first trace on. It
    limits what somebody can achieve with many new ids. 0: they are used at once. Users who came within this time after the line's first
    trace, reviewers' references, the feedback of trusted credentials and that in the operator's files do not wait."""
    demonstration_min: Annotated[float, Field(gt=0.5, le=1)] = 0.9
    """Minimum probability that an answer is right for using it as a demonstration. The high default requires clear user feedback."""
    references_are_answers: bool = False
    """Whether reviewers' and logged references are complete answers and not bare results. If true, SFT may use them as demonstrations."""


class SignalSettings(Frozen):
    """Settings of signals: what users did with an answer, without a rating. Each freeze measures their agreement with the ratings."""

    use: tuple[Signal, ...] = ()
    """Signals that may label answers that nothing else scores. A signal is used only while its measured agreement with the ratings
    passes, at each freeze anew. Empty: none; signals are measured and shown only."""
    min_agreement: Annotated[float, Field(gt=0.5, le=1)] = 0.7
    """Least lower bound of the agreement of a signal that is used. In addition, ratings must agree with the signal more often than on
    answers without it."""
    thanks: tuple[Annotated[str, Field(min_length=2, max_length=60)], ...] = ()
    """Further phrases by which a user thanks, for `session.thanked`. They add to the built-in phrases."""


class ProbeSettings(Frozen):
    """Settings of the probe, in which the start model of the training answers training prompts."""

    prompts: int = Field(default=200, ge=0)
    """Number of prompts. 0: no probe."""
    samples: Annotated[int, Field(ge=2, le=64)] = 4
    """Number of answers per prompt."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Sampling temperature of the answers."""
    max_tokens: Positive = 256
    """Maximum tokens per answer."""
