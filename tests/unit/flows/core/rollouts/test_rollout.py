"""Tests of the evidence that a rollout accepts: of the right versions and time, and complete."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from datetime import UTC, datetime, timedelta

import pytest

from ratchet.contracts.serving import Arm, Evidence
from ratchet.flows.core.folds.rollout import RolloutStep
from ratchet.flows.core.rollouts.rollout import Delivery, dark, incomplete, mismatch, windows

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY = 86_400
DARK = 300.0


def arm(tag: str, n: int = 10) -> Arm:
    return Arm(tag=tag, requests=n, errors=0, refused=0, sessions=n, latency_p50_ms=1, latency_p95_ms=2, rated=())


@pytest.mark.parametrize(
    ("sides", "shift", "wrong"),
    [
        (("old", "new"), (0, 0), None),
        (("new", "old"), (0, 0), "new as champion and old as candidate"),
        (("old", "other"), (0, 0), "other as candidate instead of old and new"),
        (("old", "new"), (-60, -60), "they cover"),
        (("old", "new"), (0, -1), "they cover"),
    ],
)
def test_evidence_of_other_versions_or_of_another_time_is_found(
    sides: tuple[str, str], shift: tuple[float, float], wrong: str | None
) -> None:
    window = [at + timedelta(seconds=seconds) for at, seconds in zip((NOON, NOON + timedelta(hours=1)), shift, strict=True)]
    given = Evidence(since=window[0], until=window[1], champion=arm(sides[0]), candidate=arm(sides[1]))
    found = mismatch(given, "old", "new", NOON, NOON + timedelta(hours=1))
    assert (found is None) if wrong is None else wrong in str(found)


def step(index: int, since: float, until: float | None = None) -> RolloutStep:
    return RolloutStep(
        index, 5.0 * (index + 1), NOON + timedelta(seconds=since), None if until is None else NOON + timedelta(seconds=until)
    )


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ([step(0, 0)], [(0, 500)]),
        ([step(0, 0, 99), step(1, 100, 199), step(2, 200)], [(0, 99), (100, 199), (200, 500)]),
        ([step(0, 0, 150), step(1, 100)], [(0, 100), (100, 500)]),  # the clock was set back between the two rows
        ([step(0, 0, 99), step(1, 100, 199), step(2, 50)], [(0, 50), (50, 500)]),  # and by more than a step
    ],
)
def test_windows_of_the_steps_do_not_overlap(steps: list[RolloutStep], seconds: list[tuple[int, int]]) -> None:
    found = windows(steps, NOON + timedelta(seconds=500))
    assert [((since - NOON).total_seconds(), (until - NOON).total_seconds()) for _, since, until in found] == seconds


def delivery(sent: int, traced: int, sent_lately: int = 0, traced_lately: int = 0, tag: str = "new") -> Delivery:
    return Delivery(tag=tag, sent=sent, traced=traced, sent_lately=sent_lately, traced_lately=traced_lately)


@pytest.mark.parametrize(
    ("given", "is_dark"),
    [
        (delivery(0, 0), False),
        (delivery(2, 0), False),
        (delivery(3, 0), True),
        (delivery(1000, 900, 40, 0), True),
        (delivery(1000, 900, 0, 0), False),
        (delivery(1000, 998, 2, 0), False),
        (delivery(1000, 5000, 40, 40), False),
    ],
)
def test_version_is_dark_if_its_requests_leave_no_trace(given: Delivery, is_dark: bool) -> None:
    for deliveries in ((given, delivery(500, 500, tag="old")), (delivery(500, 500, tag="old"), given)):
        assert (dark(deliveries, DARK) is not None) == is_dark


@pytest.mark.parametrize(("sent", "traced", "holds"), [(0, 0, False), (10, 8, False), (100, 90, False), (100, 89, True), (30, 26, True)])
def test_step_does_not_advance_while_traces_are_lost(sent: int, traced: int, holds: bool) -> None:
    assert (incomplete([delivery(sent, traced)]) is not None) == holds


def test_quiet_line_with_a_day_curve_is_never_dark() -> None:
    """Five requests a minute on average and none at night; every trace arrives within a minute. Both versions are looked at each minute."""
    draw = random.Random(1)
    seconds = [s for s in range(3 * DAY) if draw.random() < 5 / 60 * max(0.0, math.sin(2 * math.pi * s / DAY)) * math.pi]
    candidate = {s for s in seconds if draw.random() < 0.05}
    sides = {"old": [s for s in seconds if s not in candidate], "new": sorted(candidate)}
    longest = max(later - earlier for earlier, later in zip(sides["new"], sides["new"][1:], strict=False))
    assert longest > 4 * DARK, "nights without traffic are part of the test"
    for now in range(int(DARK), 3 * DAY, 60):
        deliveries = []
        for tag, times in sides.items():
            lately = max(0.0, now - 2 * DARK)
            before, sent, traced = (bisect_left(times, at) for at in (lately, now - DARK, now - 60))
            deliveries.append(Delivery(tag, sent, traced, sent - min(before, sent), traced - min(before, traced)))
        assert dark(deliveries, DARK) is None
        assert incomplete(deliveries) is None
