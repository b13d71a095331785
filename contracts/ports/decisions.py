"""Ports of the evidence about a candidate: evaluation, checks of the gate, and the judgement of rollout steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ratchet.contracts.data.datasets import HoldoutEdition
from ratchet.contracts.evaluation import CheckResult, EarlierAnswers, EvalReport
from ratchet.contracts.mirror import Mirrored, MirrorOutcome, MirrorPrompt
from ratchet.contracts.model import ModelRef
from ratchet.contracts.ports.progress import Progress
from ratchet.contracts.ports.serving import ModelClient
from ratchet.contracts.serving import StepJudgement, Stratum


class Evaluator(Protocol):
    """Compares a candidate with the champion on one holdout edition."""

    def evaluate(
        self,
        edition: HoldoutEdition,
        champion: tuple[ModelRef, ModelClient],
        candidate: tuple[ModelRef, ModelClient],
        progress: Progress,
        level: float,
        earlier: Sequence[EarlierAnswers] = (),
    ) -> EvalReport:
        """Let both models answer the edition's prompts and return the comparison.

        `level` is the confidence level of the two-sided intervals; each end has half of its error. An evaluation with several looks at the
        comparison has this error over all of them, and may stop before it has asked all prompts. A repeated call stops at the same look.
        `earlier` has one element per earlier champion; the report compares the candidate with their stored answers to the golden set.
        Raises `Inconclusive` if there are no prompts.
        """
        ...

    def mirror(
        self, prompts: Sequence[MirrorPrompt], champion: ModelClient, candidate: ModelClient, progress: Progress
    ) -> list[MirrorOutcome]:
        """Let both models answer prompts again. Return the outcomes in order. Raises `Retryable` if a server refuses connections."""


class Check(Protocol):
    """One rule of the gate, without side effects."""

    name: str
    """Name of the check in verdicts and messages."""

    def check(self, report: EvalReport) -> CheckResult:
        """Return the result of this check for an evaluation report."""
        ...


class RolloutJudge(Protocol):
    """Judges one rollout step, without side effects."""

    def judge(self, largest: bool, seconds: float, strata: Sequence[Stratum], mirrored: Mirrored | None = None) -> StepJudgement:
        """Decide whether the rollout advances, waits or rolls back.

        `largest` is true for the step with the largest weight below 100, which decides quality. `seconds` is the time since the step
        began. `strata` is the evidence of the steps so far, in their order; the last one is the current step. It is empty if
        the router does not attribute answers to versions: mirrored prompts and the duration of the step then decide alone. `mirrored` is
        the evidence of the mirrored prompts; None if the rollout asks none.
        """
