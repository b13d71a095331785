"""Checks the suites of a loop file before a cycle runs, for `ratchet check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.contracts.errors import ConfigError, RatchetError
from ratchet.flows.cli.setup.finding import Finding

if TYPE_CHECKING:
    from ratchet.contracts.loop import LmEvalSettings, SuiteSettings
    from ratchet.contracts.ports import Rewards
    from ratchet.flows.engine.context import LineContext
    from ratchet.gates.suites.tasks import SuiteTask


def suites(context: LineContext) -> list[Finding]:
    """Return what is known of the suites of the gate: whether their files can be read, and whether any answer could pass."""
    from ratchet.gates.suites.tasks import read_suite
    from ratchet.rewards.scorer_set import build_scorer_set

    found: list[Finding] = []
    for name, suite in context.loop.gate.suites.items():
        if suite.lm_eval is not None:
            found.append(_lm_eval(context, name, suite, suite.lm_eval))
        if suite.file is None or suite.reward is None:
            continue
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


def _lm_eval(context: LineContext, name: str, suite: SuiteSettings, task: LmEvalSettings) -> Finding:
    """Load the task as a cycle would, without a model."""
    from ratchet.gates.suites.lm_eval import LmEvalSuite
    from ratchet.gates.suites.tasks import LEAST

    context.progress(f"lm-eval loads the task {task.task} …", 0, 0)
    try:
        found = LmEvalSuite(name, suite, task, context.folder, context.artifacts).look()
    except RatchetError as error:
        return ("error", "gate", str(error))
    documents, groups = sum(found.documents.values()), sum(found.groups.values())
    if groups < LEAST:
        told = f"the task {task.task} has {documents} documents in {groups} groups; a comparison needs {LEAST} groups"
        return ("error", "gate", f"gate.suites.{name}: {told}")
    grouped = f" in {groups} groups" if groups < documents else ""
    return ("ok", "gate", f"suite {name}: {documents} documents{grouped} of the task {task.task}, asked and scored by lm-eval")


def _scored(scorers: Rewards, tasks: Sequence[SuiteTask]) -> int:
    """Return for how many tasks a scorer gives an answer a score."""
    rows = [{"prompt": list(one.conversation), "answer": one.reference or "x", "reference": one.reference} for one in tasks]
    return sum(label.reward is not None for label in scorers.label_unseen(rows))
