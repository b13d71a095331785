"""Checks the suites of a loop file before a cycle runs, for `ratchet check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.setup.finding import Finding

if TYPE_CHECKING:
    from ratchet.contracts.ports import Rewards
    from ratchet.flows.engine.context import LineContext
    from ratchet.gates.suites.tasks import SuiteTask


def suites(context: LineContext) -> list[Finding]:
    """Return what is known of the suites of the gate: whether their files can be read, and whether any answer could pass."""
    from ratchet.gates.suites.tasks import read_suite
    from ratchet.rewards.scorer_set import build_scorer_set

    found: list[Finding] = []
    for name, suite in context.loop.gate.suites.items():
        try:
            tasks = read_suite(context.folder / suite.file, name)
            scorers = build_scorer_set([suite.reward])
        except ConfigError as error:
            found.append(("error", "gate", str(error)))
            continue
        if not scorers.unseen():
            found.append(("error", "gate", f"gate.suites.{name}.reward: {suite.reward.name} needs feedback, which new answers do not have"))
            continue
        scored = _scored(scorers, tasks)
        if scored < len(tasks):
            told = f"gate.suites.{name}: {suite.reward.name} cannot score {len(tasks) - scored} of {len(tasks)} tasks; add their references"
            found.append(("error", "gate", told))
            continue
        found.append(("ok", "gate", f"suite {name}: {len(tasks)} tasks, pass@{suite.k}, scored by {suite.reward.name}"))
    return found


def _scored(scorers: Rewards, tasks: Sequence[SuiteTask]) -> int:
    """Return for how many tasks a scorer gives an answer a score."""
    rows = [{"prompt": list(one.conversation), "answer": one.reference or "x", "reference": one.reference} for one in tasks]
    return sum(label.reward is not None for label in scorers.label_unseen(rows))
