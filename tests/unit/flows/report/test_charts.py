"""Tests of the charts of the report."""

from __future__ import annotations

import re

import pytest

from flows.report.charts import Line, curves


@pytest.mark.parametrize(("last", "labels"), [(1, [0, 1]), (3, [0, 1, 2, 3]), (10, [0, 3, 6, 9]), (60, [0, 15, 30, 45, 60])])
def test_each_label_of_the_step_axis_is_at_its_step(last: int, labels: list[int]) -> None:
    chart = curves([Line("attempt 1", [(float(step), 0.1 * step) for step in range(last + 1)], True)], [], "loss, by step")
    places = dict(re.findall(r'<text class="axis" x="([\d.]+)" y="\d+" text-anchor="middle">(\d+)</text>', chart))
    assert [int(label) for label in places.values()] == labels
    per_step = (700 - 70) / last
    assert [float(place) for place in places] == pytest.approx([70 + per_step * label for label in labels], abs=0.1)
