"""Collects the evidence for an approval request as plain data from the cycle's rows. flows/prefect renders it."""

from __future__ import annotations

from typing import Any

from contracts.cycle import ApprovalKind, Step
from contracts.ids import digest
from flows.core.folds.cycle import CycleView
from flows.core.search import COLUMNS, results


def approval_evidence(cycle: CycleView, kind: ApprovalKind) -> dict[str, Any]:
    """Return the evidence for an approval request as JSON values.

    `subject` in the result is the digest of the approved object: the plan, or the candidate with its evaluation report.
    """
    common = {"kind": str(kind), "cycle": cycle.id, "line": cycle.line, "champion": cycle.champion.tag, "opened": cycle.opened["reason"]}
    if kind is ApprovalKind.TRAINING:
        plan = cycle.done[Step.PLAN]
        return {
            **common,
            "subject": cycle.plan.id if cycle.plan else "",
            "choice": plan["choice"],
            "recipe": plan["plan"]["recipe"],
            "search": plan["plan"].get("search"),
            "timeout": cycle.loop.training.timeout,
            "snapshot": cycle.done[Step.FREEZE]["snapshot"]["counts"],
            "probe": cycle.done[Step.PROBE],
        }
    report = cycle.done[Step.EVALUATE]
    return {
        **common,
        "subject": digest([cycle.candidate.tag if cycle.candidate else "", report["digest"]]),
        "candidate": cycle.candidate.tag if cycle.candidate else "",
        "report": report["report"],
        "verdict": cycle.done[Step.JUDGE],
        "search": _search(cycle),
        "rollout": cycle.loop.rollout.model_dump(mode="json"),
    }


def _search(cycle: CycleView) -> dict[str, Any] | None:
    """Return the trials of the search as a table, and the reason of its choice; None without a search."""
    if cycle.plan is None or cycle.chosen is None:
        return None
    return {"columns": COLUMNS, "rows": results(cycle.plan, cycle.trials, cycle.chosen), "reason": cycle.chosen.reason}
