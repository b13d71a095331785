"""What the loops show: what each cycle did and what stopped its candidate, shares of the oracles' gains, traps, and harm."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from benchmarks.closed_loops.line import ClosedLine, Sides, interval
from benchmarks.closed_loops.tasks import FRESH
from benchmarks.recipe_worlds import Question
from ratchet.contracts.evaluation import Result
from ratchet.contracts.ids import rollout_stream
from ratchet.contracts.steps import FreezeResult, State
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.trainers.choose import RULES

MARGIN = 0.05
"""Loss from which a candidate counts as worse: the margin of the rollout."""


def told(cycle: CycleView, known: dict[str, Any], line: ClosedLine, test: Sequence[Question], current: Sequence[bool]) -> dict[str, Any]:
    """Return what a cycle did, what stopped it, what it left out of its evidence, and the truth about its candidate.

    `known` is the truth that `ClosedLine.cycle` measured, `current` the champion's results on the questions `test`.
    """
    found: dict[str, Any] = {"state": str(cycle.state), "reason": cycle.reason[:300], "stopped_by": stopped_by(cycle)}
    found["left_out"] = left_out(cycle)
    if cycle.choice is not None:
        found["method"] = str(cycle.choice.method)
    if cycle.checkpoint is not None and cycle.trained_plan is not None:
        found |= {"method": str(cycle.trained_plan.method), "steps": cycle.checkpoint.step}
        found["published"] = cycle.checkpoint.metrics.get("published_step")
    if cycle.chosen is not None:
        found["search"] = {"trial": cycle.chosen.trial, "variant": cycle.chosen.variant, "reason": cycle.chosen.reason}
    if not known:
        return found
    difference = interval(current, known["candidate"])
    slices = {}
    for name in sorted({q.slice for q in test}):
        at = [i for i, q in enumerate(test) if q.slice == name]
        slices[name] = round(fmean(known["candidate"][i] for i in at) - fmean(current[i] for i in at), 4)
    rollout = line.context.rollout_view(rollout_stream(cycle.id))
    return found | {
        "candidate": fmean(known["candidate"]),
        "difference": [round(one, 4) for one in (difference.low, difference.estimate, difference.high)],
        "slices": slices,
        "rollout_steps": len(rollout.steps) if rollout else 0,
    }


def stopped_by(cycle: CycleView) -> str:
    """Return which part of the product ended a cycle without a promotion, with the names of its rules; empty after a promotion."""
    match cycle.state:
        case State.PROMOTED:
            return ""
        case State.NOT_TRAINED:
            needed = {rule.name for rule in RULES if rule.methods}
            rules = cycle.choice.rules if cycle.choice else ()
            return f"choice: {', '.join(row.rule for row in rules if not row.holds and row.rule in needed)}"
        case State.ROLLED_BACK:
            return f"rollout: {cycle.reason.split(': ')[-2] if cycle.reason.count(': ') > 1 else cycle.reason[:80]}"
        case _ if cycle.verdict is not None:
            return f"gate: {', '.join(check.check for check in cycle.verdict.checks if check.result is not Result.PASS)}"
        case _:
            return f"{cycle.state}: {cycle.reason.split(':')[0]}"


def left_out(cycle: CycleView) -> dict[str, Any]:
    """Return how much evidence the freeze of a cycle left out, by reason, the measured share of wrong ratings, and refused judges."""
    frozen = cycle.get(FreezeResult)
    if frozen is None:
        return {}
    snapshot = frozen.snapshot
    names = ("feedback:newcomer", "feedback:ignored", "contested_corrections", "out:near_duplicate_conflict")
    found: dict[str, Any] = {name: n for name, n in snapshot.counts.items() if name in names and n}
    found |= {f"judge {one.name}": f"{'believed' if one.believed else 'refused'}: {one.reason}" for one in snapshot.judges}
    if frozen.teacher is not None:
        outcomes = ("confirmed", "believed", "refused")
        found["teacher"] = {name: sum(getattr(one, name) for one in snapshot.teachers) for name in outcomes} | {
            **{"asked": frozen.teacher.asked, "measuring": frozen.teacher.measuring, "cost": frozen.teacher.cost},
            "slices": {str(one.slice): [one.agreeing, one.compared, round(one.low, 3), one.used] for one in snapshot.teachers},
        }
    noise = cycle.choice.facts.label_noise if cycle.choice else None
    return found | ({} if noise is None else {"label_noise": round(noise, 3)})


_USUAL = ("champion", 0, "none", Sides())


def plain(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows of the loops with the usual settings, without a trap and a source of answers, by task and seed."""
    return {(row["task"], row["seed"]): row for row in rows if _settings(row) == ("none", *_USUAL)}


def _settings(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["trap"], row["start"], row["search"], row.get("source", "none"), Sides.of(row)


def with_truth(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, those of loops with a source of answers with the oracle on the truth of the loop without it.

    Both loops have the same questions, so that the oracle would be the same.
    """
    known = plain(rows)
    found = []
    for row in rows:
        other = known.get((row["task"], row["seed"]))
        lent = {} if row.get("source", "none") == "none" or other is None else other["oracles"]
        found.append(row | {"oracles": {name: best for name, best in lent.items() if name == "truth"} | row["oracles"]})
    return found


def share(row: dict[str, Any], oracle: str) -> float | None:
    """Return the share of an oracle's gain that a loop earned; None if the oracle gains less than two points."""
    best = row["oracles"].get(oracle)
    if best is None or best["accuracy"] - row["base"] < 0.02:
        return None
    return float((row["final"] - row["base"]) / (best["accuracy"] - row["base"]))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per task, trap and setting: means over the loops."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in with_truth(rows):
        groups[row["task"] not in FRESH, row["task"], *_settings(row)].append(row)
    head = ["task", "loops", "base", "after the last cycle", "oracle: evidence", "oracle: truth of the training prompts", "oracle: truth"]
    head += ["share: evidence", "share: truth"]
    lines = ["| " + " | ".join([*head, "promoted, of cycles"]) + " |", "|---" * (len(head) + 1) + "|"]
    for (_, task, trap, start, search, source, sides), found in sorted(groups.items(), key=_place):
        notes = [trap] * (trap != "none") + [f"start: {start}"] * (start != "champion") + [f"search {search:g} s"] * bool(search)
        notes += [source] * (source != "none") + [f"{name} {_short(value)}" for name, value in sides.changed.items()]
        cells = [f"{task} ({', '.join(notes)})" if notes else task, str(len(found))]
        cells += [f"{fmean(row[key] for row in found):.3f}" for key in ("base", "final")]
        for oracle in ("evidence", "training_truth", "truth"):
            known = [row["oracles"][oracle]["accuracy"] for row in found if oracle in row["oracles"]]
            cells.append(f"{fmean(known):.3f}" if known else "–")
        for oracle in ("evidence", "truth"):
            shares = [one for row in found if (one := share(row, oracle)) is not None]
            cells.append(f"{fmean(shares):.0%}" if shares else "–")
        promoted = sum(cycle["state"] == "promoted" for row in found for cycle in row["cycles"])
        lines.append("| " + " | ".join([*cells, f"{promoted} of {sum(len(row['cycles']) for row in found)}"]) + " |")
    return "\n".join(lines)


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _place(group: tuple[tuple[Any, ...], Any]) -> tuple[Any, ...]:
    """Return where a group of rows is in the table: lines with smaller shares come later."""
    *others, sides = group[0]
    return *others, str(sides.similarity), -sides.holdout, -sides.development


def traps(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per trap: how loops with it ended beside those without, and what stopped their candidates.

    Only loops with the usual settings count.

    A part of the product counts as having stopped something if the candidate was estimated to be lower than the champion, or if the part
    left evidence out. A held candidate that was no worse says nothing about a trap.
    """
    ordinary = {key: row["final"] for key, row in plain(rows).items()}
    head = ["trap", "loops", "final accuracy", "without the trap", "lost", "shown worse (99 %)", "of these promoted", "stopped by"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    usual = [row for row in rows if _settings(row)[1:] == _USUAL]
    for trap in sorted({row["trap"] for row in usual} - {"none"}):
        found = [row for row in usual if row["trap"] == trap]
        cycles = [cycle for row in found for cycle in row["cycles"]]
        worse = [cycle for cycle in cycles if "difference" in cycle and cycle["difference"][2] < 0]
        reasons: dict[str, int] = defaultdict(int)
        for cycle in cycles:
            for reason in _reasons(cycle):
                reasons[reason] += 1
        known = [ordinary[row["task"], row["seed"]] for row in found if (row["task"], row["seed"]) in ordinary]
        counted = [f"{reason} {n}×" for reason, n in sorted(reasons.items(), key=lambda one: (-one[1], one[0]))]
        final = fmean(row["final"] for row in found)
        paired = [row["final"] for row in found if (row["task"], row["seed"]) in ordinary]
        without = [f"{fmean(known):.3f}", f"{fmean(known) - fmean(paired):+.3f}"] if known else ["–", "–"]
        cells = [trap, str(len(found)), f"{final:.3f}", *without]
        promoted = sum(cycle["state"] == "promoted" for cycle in worse)
        lines.append("| " + " | ".join([*cells, str(len(worse)), str(promoted), "; ".join(counted) or "–"]) + " |")
    return "\n".join(lines)


def _reasons(cycle: dict[str, Any]) -> list[str]:
    """What limited a trap in a cycle: what stopped a candidate that was lower than the champion, and evidence that was left out."""
    out = cycle.get("left_out", {})
    lower = "difference" in cycle and cycle["difference"][1] < 0
    reasons = [cycle["stopped_by"]] if lower and cycle.get("stopped_by") else []
    reasons += [f"left out: {name.removeprefix('feedback:')}" for name in sorted(out) if name.startswith("feedback:") or name[:4] == "out:"]
    return reasons + ["judge refused" for name, text in out.items() if name.startswith("judge") and str(text).startswith("refused")]


def is_shown(difference: float, loss: float, tests: float) -> bool:
    """Return whether so many paired tests show (99 %, normal approximation) a loss above `loss`, if only losses occurred."""
    error = math.sqrt(abs(difference) * (1 - abs(difference)) / tests)
    return difference + 2.576 * error < -loss


def goals(rows: Sequence[dict[str, Any]], margin: float = MARGIN) -> str:
    """Return the harm over all loops: promotions that are shown to lose, and worse candidates that got traffic."""
    sizes = {id(cycle): row["tests"] / max(1, len(cycle.get("slices", ()))) for row in rows for cycle in row["cycles"]}
    trained = [cycle for row in rows for cycle in row["cycles"] if "difference" in cycle]
    promoted = [cycle for cycle in trained if cycle["state"] == "promoted"]
    lost = [cycle for cycle in promoted if cycle["difference"][2] < -0.02]
    in_slice = [cycle for cycle in promoted if min(cycle["slices"].values()) < -0.1]
    shown = [cycle for cycle in in_slice if is_shown(min(cycle["slices"].values()), 0.1, sizes[id(cycle)])]
    small = [cycle for cycle in promoted if -0.1 <= min(cycle["slices"].values()) < -0.02]
    worse = [cycle for cycle in trained if cycle["difference"][1] < -margin]
    past = [cycle for cycle in worse if cycle["rollout_steps"] > 1]
    better = [cycle for cycle in trained if cycle["state"] != "promoted" and cycle["difference"][0] > 0]
    fresh = [row for row in plain(rows).values() if row["task"] in FRESH]
    shares = {oracle: [one for row in fresh if (one := share(row, oracle)) is not None] for oracle in ("evidence", "truth")}
    gaps = [
        row["oracles"]["truth"]["accuracy"] - row["oracles"]["evidence"]["accuracy"]
        for row in fresh
        if {"truth", "evidence"} <= row["oracles"].keys()
    ]
    lacking = f"; the evidence lacks {fmean(gaps):.3f} of accuracy against the truth, at most {max(gaps):.3f}" if gaps else ""
    codes = len({row["code"] for row in rows})
    told_shares = "; ".join(
        f"{oracle} {fmean(found):.0%} of {len(found)} loops (least {min(found):.0%})" for oracle, found in shares.items() if found
    )
    return "\n".join(
        [
            f"{len(rows)} loops, {sum(len(row['cycles']) for row in rows)} cycles, {len(trained)} candidates, {len(promoted)} promotions; "
            f"{sum(row['cpu_seconds'] for row in rows) / 3600:.1f} CPU hours; {codes} state{'s' * (codes > 1)} of the code",
            f"share of the gain on the tasks that nothing was tuned on: {told_shares or 'no oracles'}{lacking}",
            f"promotions shown (99 %) to lose more than 2 points: {len(lost)}; shown to lose more than 10 in a slice: {len(shown)}; "
            f"with a slice estimated more than 10 points lower: {len(in_slice)}; "
            f"with a slice 2 to 10 points lower: {len(small)}",
            f"candidates worse by more than the margin {margin:g}: {len(worse)}; past the first canary step: {len(past)}; promoted: "
            f"{sum(cycle['state'] == 'promoted' for cycle in worse)}",
            f"candidates shown (99 %) to be better, but not promoted: {len(better)}",
        ]
    )
