"""Tests of what an installation says about itself."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.senders import Sender
from ratchet.flows.config.home import Home
from ratchet.flows.service.process import Sign, only_one
from ratchet.flows.service.vitals import LEAST_BYTES, Backlog, Vitals, is_away, problems, take
from ratchet.materializer.receive.spool import FolderSpool
from ratchet.router.traces.span_spool import SpanSpool

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
WELL = Vitals(home="/home", at=NOW, service=Sign(pid=7, identity="x", at=NOW), alive=True, free=2 * LEAST_BYTES)


def said(**changes: object) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in problems(WELL.model_copy(update=changes))]


def named(**changes: object) -> list[tuple[str, str]]:
    """Return the subject of each problem and the begin of its text."""
    return [(one.about, one.text.partition(";")[0]) for one in problems(WELL.model_copy(update=changes))]


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
        ({"service": Sign(pid=7, identity="x", at=NOW, trouble="no ledger")}, "error", "the service cannot do its work: no ledger"),
        ({"free": LEAST_BYTES - 1}, "error", "the disk of /home has 1.07 GB free"),
        ({"prefect": "http://x"}, "error", "the Prefect server at http://x does not answer"),
        (
            {"backlogs": (Backlog(line="shop", files=1234, bytes=5_000_000, oldest=NOW - timedelta(hours=3)),)},
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
    assert said(backlogs=(Backlog(line="shop", files=1, bytes=1, oldest=NOW - timedelta(seconds=age)),)) == []


def test_measurements_come_from_the_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert take(home, ["shop"], NOW, lambda _: True).service is None
    spool = FolderSpool(home.spool("shop"))
    old = [spool.folder / spool.put_json(Sender(name="app", roles=()), b"{}") for _ in range(2)]
    old[0] = old[0].rename(old[0].with_name(f"{1_000 * 10**9:020d}-1-00000000.request"))
    (spool.folder / ".part-1").write_bytes(b"is being written")
    unsent = SpanSpool(home.serving("shop") / "router" / "spool")
    unsent.append(b"span")
    with only_one(home, "http://away"):
        found = take(home, ["shop", "other"], datetime.now(UTC), lambda url: url == "http://away")
        assert take(home, [], NOW, lambda _: False).prefect is None
    assert found.alive
    assert found.prefect == "http://away"
    assert found.free > 0
    received, held = found.backlogs
    assert (received.line, received.at, received.files, received.oldest.year) == ("shop", "receiver", 2, 1970)
    assert received.bytes == sum(path.stat().st_size for path in old)
    assert (held.line, held.at, held.files, held.bytes) == ("shop", "router", 1, unsent.size)
    assert take(home, [], NOW, lambda _: True).prefect is None, "a stopped service needs no Prefect"


def test_a_home_that_does_not_exist_yet_is_measured(tmp_path: Path) -> None:
    assert take(Home(tmp_path / "a" / "b"), ["shop"], NOW, lambda _: False).free > 0


def test_a_server_is_away_if_nothing_listens() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
        assert is_away(url), "the port is not open"
        listening.listen()
        assert not is_away(url), "it does not answer in time, which the service judges"
    assert is_away(url)
    assert is_away("http://no-such-host.invalid/api") in (True, False), "the look-up of a name has a time limit"


def test_a_full_disk_is_named_before_the_silence_that_it_causes() -> None:
    silent = Sign(pid=7, identity="x", at=NOW - timedelta(minutes=5))
    assert [about for about, _ in named(free=0, service=silent)] == ["disk", "service"]


def test_prefect_is_named_once() -> None:
    troubled = Sign(pid=7, identity="x", at=NOW, prefect_trouble="it rejects the login")
    assert named(service=troubled) == [("prefect", "the service cannot use Prefect: it rejects the login")]
    assert named(service=troubled, prefect="http://x") == [("prefect", "the Prefect server at http://x does not answer")]
    assert named(service=troubled, alive=False)[0][0] == "service"
    assert len(named(service=troubled, alive=False)) == 1
