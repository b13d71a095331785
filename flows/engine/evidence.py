"""Collects the evidence for an approval request as plain data from the cycle's rows. flows/prefect renders it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ratchet.contracts.cycle import ApprovalKind
from ratchet.contracts.ids import digest
from ratchet.contracts.steps import AcceptResult, EvaluateResult, FreezeResult, JudgeResult, PlanResult, ProbeResult
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.searches.highest_cost import highest_cost
from ratchet.flows.core.searches.search_results import COLUMNS, picture, results, sentences


def approval_evidence(cycle: CycleView, kind: ApprovalKind, price: Callable[[float], float | None] | None = None) -> dict[str, Any]:
    """Return the evidence for an approval request as JSON values.

    `subject` in the result is the digest of the approved object: the plan, or the candidate with its evaluation report. `price` is
    `LineContext.price`.
    """
    common = {"kind": str(kind), "cycle": cycle.id, "line": cycle.line, "champion": cycle.champion.tag, "opened": cycle.opened.reason}
    if kind is ApprovalKind.TRAINING:
        planned, probed = cycle.result(PlanResult), cycle.result(ProbeResult).report
        plan = planned.plan
        return {
            **common,
            "subject": plan.id if plan else "",
            "choice": planned.choice.model_dump(mode="json"),
            "recipe": plan.model_dump(mode="json")["recipe"] if plan else {},
            "search": plan.search.model_dump(mode="json") if plan and plan.search else None,
            "highest": _highest(cycle, price),
            "snapshot": cycle.result(FreezeResult).snapshot.counts,
            "probe": probed.model_dump(mode="json") if probed else {},
        }
    evaluated, candidate = cycle.result(EvaluateResult), cycle.result(AcceptResult).version.tag
    return {
        **common,
        "subject": digest([candidate, evaluated.digest]),
        "candidate": candidate,
        "given": cycle.given.model_dump(mode="json", include={"folder", "differs"}) if cycle.given else None,
        "report": evaluated.report.model_dump(mode="json"),
        "verdict": cycle.result(JudgeResult).verdict.model_dump(mode="json"),
        "search": _search(cycle),
        "rollout": cycle.loop.rollout.model_dump(mode="json"),
        "min_slice": cycle.loop.gate.min_slice,
    }


def _highest(cycle: CycleView, price: Callable[[float], float | None] | None) -> dict[str, Any] | None:
    """Return the highest cost of a training with a search; None without a search."""
    if cycle.plan is None or cycle.plan.search is None:
        return None
    return highest_cost(cycle.loop, cycle.plan.search.budget, price).model_dump(mode="json")


def _search(cycle: CycleView) -> dict[str, Any] | None:
    """Return the trials of the search as a table and as bars, the reason of its choice, its gain and its cost; None without a search."""
    if cycle.plan is None or cycle.chosen is None:
        return None
    return {
        "columns": COLUMNS,
        "rows": results(cycle.plan, cycle.trials, cycle.chosen),
        "picture": picture(cycle.plan, cycle.trials, cycle.chosen),
        "chosen": f"trial {cycle.chosen.trial} ({cycle.chosen.variant}):",
        "reason": cycle.chosen.reason,
        "told": sentences(cycle),
    }
