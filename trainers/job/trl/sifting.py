"""The answers of teachers in the demonstrations of a run, and how likely they are under a model that was trained without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratchet.contracts.data.records import FeedbackKind, Tier
from ratchet.contracts.errors import Permanent
from ratchet.runtime.chat_template import template_messages
from ratchet.runtime.jobs.job_protocol import RunFile
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.model_fit import row_limit
from ratchet.trainers.job.trl.conversations import Example, answer_text, assistant_message, demonstrations, messages, tools_of
from ratchet.trainers.job.trl.development import at_rest, forced
from ratchet.trainers.recipes.recipe import Recipe
from ratchet.trainers.sifting import KNOWN_LEAST, Doubted, Sifted, is_worth, sift

KNOWN = (FeedbackKind.CORRECTION.value, FeedbackKind.REFERENCE.value)
"""Sources of demonstrations that people have written or confirmed. Answers that the line's own model wrote would be too likely."""
BETWEEN_SIGNS = 20
"""Number of answers between two signs of life."""


class Sieve:
    """What is compared: the answers of teachers, and known right answers to prompts of a fold."""

    def __init__(self, job: Job, tokenizer: Any, recipe: Recipe, fold: frozenset[str]) -> None:
        """Read the demonstrations of `job`. `fold` are prompts, by their ids, that the model of the comparison is not trained on."""
        self._tokenizer = tokenizer
        self._max_length = row_limit(job.run / RunFile.MODEL, int(getattr(recipe, "max_length", 1 << 30)))
        rows = list(enumerate(demonstrations(job.run / RunFile.DEMONSTRATIONS)))
        self._doubted = [(number, row) for number, row in rows if row.get("source") == Tier.TEACHER.value]
        asked = {row["prompt_id"] for _, row in self._doubted}
        self._known = [row for _, row in rows if row.get("prompt_id") in fold - asked and row.get("source") in KNOWN]
        self.held = fold | asked
        """Prompts that the model of the comparison is not trained on."""
        rest = sum(row.get("prompt_id") not in self.held for _, row in rows)
        self.is_worth = is_worth(len(self._doubted)) and min(len(self._known), rest) >= KNOWN_LEAST
        """Whether there is enough to compare, and to train on."""

    @property
    def answers(self) -> int:
        """Number of answers of teachers."""
        return len(self._doubted)

    def sifted(self, trainer: Any, goes_on: Callable[[], bool]) -> Sifted | None:
        """Compare the answers under the trainer's present model. `goes_on` is asked again and again; if it refuses, return None."""
        likelihoods: list[float | None] = []
        with at_rest(trainer):
            for row in (*self._known, *(row for _, row in self._doubted)):
                if len(likelihoods) % BETWEEN_SIGNS == 0 and not goes_on():
                    return None
                likelihoods.append(self._likelihood(trainer, row))
        known, theirs = likelihoods[: len(self._known)], likelihoods[len(self._known) :]
        both = zip(self._doubted, theirs, strict=True)
        return sift(known, [Doubted(number, (1 - row["weight"]) / 2, likelihood) for (number, row), likelihood in both])

    def _likelihood(self, trainer: Any, row: Mapping[str, Any]) -> float | None:
        """Return the mean log-probability per token of a row's answer in nats; None if it cannot be measured."""
        try:
            answer = assistant_message(answer_text(row["answer"], "demonstration", "answer"))
            example = Example(
                template_messages(messages(row["prompt"], "demonstration")), answer, None, tools_of(row, "demonstration"), 1.0
            )
            return forced(trainer, self._tokenizer, example, self._max_length)[0]
        except Permanent:  # the training proper leaves the row out, and counts it
            return None


def stored(found: Sifted) -> dict[str, Any]:
    """Return a result as JSON values."""
    return {**found._asdict(), "weights": sorted(found.weights.items())}


def read(state: Mapping[str, Any]) -> Sifted:
    """Return the result from the JSON values of `stored`."""
    rows: Sequence[Sequence[Any]] = state["weights"]
    return Sifted(**{**state, "weights": {int(row): weight for row, weight in rows}})
