"""Verdicts of judges within one process of a training job, and the tokens that they may use there. Nothing is written to disk.

Answers of a run are new in each step, so a stored verdict would hardly be read again. The figures of a step report the tokens
(`judge_tokens`); from these, the next incarnation of the attempt knows what was used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ratchet.contracts.ids import Digest
from ratchet.rewards.judge.client import Answer
from ratchet.rewards.judge.verdict import Outcome


class JobVerdicts:
    """What all judges of one process of a job have said and used."""

    def __init__(self, spent: int = 0) -> None:
        """`spent` is the number of tokens that earlier incarnations of the attempt used."""
        self._spent = spent
        self._budget = 0
        self._verdicts: dict[Digest, tuple[Outcome, float | None]] = {}
        self._reported = 0
        self.tokens = 0
        """Tokens that this process has used, prompts and replies."""

    def allow(self, tokens: int) -> None:
        """Add the budget of a judge to the sum that all judges of the attempt share."""
        self._budget += tokens

    @contextmanager
    def recording(self, judge: Digest) -> Iterator[Callable[[Digest, Answer], None]]:  # noqa: ARG002 -- a key names its judge
        """Yield a function that keeps the verdict of a key."""

        def keep(key: Digest, answer: Answer) -> None:
            self._verdicts[key] = (answer.outcome, answer.value)
            self.tokens += answer.tokens

        yield keep

    def verdicts(self, keys: Sequence[Digest]) -> dict[Digest, tuple[Outcome, float | None]]:
        """Return the known verdicts of these keys."""
        return {key: self._verdicts[key] for key in keys if key in self._verdicts}

    @property
    def left(self) -> int:
        """Number of tokens that may still be used."""
        return self._budget - self._spent - self.tokens

    def forget(self) -> None:
        """Drop all verdicts, so that no answer without a score stays so in the next try, and the memory does not grow."""
        self._verdicts.clear()

    def reported(self) -> int:
        """Return the tokens that were used since the last call."""
        used, self._reported = self.tokens - self._reported, self.tokens
        return used
