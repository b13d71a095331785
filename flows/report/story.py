"""A cycle's story, from its rows alone: what was there, what was decided on which figures, by whom, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contracts.cycle import ENDS, ApprovalKind, Entry, Step
from contracts.evaluation import EvalReport, Interval, Result
from contracts.serving import StepJudgement
from contracts.training import Usage
from flows.core.views import CycleView, RolloutView, fold_cycle, train_key

Cells = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Columns and rows of text."""

    columns: Cells
    rows: tuple[Cells, ...]


@dataclass(frozen=True)
class Section:
    """One chapter: sentences, then a table where figures are many."""

    title: str
    text: tuple[str, ...]
    table: Table | None = None


def tell(entries: Sequence[Entry], rollout: RolloutView | None) -> list[Section]:
    """The chapters of one cycle, as far as it has come."""
    cycle = fold_cycle(entries)
    chapters = [
        _opening(cycle),
        _data(cycle),
        _probe(cycle),
        _choice(cycle),
        _approval(cycle, ApprovalKind.TRAINING),
        _training(cycle),
        _gate(cycle),
        _checks(cycle),
        _approval(cycle, ApprovalKind.ROLLOUT),
        _rollout(rollout),
        _ending(cycle, entries),
    ]
    return [chapter for chapter in chapters if chapter is not None]


def _opening(cycle: CycleView) -> Section:
    text = [
        f"{cycle.id} of line {cycle.line!r} was opened at {cycle.opened_at:%Y-%m-%d %H:%M:%S} UTC ({cycle.opened['reason']}).",
        f"{cycle.champion.tag} served; training starts from {cycle.start.tag}. "
        f"The loop file's content was frozen (digest {str(cycle.opened['loop_digest'])[:12]}).",
    ]
    return Section("Opened", tuple(text))


def _data(cycle: CycleView) -> Section | None:
    if Step.FREEZE not in cycle.done:
        return None
    output = cycle.done[Step.FREEZE]
    edition, counts = output["edition"], output["snapshot"]["counts"]
    text = [
        f"Traces and feedback that were in the lake by then were frozen as snapshot {output['snapshot']['content'][:12]}; "
        "whatever comes later touches the next snapshot only.",
        f"Holdout edition {edition['number']} holds {edition['size']} prompts that training never sees"
        + (f", and the golden set {edition['golden_size']}." if edition["golden_size"] else "; there is no golden set."),
    ]
    return Section("Data", tuple(text), Table(("count", "records"), tuple((name, str(n)) for name, n in counts.items())))


def _probe(cycle: CycleView) -> Section | None:
    report = cycle.done.get(Step.PROBE)
    if not report:
        return None
    text = (
        f"{cycle.start.tag} answered {report['prompts']} training prompts {report['samples_per_prompt']} times each: "
        f"{report['answered']} answers, {report['scored']} scored, {report['failures']} failed.",
        f"Mean reward {_share(report['mean_reward'])}; the best of {report['samples_per_prompt']} reaches {_share(report['best_of_k'])}; "
        f"rewards are mixed for {_percent(report['group_coverage'])} of the prompts.",
    )
    return Section("Probe", text)


def _choice(cycle: CycleView) -> Section | None:
    if cycle.choice is None:
        return None
    rules = Table(
        ("rule", "holds", "evidence", "so"),
        tuple((rule.rule, "yes" if rule.holds else "no", rule.evidence, rule.effect) for rule in cycle.choice.rules),
    )
    return Section("Choice", (cycle.choice.reason + ".",), rules)


def _approval(cycle: CycleView, kind: ApprovalKind) -> Section | None:
    answer = cycle.answers.get(kind)
    title = f"Approval of the {kind}"
    if answer is not None:
        verb = "approved" if answer.approve else "rejected"
        who = "nobody was asked: the loop file says auto" if answer.identity == "auto" else f"identity {answer.identity}, by {answer.via}"
        return Section(title, (f"{answer.actor} {verb} it ({who})." + (f" “{answer.note}”" if answer.note else ""),))
    if kind in cycle.asked:
        return Section(title, (f"Asked; unanswered until {cycle.asked[kind]:%Y-%m-%d %H:%M} UTC at most.",))
    return None


def _training(cycle: CycleView) -> Section | None:
    if cycle.plan is None:
        return None
    text = [f"Plan {cycle.plan.id[:12]}: {cycle.plan.method.upper()}, seed {cycle.plan.seed}, code {cycle.plan.code[:12]}."]
    if cycle.checkpoint is not None:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(cycle.checkpoint.metrics.items()))
        text.append(
            f"The checkpoint of step {cycle.checkpoint.step} was accepted as {cycle.candidate.tag if cycle.candidate else '?'} ({figures})."
        )
    text += [_minted(cycle, attempt) for attempt in sorted(cycle.adjustments)]
    text += [
        f"A step that was accepted was not resumed from: {refused}."
        for key in sorted(cycle.done)
        for refused in (cycle.done[key].get("refused", ()) if key.startswith(f"{Step.TRAIN}/") else ())
    ]
    text += [_spent(attempt, usage) for attempt, usage in _usage(cycle).items()]
    rows = tuple((str(i.attempt), str(i.number), i.job, str(i.outcome or "running"), i.reason) for i in cycle.incarnations)
    return Section("Training", tuple(text), Table(("attempt", "incarnation", "job", "ended", "why"), rows) if rows else None)


def _usage(cycle: CycleView) -> dict[int, Usage]:
    """Attempt -> its last reading."""
    return {i.attempt: i.usage for i in cycle.incarnations if i.usage is not None}


def _spent(attempt: int, usage: Usage) -> str:
    began = "never started whole" if usage.started is None else f"started whole after {usage.started:.0f} s"
    gpus = f"GPU-minutes used {usage.used / 60:.1f}, idle {usage.idle / 60:.1f}, lost {usage.lost / 60:.1f}; " if usage.used else ""
    cost = f", {usage.cost:.2f} by the price table" if usage.cost else ""
    return f"Attempt {attempt} {began}; {gpus}machine-minutes {usage.nodes / 60:.1f}{cost}; {usage.preemptions} restarts by the cluster."


def _minted(cycle: CycleView, attempt: int) -> str:
    """Why the attempt before was stopped, what was changed, and from where it went on."""
    adjustment = cycle.adjustments[attempt]
    names = (("the learning rate", "learning_rate"), ("the pull to the start model (beta)", "kl"), ("what is in memory at once", "memory"))
    changed = [f"{what} × {getattr(adjustment, name):g}" for what, name in names if getattr(adjustment, name) != 1.0]
    point = cycle.done.get(train_key(attempt, 1), {}).get("resume")
    begins = f"step {point['step']} of attempt {point['attempt']}, the last good one" if point else "the start model"
    return (
        f"Attempt {attempt - 1} was stopped by the rule {adjustment.rules[-1]!r}: {adjustment.reason}. "
        f"Attempt {attempt} ran with {' and '.join(changed) or 'nothing changed'}, from {begins}; the plan stayed as it was."
    )


def report_of(cycle: CycleView) -> EvalReport | None:
    """The gate's figures, where the cycle has come so far."""
    output = cycle.done.get(Step.EVALUATE)
    return EvalReport.model_validate(output["report"]) if output else None


def _gate(cycle: CycleView) -> Section | None:
    report = report_of(cycle)
    if report is None or cycle.candidate is None:
        return None
    overall = next((c for c in report.comparisons if c.name == "overall"), None)
    text = [f"Both models answered {report.asked} prompts over HTTP; {report.answered_by_both} were answered and scored on both sides."]
    if overall:
        change = f"{overall.champion:.3f} → {overall.candidate:.3f}"
        text.append(f"Mean reward {change}; difference {interval(overall.difference)} at level {overall.difference.level:g}.")
    rows = tuple((c.name, str(c.n), f"{c.champion:.3f}", f"{c.candidate:.3f}", interval(c.difference)) for c in report.comparisons)
    return Section(f"Gate: {cycle.candidate.tag} against {cycle.champion.tag}", tuple(text), Table(GATE_COLUMNS, rows))


GATE_COLUMNS = ("prompts", "n", "champion", "candidate", "difference")


def _checks(cycle: CycleView) -> Section | None:
    if cycle.verdict is None:
        return None
    words = {Result.PASS: "The candidate passes", Result.FAIL: "The candidate fails"}
    word = words.get(cycle.verdict.result, "The evidence is inconclusive, and inconclusive holds")
    rows = tuple((check.check, str(check.result), check.reason) for check in cycle.verdict.checks)
    return Section("Verdict", (f"{word}.",), Table(("check", "result", "figures"), rows))


def _rollout(rollout: RolloutView | None) -> Section | None:
    if rollout is None:
        return None
    judgements = [(row, StepJudgement.model_validate(row.data["judgement"])) for row in rollout.judgements]
    rows = tuple(
        (
            f"{row.at:%H:%M:%S}",
            f"{row.data['weight']:g} %",
            f"{word.candidate_requests} of {word.requests}",
            interval(word.quality) if word.quality else "–",
            interval(word.errors) if word.errors else "–",
            f"{word.result}: {'; '.join(word.reasons)}",
        )
        for row, word in judgements
    )
    steps = ", ".join(f"{step.weight:g} % at {step.since:%H:%M:%S}" for step in rollout.steps)
    ended = f"It ended {rollout.end.replace('_', ' ')}: {rollout.reason}." if rollout.end else "It is running."
    columns = ("time", "weight", "requests", "rating difference", "error difference", "judgement")
    return Section("Rollout", (f"Weights: {steps or 'none yet'}.", ended), Table(columns, rows))


def _ending(cycle: CycleView, entries: Sequence[Entry]) -> Section:
    if cycle.state not in ENDS:
        return Section("Now", (f"The cycle is open: {cycle.state}.",))
    seconds = (entries[-1].at - entries[0].at).total_seconds()
    serves = cycle.candidate.tag if cycle.state == "promoted" and cycle.candidate else cycle.champion.tag
    return Section(
        f"Ended: {str(cycle.state).replace('_', ' ')}",
        (
            f"After {seconds:.0f} s: {cycle.reason}.",
            f"{serves} serves.",
            f"{len(entries)} rows in the ledger tell this, in one hash chain.",
        ),
    )


def ledger_table(entries: Sequence[Entry]) -> Table:
    """The rows themselves, shortened."""
    return Table(
        ("row", "time", "kind", "key", "hash", "data"),
        tuple((str(e.seq), f"{e.at:%H:%M:%S.%f}"[:-3], e.kind, e.key, e.hash[:12], _short(e.data)) for e in entries),
    )


def _short(data: dict[str, Any]) -> str:
    text = ", ".join(f"{key} {_leaf(value)}" for key, value in data.items() if _leaf(value))
    return text if len(text) <= 160 else text[:157] + "…"


def _leaf(value: Any) -> str:
    if isinstance(value, str):
        return value[:12] if len(value) == 64 else value[:60]
    return str(value) if isinstance(value, int | float | bool) else ""


def interval(value: Interval) -> str:
    """+0.137 (+0.098 to +0.176)"""
    return f"{value.estimate:+.3f} ({value.low:+.3f} to {value.high:+.3f})"


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "an unmeasured share" if value is None else f"{value:.0%}"
