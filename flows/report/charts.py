"""Renders plain numbers as inline SVG charts. Does not depend on the meaning of the numbers.

Colours are CSS classes of the page, so a chart follows its light or dark theme. Every mark has a <title> for tooltips and screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_LABEL, _WIDTH, _ROW = 130, 720, 30


@dataclass(frozen=True)
class ChartPair:
    """One row of a dumbbell chart: two scores and the interval [low, high] of their difference, from n prompts.

    The scores are shares in [0, 1], or other finite numbers, for example log-probabilities.
    """

    name: str
    before: float
    after: float
    low: float
    high: float
    n: int


def dumbbells(rows: Sequence[ChartPair], before: str, after: str, by: str = "slice") -> Markup:
    """Return a dumbbell chart: per row a dot for the value before, a dot for the value after, and a line between them.

    The line has the CSS class `gain` or `loss` if the interval excludes zero, else `even`. `before` and `after` label the chart, and `by`
    says what a row is. The axis is [0, 1] if all scores are in it, and the range of the scores otherwise.
    Raises ValueError if a score is not finite, because it has no place on the axis.
    """
    scores = [score for row in rows for score in (row.before, row.after)]
    if not all(map(math.isfinite, scores)):
        raise ValueError(f"a score of the chart {before} and {after} is not a finite number")
    height = _ROW * len(rows) + 46
    shares = all(0 <= score <= 1 for score in scores)
    low, high = (0.0, 1.0) if shares else (min(scores), max(scores))
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    x = _scale(low, high, _LABEL, _WIDTH - 150)
    steps = [low + (high - low) * at / 4 for at in range(5)]
    parts = [_open(height, f"{before} and {after} by {by}"), *_grid(x, steps, height - 26, "{:.0%}" if shares else "{:.3g}")]
    for at, row in enumerate(rows):
        y = 20 + _ROW * at
        kind = "gain" if row.low > 0 else "loss" if row.high < 0 else "even"
        caption = f"{row.name}: {row.before:.3f} → {row.after:.3f}, difference {row.low:+.3f} to {row.high:+.3f}, n {row.n}"
        change = f"{row.after - row.before:+.3f} (n {row.n})"
        parts += [
            Markup("<g><title>{}</title>").format(caption),
            Markup('<text class="label" x="{}" y="{}" text-anchor="end">{}</text>').format(_LABEL - 12, y + 4, row.name),
            Markup('<line class="bar {}" x1="{:.1f}" y1="{}" x2="{:.1f}" y2="{}"/>').format(kind, x(row.before), y, x(row.after), y),
            Markup('<circle class="before" cx="{:.1f}" cy="{}" r="5"/>').format(x(row.before), y),
            Markup('<circle class="after" cx="{:.1f}" cy="{}" r="6"/>').format(x(row.after), y),
            Markup('<text class="figure" x="{}" y="{}">{}</text></g>').format(_WIDTH - 138, y + 4, change),
        ]
    return Markup("").join([*parts, Markup("</svg>")])


@dataclass(frozen=True)
class Point:
    """An estimate with its interval at one evaluation of the evidence. `label` is its tooltip, `group` its heading on the axis."""

    x: float
    """Seconds since the first evaluation."""
    estimate: float
    low: float
    high: float
    label: str
    group: str


def funnel(points: Sequence[Point], margin: float, what: str) -> Markup:
    """Return a chart of intervals over time, with horizontal lines at zero and at -`margin`. Empty if there are no points.

    `what` is the accessible name of the chart.
    """
    if not points:
        return Markup("")
    height, top, bottom = 260, 16, 224
    reach = max(0.3, min(1.0, max(max(abs(p.low), abs(p.high)) for p in points)))
    x = _scale(0.0, max(p.x for p in points) or 1.0, 70, _WIDTH - 20)
    y = _scale(reach, -reach, top, bottom)
    parts = [_open(height, what)]
    axis = Markup('<text class="axis" x="62" y="{:.1f}" text-anchor="end">{:+g}</text>')
    for value, kind in ((0.0, "zero"), (-margin, "margin"), (reach, "grid"), (-reach, "grid")):
        parts.append(Markup('<line class="{}" x1="70" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(kind, _WIDTH - 20, y(value), y(value)))
        parts.append(axis.format(y(value) + 4, value))
    group = ""
    for point in points:
        if point.group != group:
            group = point.group
            parts.append(Markup('<text class="axis" x="{:.1f}" y="{}">{}</text>').format(x(point.x), bottom + 24, group))
        low, high = y(max(point.low, -reach)), y(min(point.high, reach))
        parts.append(
            Markup(
                '<g><title>{}</title><line class="whisker" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>'
                '<circle class="after" cx="{:.1f}" cy="{:.1f}" r="4"/></g>'
            ).format(point.label, x(point.x), x(point.x), low, high, x(point.x), y(max(-reach, min(reach, point.estimate))))
        )
    return Markup("").join([*parts, Markup("</svg>")])


@dataclass(frozen=True)
class Line:
    """One curve: (x, y) points in order of x, with a label for its tooltip."""

    label: str
    points: Sequence[tuple[float, float]]
    newest: bool
    """Whether the curve belongs to the newest attempt, which has its own colour."""


@dataclass(frozen=True)
class Tick:
    """An event at position x: a point on the axis or a vertical line, with a label for its tooltip."""

    x: float
    kind: str
    """The CSS class. `checkpoint` is drawn as a point on the axis, every other kind as a vertical line."""
    label: str


_MOST_POINTS = 400


def curves(lines: Sequence[Line], ticks: Sequence[Tick], what: str) -> Markup:
    """Return a chart of curves over a common x axis, with event marks. Empty if no curve has points.

    A curve with 800 points or more is thinned. `what` is the accessible name of the chart.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return Markup("")
    height, top, bottom = 176, 14, 150
    low, high = min(y for _, y in points), max(y for _, y in points)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    right = max(max(x for x, _ in points), 1.0)
    x, y = _scale(0.0, right, 70, _WIDTH - 20), _scale(high, low, top, bottom)
    parts = [_open(height, what), *_grid(x, range(0, int(right) + 1, math.ceil(right / 4)), bottom, "{:.0f}")]
    for value in (low, (low + high) / 2, high):
        parts.append(Markup('<text class="axis" x="62" y="{:.1f}" text-anchor="end">{:.3g}</text>').format(y(value) + 4, value))
    parts += [_tick(tick, x(min(tick.x, right)), top, bottom) for tick in ticks]
    for line in lines:
        kept = line.points[:: max(1, len(line.points) // _MOST_POINTS)]
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in kept)
        kind = "curve newest" if line.newest else "curve"
        parts.append(Markup('<g><title>{}</title><polyline class="{}" points="{}"/></g>').format(line.label, kind, path))
    return Markup("").join([*parts, Markup("</svg>")])


def _tick(tick: Tick, at: float, top: float, bottom: float) -> Markup:
    if tick.kind == "checkpoint":
        mark = Markup('<circle class="checkpoint" cx="{:.1f}" cy="{}" r="2.5"/>').format(at, bottom)
    else:
        mark = Markup('<line class="tick {}" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>').format(tick.kind, at, at, top, bottom)
    return Markup("<g><title>{}</title>{}</g>").format(tick.label, mark)


def bars(rows: Sequence[tuple[str, int]], what: str) -> Markup:
    """Return a chart of horizontal bars, one per (name, count). `what` is the accessible name of the chart."""
    height = 26 * len(rows) + 12
    x = _scale(0.0, float(max((n for _, n in rows), default=1) or 1), 0, _WIDTH - _LABEL - 170)
    parts = [_open(height, what)]
    for at, (name, n) in enumerate(rows):
        y = 6 + 26 * at
        parts.append(
            Markup(
                '<g><title>{}: {}</title><text class="label" x="{}" y="{}" text-anchor="end">{}</text>'
                '<rect class="count" x="{}" y="{}" width="{:.1f}" height="16" rx="2"/><text class="figure" x="{:.1f}" y="{}">{}</text></g>'
            ).format(name, n, _LABEL + 48, y + 13, name, _LABEL + 60, y, max(1.0, x(n)), _LABEL + 68 + x(n), y + 13, n)
        )
    return Markup("").join([*parts, Markup("</svg>")])


class _scale:  # noqa: N801 -- used like a function: x(value)
    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def _open(height: int, what: str) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(_WIDTH, height, what)


def _grid(x: _scale, values: Sequence[float], bottom: float, form: str) -> list[Markup]:
    line = Markup(
        '<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="6" y2="{}"/><text class="axis" x="{:.1f}" y="{}" text-anchor="middle">{}</text>'
    )
    return [line.format(x(v), x(v), bottom, x(v), bottom + 18, escape(form.format(v))) for v in values]
