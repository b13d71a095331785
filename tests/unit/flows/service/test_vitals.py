"""Tests of what an installation says about itself."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.senders import Sender
from ratchet.flows.config.home import Home
from ratchet.flows.service.process import Sign, only_one
from ratchet.flows.service.vitals import LEAST_BYTES, Backlog, Vitals, problems, take
from ratchet.materializer.receive.spool import Spool

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
WELL = Vitals(home="/home", at=NOW, service=Sign(pid=7, identity="x", at=NOW), alive=True, free=2 * LEAST_BYTES)


def said(**changes: object) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in problems(WELL.model_copy(update=changes))]


def test_an_installation_that_works_or_never_served_has_no_problem() -> None:
    assert said() == []
    assert said(service=None, alive=False) == []


@pytest.mark.parametrize(
    ("changes", "level", "text"),
    [
        (
            {"alive": False},
            "error",
            "the service is not running: it ended without a stop, its last sign of life is of 2026-03-01 03:00:00",
        ),
        (
            {"alive": False, "service": Sign(pid=7, identity="x", at=NOW, stopped=True)},
            "note",
            "the service was stopped at 2026-03-01",
        ),
        (
            {"service": Sign(pid=7, identity="x", at=NOW - timedelta(minutes=5))},
            "error",
            "process 7) hangs: .* (5 minutes ago)",
        ),
        ({"service": Sign(pid=7, identity="x", at=NOW, trouble="no ledger")}, "error", "the service cannot work: no ledger"),
        ({"free": LEAST_BYTES - 1}, "error", "the disk of /home has 1.07 GB free"),
        ({"prefect": "http://x"}, "error", "the Prefect server at http://x does not answer"),
        (
            {"backlogs": (Backlog(line="shop", requests=1234, bytes=5_000_000, oldest=NOW - timedelta(hours=3)),)},
            "error",
            "shop: 1,234 requests with traces (5.0 MB) wait for an ingest, the oldest since 2026-03-01 00:00:00 UTC (3 hours ago)",
        ),
    ],
)
def test_each_problem_says_what_is_wrong(changes: dict[str, object], level: str, text: str) -> None:
    import re

    [found] = said(**changes)
    assert found[0] == level
    assert re.search(re.escape(text).replace(r"\.\*", ".*"), found[1]), found[1]


@given(st.integers(-3600, 300))
def test_traces_of_the_last_minutes_and_of_a_wrong_clock_are_no_backlog(age: int) -> None:
    assert said(backlogs=(Backlog(line="shop", requests=1, bytes=1, oldest=NOW - timedelta(seconds=age)),)) == []


def test_measurements_come_from_the_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert take(home, ["shop"], NOW, lambda _: "asked").service is None
    spool = Spool(home.spool("shop"))
    old = [spool.put_json(Sender(name="app", roles=()), b"{}") for _ in range(2)]
    os.utime(old[0], (1_000, 1_000))
    with only_one(home):
        found = take(home, ["shop", "other"], datetime.now(UTC), lambda _: "http://away")
    assert found.alive
    assert found.prefect == "http://away"
    assert found.free > 0
    [waiting] = found.backlogs
    assert (waiting.line, waiting.requests, waiting.oldest.year) == ("shop", 2, 1970)
    assert waiting.bytes == sum(path.stat().st_size for path in old)
