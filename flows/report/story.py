"""Describes a cycle in text and tables, from its ledger rows alone: the data, the decisions with their evidence, and the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ratchet.contracts.cycle import ApprovalKind, Entry
from ratchet.contracts.data.datasets import ProbeReport, Snapshot, TrainingSet
from ratchet.contracts.evaluation import UNLIKE, EvalReport, Interval, Result
from ratchet.contracts.failure_reasons import told
from ratchet.contracts.jobs.training import Usage
from ratchet.contracts.rows import Judged, content_of
from ratchet.contracts.steps import ENDS, STEPS, FreezeResult, PlanResult, ProbeResult, Step
from ratchet.flows.core.asking.teaching import BELIEF_COLUMNS, USED_EVIDENCE, belief_rows, round_notes, round_text
from ratchet.flows.core.asking.teaching import used as taught
from ratchet.flows.core.data_notes import (
    SIGNAL_COLUMNS,
    SIGNALS_NOTE,
    count_rows,
    data_warnings,
    feedback_note,
    left_out,
    masking_note,
    near_note,
    references_note,
    signal_rows,
    spare_holdout,
    warned,
)
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.core.requests import ApprovalView
from ratchet.flows.core.searches.search_results import COLUMNS, order_text, picture, results, sentences
from ratchet.flows.core.waiting import waiting_text
from ratchet.flows.report.run_text import length_text, teachers_text

Cells = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of text: column headings and rows of cells."""

    columns: Cells
    rows: tuple[Cells, ...]


@dataclass(frozen=True)
class Section:
    """One section of the description: a title, sentences, and an optional table."""

    title: str
    text: tuple[str, ...]
    table: Table | None = None
    folded: bool = False
    """Whether a page shows the table only on request."""
    picture: tuple[str, ...] = ()
    """Lines of text in a fixed-width font. A page has a chart instead."""
    step: Step | None = None
    """The step that the section is about; None if it is not about a step of the cycle."""


def tell(
    entries: Sequence[Entry], rollout: RolloutView | None, requests: Mapping[ApprovalKind, ApprovalView], now: datetime
) -> list[Section]:
    """Return the sections that describe a cycle, up to its current state.

    `entries` are the rows of the cycle's stream; `rollout` is None if no rollout has started. `requests` are the cycle's approval requests.
    """
    cycle = fold_cycle(entries)
    chapters: dict[Step, list[Section | None]] = {
        Step.FREEZE: [_opening(cycle), _teacher(cycle), _data(cycle), _signals(cycle)],
        Step.PROBE: [_probe(cycle)],
        Step.PLAN: [_evidence(cycle), _choice(cycle)],
        Step.APPROVE_TRAINING: [_approval(cycle, ApprovalKind.TRAINING, requests, now)],
        Step.TRAIN: [_search(cycle), _training(cycle)],
        Step.ACCEPT: [_stated(cycle, Step.ACCEPT)] if cycle.given else [],
        Step.EVALUATE: [_gate(cycle)],
        Step.JUDGE: [_checks(cycle)],
        Step.APPROVE_ROLLOUT: [_approval(cycle, ApprovalKind.ROLLOUT, requests, now)],
        Step.ROLL_OUT: [_rollout(rollout)],
        Step.PROMOTE: [_ending(cycle, entries, requests, now)],
    }
    return [replace(section, step=step) for step in Step for section in chapters.get(step, [_stated(cycle, step)]) if section is not None]


def _stated(cycle: CycleView, step: Step) -> Section | None:
    """Return the section of a step whose result is one sentence."""
    done = cycle.done.get(step)
    return Section(STEPS[step].title, (f"{done.result.sentence}.",)) if done is not None else None


def _opening(cycle: CycleView) -> Section:
    text = [
        f"{cycle.id} of line {cycle.line!r} was opened at {cycle.opened_at:%Y-%m-%d %H:%M:%S} UTC ({cycle.opened.reason}).",
        f"The champion was {cycle.champion.tag}; {_origin(cycle)}. {_baseline(cycle)}"
        f"The content of the loop file was frozen (digest {cycle.opened.loop_digest[:12]}).",
    ]
    return Section("Opened", tuple(text))


def _origin(cycle: CycleView) -> str:
    given = cycle.given
    if given is None:
        what = "the champion" if cycle.start == cycle.champion else "the base model" if cycle.start.cycle is None else "an earlier version"
        return f'training starts from {cycle.start.tag}, {what} (line.start_from = "{cycle.loop.line.start_from}")'
    changes = f"It changes the {' and the '.join(given.differs)} of the champion." if given.differs else "It changes the weights only."
    return f"the candidate was trained elsewhere, and copied from {given.folder} (model {given.model.id[:12]}). {changes.removesuffix('.')}"


def _baseline(cycle: CycleView) -> str:
    if cycle.baseline == cycle.champion:
        return ""
    return f"The champion is recalled, so the candidate is compared with {cycle.baseline.tag}. "


def recalled(line: LineView, cycle: CycleView) -> Section | None:
    """Return the section about the recall of the cycle's version; None if it is not recalled."""
    reason = line.recalled.get(cycle.candidate.tag) if cycle.candidate else None
    if reason is None or cycle.candidate is None:
        return None
    tag = cycle.candidate.tag
    serves = f" {tag} still serves; `ratchet rollback` returns to an earlier version." if line.champion and line.champion.tag == tag else ""
    return Section("Recalled", (f"{tag}: {reason}. No further version is trained from it.{serves}",))


def loop_files(line: LineView) -> Section | None:
    """Return the section about the decisions that another loop file is the one of the line; None if there were none."""
    text = [
        f"At {at:%Y-%m-%d %H:%M:%S} UTC, {taken.actor} decided that line {line.line!r} belongs to {Path(taken.folder) / taken.file}"
        f"{f', and no longer to {taken.former}' if taken.former else ''}: {taken.reason}"
        for at, taken in line.takeovers
    ]
    return Section("Loop file", tuple(text)) if text else None


def _data(cycle: CycleView) -> Section | None:
    frozen = cycle.get(FreezeResult)
    if frozen is None:
        return None
    edition, snapshot = frozen.edition, frozen.snapshot
    text = [
        f"The traces and feedback in the lake were frozen as snapshot {snapshot.content[:12]}; later records are not part of this cycle.",
        f"Holdout edition {edition.number} contains {edition.size} prompts that are excluded from training"
        + (f"; the golden set contains {edition.golden_size}." if edition.golden_size else "; there is no golden set."),
    ]
    text += [
        f"The judge {belief.name} ({belief.model}) {'was' if belief.believed else 'had weight 0, because it was not'} believed: "
        f"{belief.reason}."
        for belief in snapshot.judges
    ]
    text += _notes(snapshot)
    text += [f"Warning: {one}." for one in [spare_holdout(edition, snapshot.counts)] if one]
    return Section("Data", tuple(text), Table(("what", "records"), tuple(count_rows(snapshot.counts))))


def _teacher(cycle: CycleView) -> Section | None:
    """Return the section about what was asked of the teacher, and what became of its answers; None if none was asked."""
    frozen, planned = cycle.get(FreezeResult), cycle.get(PlanResult)
    if frozen is None or (frozen.teacher is None and not frozen.snapshot.teachers):
        return None
    text: list[str] = []
    if frozen.teacher is not None:
        text += [f"{round_text(frozen.teacher)}; {frozen.teacher.kept:,} answers were taken in.", *round_notes(frozen.teacher)]
    beliefs = frozen.snapshot.teachers
    confirmed, believed, refused = (sum(getattr(one, name) for one in beliefs) for name in ("confirmed", "believed", "refused"))
    text.append(
        f"Of all answers of teachers in the snapshot, a scorer confirms {confirmed:,}, {believed:,} count because of the agreement with "
        f"people in their slice, and {refused:,} do not count."
    )
    share = taught(planned.dataset.evidence, USED_EVIDENCE) if planned else None
    if share is not None:
        text.append(f"The training set uses {share[0]:,} of the {share[1]:,} answers that count.")
    if frozen.teacher is not None and frozen.teacher.asked:
        text.append(
            f"If the model learns a right answer to each of these questions and nothing else, its accuracy rises by "
            f"{frozen.teacher.expected:.3f}. `ratchet teacher results` says later what was learned."
        )
    return Section("Teacher", tuple(text), Table(BELIEF_COLUMNS, tuple(belief_rows(beliefs))) if beliefs else None)


def _signals(cycle: CycleView) -> Section | None:
    frozen = cycle.get(FreezeResult)
    return signals_section(frozen.snapshot) if frozen else None


def signals_section(snapshot: Snapshot) -> Section | None:
    """Return the section about the signals of a snapshot and their agreement with ratings; None without signals."""
    if not snapshot.signals:
        return None
    return Section("Signals", (SIGNALS_NOTE,), Table(SIGNAL_COLUMNS, tuple(signal_rows(snapshot.signals))))


def _notes(snapshot: Snapshot) -> list[str]:
    """Return sentences about the frozen data."""
    notes = [f"{masking_note(snapshot.masked)}.", *filter(None, [feedback_note(snapshot.counts), references_note(snapshot.counts)])]
    notes += [f"{one}." for one in [near_note(snapshot.near)] if one]
    return [*notes, *(f"Warning: {one}." for one in data_warnings(snapshot))]


def _probe(cycle: CycleView) -> Section | None:
    probed = cycle.get(ProbeResult)
    report = probed.report if probed else None
    if report is None:
        return None
    text = (
        f"{cycle.start.tag} answered {report.prompts} training prompts {report.samples_per_prompt} times each: "
        f"{report.answered} answers, {report.scored} scored, {report.failures} failed{_because(report.reasons)}.",
        f"Mean reward {_share(report.mean_reward)}; the best of {report.samples_per_prompt} reaches {_share(report.best_of_k)}; "
        f"rewards differ between answers for {_percent(report.group_coverage)} of the prompts.",
    )
    return Section("Probe", (*text, *probed_champion_text(report, cycle.baseline.tag), *probed_ends(report)))


def probed_champion_text(report: ProbeReport, champion: str) -> list[str]:
    """Return the sentence on the champion's usual reward, by which the rules decide whether a training can gain something."""
    if report.usual_reward is None:
        return []
    new = "" if report.new_prompts is None else f", on {report.new_prompts} of these prompts, none of which it was trained on"
    return [f"The most frequent answers of {champion}, the champion, have a mean reward of {report.usual_reward:.3f}{new}."]


def probed_ends(report: ProbeReport) -> list[str]:
    """Return the sentence on answers of the probe that were cut; none if the server does not say how its answers ended."""
    if report.cut is None or not report.answered:
        return []
    return [f"{report.cut} of the answers ({report.cut / report.answered:.1%}) were cut at probe.max_tokens."]


def _evidence(cycle: CycleView) -> Section | None:
    planned = cycle.get(PlanResult)
    return evidence_section(planned.dataset, left_out(planned.choice)) if planned else None


def evidence_section(dataset: TrainingSet, more: Sequence[str] = ()) -> Section | None:
    """Say what each correction, reference and answer of the snapshot became in a training set, or why it became nothing; None without any.

    `more` are further sentences.
    """
    account = dataset.evidence
    if not account:
        return None
    rows = tuple(
        (kind, what, str(n), f"{n / sum(found.values()):.0%}")
        for kind, found in account.items()
        for what, n in sorted(found.items(), key=lambda one: (one[0].startswith("nothing"), -one[1]))
    )
    total = sum(sum(found.values()) for found in account.values())
    unused = sum(n for found in account.values() for what, n in found.items() if what.startswith("nothing"))
    text = (
        f"Of {total:,} rows of evidence in the snapshot, {total - unused:,} were used; {unused:,} became nothing, for the reasons below. "
        "GRPO also samples its own answers to all training prompts that can be scored.",
        *more,
    )
    return Section("Evidence", text, Table(("evidence", "became", "rows", "share of its kind"), rows), folded=True)


def _choice(cycle: CycleView) -> Section | None:
    if cycle.choice is None:
        return None
    rules = Table(
        ("rule", "holds", "evidence", "effect"),
        tuple((rule.rule, "yes" if rule.holds else "no", rule.evidence, rule.effect) for rule in cycle.choice.rules),
    )
    return Section("Choice", (cycle.choice.reason + ".", *left_out(cycle.choice), *warned(cycle.choice)), rules, folded=True)


def _approval(cycle: CycleView, kind: ApprovalKind, requests: Mapping[ApprovalKind, ApprovalView], now: datetime) -> Section | None:
    request = requests.get(kind)
    answer = cycle.answers.get(kind) or (request.answer if request else None)
    title = f"Approval of the {kind}"
    if answer is not None:
        verb = "Approved" if answer.approve else "Rejected"
        at = f" at {request.answered_at:%Y-%m-%d %H:%M} UTC" if request and request.answered_at else ""
        who = "automatic, as configured" if answer.identity == "auto" else f"identity {answer.identity}, via {answer.via}"
        return Section(title, (f"{verb} by {answer.actor} ({who}){at}." + (f" “{answer.note}”" if answer.note else ""),))
    if kind not in cycle.asked:
        return None
    expires = f"{cycle.asked[kind]:%Y-%m-%d %H:%M} UTC"
    if now >= cycle.asked[kind] or (request is not None and request.expired):
        return Section(title, (f"Requested, not answered; the request could be answered until {expires}, or until the cycle ended.",))
    return Section(title, (f"Requested, not answered; the request expires at {expires}.",))


def _search(cycle: CycleView) -> Section | None:
    if cycle.plan is None or cycle.plan.search is None:
        return None
    search, chosen = cycle.plan.search, cycle.chosen
    budget = f"All others together may take {search.budget:,.0f} s of job time."
    text = [f"The plan permits {len(search.variants)} recipes. {order_text(search)} {budget}"]
    text += [f"Trial {chosen.trial} ({chosen.variant}) was chosen: {chosen.reason}."] if chosen else []
    table = Table(COLUMNS, tuple(results(cycle.plan, cycle.trials, chosen))) if cycle.trials else None
    return Section("Search over recipes", (*text, *sentences(cycle)), table, picture=picture(cycle.plan, cycle.trials, chosen))


def _training(cycle: CycleView) -> Section | None:
    plan = cycle.trained_plan
    if plan is None:
        return None
    text = [f"Plan {plan.id[:12]}: {plan.method.upper()}, seed {plan.seed}, code {plan.code[:12]}."]
    if cycle.checkpoint is not None:
        shown = {
            name: value
            for name, value in cycle.checkpoint.metrics.items()
            if not name.startswith(("development_", "published_", "teacher_"))
        }
        figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(shown.items()))
        text.append(
            f"The checkpoint of step {cycle.checkpoint.step} was accepted as version "
            f"{cycle.candidate.tag if cycle.candidate else '?'} ({figures})."
        )
        text += length_text(cycle.checkpoint.metrics)
        text += teachers_text(cycle.checkpoint.metrics)
    text += [_minted(cycle, attempt) for attempt in sorted(cycle.adjustments)]
    text += [
        f"An accepted checkpoint could not be used for resuming: {refused}."
        for one in cycle.incarnations
        if (begun := cycle.begun(one.attempt, one.number))
        for refused in begun.refused
    ]
    text += [_spent(attempt, usage) for attempt, usage in _usage(cycle).items()]
    rows = tuple((str(i.attempt), str(i.number), i.job, str(i.outcome or "running"), i.reason) for i in cycle.incarnations)
    return Section("Training", tuple(text), Table(("attempt", "incarnation", "job", "ended", "reason"), rows) if rows else None)


def _usage(cycle: CycleView) -> dict[int, Usage]:
    """Return the last usage measurement of each attempt number."""
    return {i.attempt: i.usage for i in cycle.incarnations if i.usage is not None}


def _spent(attempt: int, usage: Usage) -> str:
    began = "never had all processes running" if usage.started is None else f"had all processes running after {usage.started:.0f} s"
    gpus = f"GPU-minutes: {usage.used / 60:.1f} used, {usage.idle / 60:.1f} idle, {usage.lost / 60:.1f} lost; " if usage.used else ""
    cost = f" (cost {usage.cost:.2f} by the price table)" if usage.cost else ""
    return f"Attempt {attempt} {began}; {gpus}node-minutes: {usage.nodes / 60:.1f}{cost}; restarts by the cluster: {usage.preemptions}."


def _minted(cycle: CycleView, attempt: int) -> str:
    """Describe why the previous attempt was stopped, the changed settings, and the start point of this attempt."""
    adjustment = cycle.adjustments[attempt]
    names = (("the learning rate", "learning_rate"), ("the KL penalty (beta)", "kl"), ("the memory use", "memory"))
    changed = [f"{what} × {getattr(adjustment, name):g}" for what, name in names if getattr(adjustment, name) != 1.0]
    begun = cycle.begun(attempt, 1)
    point = begun.resume if begun else None
    begins = f"step {point.step} of attempt {point.attempt}, the last good step" if point else "the start model"
    return (
        f"The rule {adjustment.rules[-1]!r} stopped attempt {attempt - 1}: {adjustment.reason}. "
        f"Attempt {attempt} ran with {' and '.join(changed) or 'unchanged settings'}, starting from {begins}; the plan is unchanged."
    )


def _gate(cycle: CycleView) -> Section | None:
    report = cycle.report
    if report is None or cycle.candidate is None:
        return None
    overall = report.comparison("overall")
    text = [
        f"Both models received {report.asked} prompts over HTTP; {report.answered_by_both} prompts have a scored answer from both models."
    ]
    failed = {key.replace(":", " ", 1): n for key, n in report.failures.items() if n and key != UNLIKE}
    text += [f"Prompts without a score{_because(failed)}."] if failed else []
    text += sampling(report.samples, report.temperature)
    text += stopping(report)
    if report.cut is not None:
        text.append(f"Answers that were cut at gate.max_tokens: {report.cut.champion:.1%} → {report.cut.candidate:.1%}.")
    if overall:
        change, error = f"{overall.champion:.3f} → {overall.candidate:.3f}", (1 - overall.difference.level) / 2
        text.append(f"Mean reward {change}; difference {interval(overall.difference)}, error per side {error:.2g}.")
    rows = tuple((c.name, str(c.n), f"{c.champion:.3f}", f"{c.candidate:.3f}", interval(c.difference)) for c in report.comparisons)
    return Section(f"Gate: {cycle.candidate.tag} against {cycle.baseline.tag}", tuple(text), Table(GATE_COLUMNS, rows))


def _because(reasons: Mapping[str, int]) -> str:
    """Return the reasons of failures with their counts, as the end of a sentence; empty text without any."""
    return f": {told(reasons)}" if reasons else ""


def sampling(samples: int, temperature: float) -> list[str]:
    """Return the sentence on sampled answers at the gate; none for greedy ones. `samples` is the number of answers per prompt."""
    if temperature == 0:
        return []
    if samples == 1:
        return [f"Each model gave one answer to each prompt, sampled at temperature {temperature:g}."]
    return [
        f"Each model gave {samples} answers to each prompt, sampled at temperature {temperature:g}; the reward of a prompt is their mean."
    ]


def stopping(report: EvalReport) -> list[str]:
    """Return the sentences on an evaluation that stopped before its last prompt; none if it asked all."""
    overall = report.comparison("overall")
    level = (
        f" The interval over all prompts has the error of this look, {(1 - overall.difference.level) / 2:.1e} per side." if overall else ""
    )
    return [f"The evaluation {report.stop}.{level}"] if report.stop else []


GATE_COLUMNS = ("prompts", "n", "champion", "candidate", "difference")


def _checks(cycle: CycleView) -> Section | None:
    if cycle.verdict is None:
        return None
    phrases = {Result.PASS: "The candidate passes", Result.FAIL: "The candidate fails"}
    word = phrases.get(cycle.verdict.result, "The evidence is inconclusive, so the candidate is held")
    rows = tuple((check.check, str(check.result), check.reason) for check in cycle.verdict.checks)
    added = [f"{one.name} ({one.distribution} {one.version})" for one in cycle.verdict.versions if one.distribution != "ratchet"]
    paragraphs = (f"{word}.", f"Checks of other packages: {', '.join(added)}.") if added else (f"{word}.",)
    return Section("Verdict", paragraphs, Table(("check", "result", "reason"), rows))


def _rollout(rollout: RolloutView | None) -> Section | None:
    if rollout is None:
        return None
    mirror = rollout.opened.settings.mirror > 0
    rows = tuple(_judgement(row, mirror) for row in rollout.judgements)
    steps = ", ".join(f"{step.weight:g} % at {step.since:%H:%M:%S}" for step in rollout.steps)
    ended = f"The rollout ended {rollout.end.replace('_', ' ')}: {rollout.reason}." if rollout.end else "The rollout is running."
    columns = ("time", "weight", "requests", "rating difference", "error difference", *(["mirrored pairs"] if mirror else []), "judgement")
    return Section("Rollout", (f"Weights: {steps or 'none yet'}.", ended), Table(columns, rows))


def _judgement(row: Entry, mirror: bool) -> tuple[str, ...]:
    found = content_of(Judged, row)
    word = found.judgement
    pairs = word.tests.get("mirrored")
    return (
        f"{row.at:%H:%M:%S}",
        f"{found.weight:g} %",
        f"{word.candidate_requests} of {word.requests}" if word.requests or not (mirror or word.unavailable) else "–",
        interval(word.quality) if word.quality else "–",
        interval(word.errors) if word.errors else "–",
        *([f"{pairs.n}: {pairs.estimate:+.3f} ± {pairs.error:.3f}" if pairs else "–"] if mirror else []),
        f"{word.result}: {'; '.join(word.reasons)}",
    )


def _ending(cycle: CycleView, entries: Sequence[Entry], requests: Mapping[ApprovalKind, ApprovalView], now: datetime) -> Section:
    if cycle.state not in ENDS:
        return Section("Now", (f"The cycle is open: {waiting_text(cycle, requests, now)}.",))
    seconds = (entries[-1].at - entries[0].at).total_seconds()
    serves = cycle.candidate.tag if cycle.state == "promoted" and cycle.candidate else cycle.champion.tag
    return Section(
        f"Ended: {str(cycle.state).replace('_', ' ')}",
        (
            f"The cycle ended after {seconds:.0f} s: {cycle.reason}.",
            f"Serving version: {serves}.",
            f"The ledger records this cycle in {len(entries)} rows of one hash chain.",
        ),
    )


def ledger_table(entries: Sequence[Entry]) -> Table:
    """Return the ledger rows as a table, with long values shortened."""
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
    """Format an interval, for example `+0.137 (+0.098 to +0.176)`."""
    return f"{value.estimate:+.3f} ({value.low:+.3f} to {value.high:+.3f})"


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.0%}"
