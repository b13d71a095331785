"""Tests of the charts of the report."""

from __future__ import annotations

import re

import pytest

from ratchet.flows.report.charts import ChartPair, Line, curves, dumbbells


@pytest.mark.parametrize(("last", "labels"), [(1, [0, 1]), (3, [0, 1, 2, 3]), (10, [0, 3, 6, 9]), (60, [0, 15, 30, 45, 60])])
def test_each_label_of_the_step_axis_is_at_its_step(last: int, labels: list[int]) -> None:
    chart = curves([Line("attempt 1", [(float(step), 0.1 * step) for step in range(last + 1)], True)], [], "loss, by step")
    places = dict(re.findall(r'<text class="axis" x="([\d.]+)" y="\d+" text-anchor="middle">(\d+)</text>', chart))
    assert [int(label) for label in places.values()] == labels
    per_step = (700 - 70) / last
    assert [float(place) for place in places] == pytest.approx([70 + per_step * label for label in labels], abs=0.1)


def axis(chart: str) -> list[str]:
    return re.findall(r'<text class="axis" x="[\d.]+" y="\d+" text-anchor="middle">([^<]+)</text>', chart)


def pair(before: float, after: float) -> ChartPair:
    return ChartPair("2: SFT", before, after, after - before - 0.1, after - before + 0.1, 40)


def test_axis_of_shares_is_the_whole_range() -> None:
    assert axis(dumbbells([pair(0.4, 0.6), pair(0.4, 1.0)], "trial 1", "each other trial")) == ["0%", "25%", "50%", "75%", "100%"]


@pytest.mark.parametrize(
    ("scores", "labels"),
    [((-1.5, -0.5, -2.5), ["-2.5", "-2", "-1.5", "-1", "-0.5"]), ((-2.0, -2.0, -2.0), ["-2.5", "-2.25", "-2", "-1.75", "-1.5"])],
    ids=["log-probabilities", "equal"],
)
def test_axis_of_other_scores_is_their_range_and_every_dot_is_on_it(scores: tuple[float, ...], labels: list[str]) -> None:
    first, *others = scores
    chart = dumbbells([pair(first, other) for other in others], "trial 1", "each other trial", "trial")
    assert axis(chart) == labels
    assert 'aria-label="trial 1 and each other trial by trial"' in chart
    dots = [float(place) for place in re.findall(r'<circle class="(?:before|after)" cx="(-?[\d.]+)"', chart)]
    assert len(dots) == 4
    assert all(130 <= dot <= 570 for dot in dots)


def test_a_score_that_is_no_number_has_no_chart() -> None:
    with pytest.raises(ValueError, match="a score of the chart trial 1 and each other trial is not a finite number"):
        dumbbells([pair(0.5, float("nan"))], "trial 1", "each other trial")
