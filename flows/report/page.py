"""Writes the report of a line as one self-contained HTML file, without scripts or external resources."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ratchet.contracts.cycle import Entry
from ratchet.contracts.errors import RatchetError
from ratchet.contracts.evaluation import Comparison
from ratchet.contracts.hash_chain import verify_chain
from ratchet.contracts.ids import line_stream, rollout_stream
from ratchet.contracts.ports import Artifacts, Ledger
from ratchet.contracts.rows import Judged, content_of
from ratchet.contracts.steps import FreezeResult
from ratchet.flows.composition.artifacts import open_artifacts
from ratchet.flows.config.home import Home
from ratchet.flows.core.asking.parquet_rows import rows_of
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle
from ratchet.flows.core.folds.line import LineView, fold_line
from ratchet.flows.core.folds.rollout import RolloutView, fold_rollout
from ratchet.flows.core.searches.search import demanded, difference
from ratchet.flows.core.searches.search import measured as with_score
from ratchet.flows.core.waiting import waiting_text
from ratchet.flows.engine.choice.training_curves import curve_marks, read_event_logs, training_runs
from ratchet.flows.engine.line import cycle_requests
from ratchet.flows.report.charts import ChartPair, Line, Point, Tick, bars, curves, dumbbells, funnel
from ratchet.flows.report.dataset_card import dataset_card
from ratchet.flows.report.story import Section, Table, interval, ledger_table, recalled, tell
from ratchet.runtime.artifacts import write_atomic


@dataclass(frozen=True)
class Chapter:
    """The data of one cycle for the page template. A chart without data is empty markup."""

    cycle: CycleView
    headline: str
    sections: list[Section]
    accuracy: Markup
    evidence: Markup
    rewards: Markup
    card: list[Section]
    """The dataset card; empty if the data are not readable."""
    search: Markup
    """Chart of the trials of a search over recipes."""
    training: list[tuple[str, Markup]]
    """(caption, chart) per training metric."""
    ledger: Table


def write_page(ledger: Ledger, home: Home, line: str, out: Path) -> Path:
    """Write the report of `line` to the file `out` and return its absolute path."""
    write_atomic(out, render_report(ledger, open_artifacts(home), line, datetime.now(UTC)).encode())
    return out.absolute()


def render_report(ledger: Ledger, artifacts: Artifacts, line: str, now: datetime) -> str:
    """Return the HTML of the report of `line`; `now` is the time shown as its creation time.

    Raises Permanent if a hash chain is broken, because a report from a modified ledger would be false.
    """
    view = fold_line(line, ledger.read(line_stream(line)))
    chapters = [_chapter(ledger, artifacts, view, stream, now) for stream in ledger.streams(f"cycle/{line}/")]
    template = Environment(loader=PackageLoader("ratchet.flows.report"), autoescape=True, undefined=StrictUndefined).get_template(
        "page.html"
    )
    summary = [_summary(chapter) for chapter in chapters]
    return template.render(line=view, chapters=chapters[::-1], summary=summary, now=now, rows=ledger_table(view.rows))


def _chapter(ledger: Ledger, artifacts: Artifacts, line: LineView, stream: str, now: datetime) -> Chapter:
    entries = ledger.read(stream)
    rows = ledger.read(rollout_stream(stream))
    for chain in (entries, rows):
        verify_chain(chain)
    cycle, rollout = fold_cycle(entries), fold_rollout(rows) if rows else None
    requests = cycle_requests(ledger, cycle)
    return Chapter(
        cycle=cycle,
        headline=cycle.reason or f"open: {waiting_text(cycle, requests, now)}",
        sections=[*tell(entries, rollout, requests, now), *filter(None, [recalled(line, cycle)])],
        accuracy=_accuracy(cycle),
        evidence=_evidence(rollout),
        rewards=_rewards(cycle, artifacts),
        card=_card(cycle, artifacts),
        search=_search(cycle),
        training=_training(cycle, artifacts),
        ledger=ledger_table([*entries, *rows]),
    )


def _summary(chapter: Chapter) -> tuple[str, ...]:
    cycle = chapter.cycle
    overall = cycle.report.comparison("overall") if cycle.report else None
    change = f"{overall.champion:.3f} → {overall.candidate:.3f}" if overall else "–"
    method = cycle.method_name or "–"
    return (cycle.id, f"{cycle.opened_at:%Y-%m-%d %H:%M}", method, change, str(cycle.state))


def _accuracy(cycle: CycleView) -> Markup:
    report = cycle.report
    if report is None or cycle.candidate is None:
        return Markup("")
    rows = [_pair(c) for c in report.comparisons]
    return dumbbells(rows, cycle.baseline.tag, cycle.candidate.tag)


def _pair(c: Comparison) -> ChartPair:
    return ChartPair(c.name.removeprefix("slice:"), c.champion, c.candidate, c.difference.low, c.difference.high, c.n)


def _evidence(rollout: RolloutView | None) -> Markup:
    """Chart every evaluation of the rating difference over time."""
    if rollout is None or not rollout.judgements:
        return Markup("")
    start = rollout.judgements[0].at
    points = [point for row in rollout.judgements if (point := _point(row, start)) is not None]
    margin = rollout.opened.settings.margin
    return funnel(points, margin, "difference of mean ratings, candidate minus champion, over time")


def _point(row: Entry, start: datetime) -> Point | None:
    found = content_of(Judged, row)
    word = found.judgement
    if word.quality is None:
        return None
    seconds, q = (row.at - start).total_seconds(), word.quality
    weight = f"{found.weight:g} %"
    caption = f"{row.at:%H:%M:%S}, {weight}: {interval(q)}, {word.candidate_requests} candidate requests"
    return Point(seconds, q.estimate, q.low, q.high, caption, weight)


FIGURES = {
    "development_score": "Score on the development prompts, which are never trained on",
    "cross_validated_score": "Score of the folds' models on prompts that they were not trained on, after as many steps",
    "reward": "Mean reward of the sampled answers",
    "margin": "Margin between chosen and rejected answers",
    "kl": "KL divergence from the start model, nats per token",
    "grad_norm": "Gradient norm before clipping",
    "loss": "Loss",
}


def _search(cycle: CycleView) -> Markup:
    """Chart the score of each trial of the search beside that of the first one. Empty without two measured trials.

    The interval of a difference has as many standard errors as the choice demands, so its line is coloured by the same rule.
    """
    if cycle.plan is None or cycle.plan.search is None:
        return Markup("")
    measured = with_score(cycle.trials)
    if len(measured) < 2:
        return Markup("")
    first, rows, wide = measured[0], [], demanded(len(measured))
    for one in measured[1:]:
        gain, error = difference(one, first)
        name = f"{one.trial.number}: {cycle.plan.search.variants[one.trial.variant].name}"
        prompts = len(one.end.scores) if one.end else 0
        rows.append(ChartPair(name, first.score, one.score, gain - wide * error, gain + wide * error, prompts))
    return dumbbells(rows, f"trial {first.trial.number}", "each other trial", "trial")


def _training(cycle: CycleView, artifacts: Artifacts) -> list[tuple[str, Markup]]:
    """Return one chart per reported training metric, with a curve per incarnation and marks for events."""
    logs = read_event_logs(cycle, artifacts)
    ticks = [Tick(mark.step, mark.kind, mark.text) for mark in curve_marks(cycle, logs)]
    newest = cycle.last.attempt if cycle.chosen and cycle.last else max(logs, default=0)
    charts = []
    for name, caption in FIGURES.items():
        lines = [
            Line(f"attempt {run.attempt}, incarnation {run.incarnation}", points, run.attempt == newest)
            for run in training_runs(logs)
            if (points := [(float(step.step), step.figures[name]) for step in run.steps if name in step.figures])
        ]
        if lines:
            charts.append((caption, curves(lines, ticks, f"{caption}, by step")))
    return charts


def _card(cycle: CycleView, artifacts: Artifacts) -> list[Section]:
    try:
        return dataset_card(cycle, artifacts)
    except RatchetError:
        return []


def _rewards(cycle: CycleView, artifacts: Artifacts) -> Markup:
    """Chart the rewards of the snapshot's answers by the reward tier that decided. Empty if the snapshot is not readable."""
    frozen = cycle.get(FreezeResult)
    if frozen is None:
        return Markup("")
    try:
        samples = rows_of(artifacts.get(frozen.snapshot.samples), ("reward", "tier"))
    except RatchetError:
        return Markup("")
    counts: dict[str, int] = {}
    for row in samples:
        reward, tier = row["reward"], row["tier"]
        name = "not scored" if reward is None else f"{tier}: {'correct' if reward >= 0.7 else 'incorrect' if reward < 0.5 else 'partial'}"
        counts[name] = counts.get(name, 0) + 1
    return bars(sorted(counts.items()), "rewards of the snapshot's answers, by deciding tier")
