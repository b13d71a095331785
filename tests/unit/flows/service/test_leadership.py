"""Tests of the leadership of a service with several pods."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from ratchet.contracts.errors import Fenced, Retryable
from ratchet.contracts.fakes import MemoryLedger
from ratchet.flows.ledger.opening import open_ledger_at
from ratchet.flows.ledger.postgres_store import database_time
from ratchet.flows.ledger.sql import prompt
from ratchet.flows.service import leadership as module
from ratchet.flows.service.leadership import LEAD_SECONDS, LEAVE_SECONDS, Leadership, leading
from ratchet.runtime import leading as state
from tests.postgres import PostgresServer, postgres_server
from tests.waiting import until

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Time:
    """The time of the database."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has never led."""
    monkeypatch.setattr(state, "_until", None)


def test_one_pod_leads_until_it_does_not_renew_any_more() -> None:
    ledger, now = MemoryLedger(), Time()
    one, two = (Leadership(ledger, "shop", pod, now) for pod in ("service-a/1", "service-b/2"))
    assert one.leader() == ""
    assert one.take()
    assert not two.take()
    assert two.leader() == "service-a/1"
    now.now += timedelta(seconds=LEAD_SECONDS - 1)
    one.renew()
    now.now += timedelta(seconds=LEAD_SECONDS - 1)
    assert not two.take()
    now.now += timedelta(seconds=2)
    assert two.take()
    with pytest.raises(Fenced):
        one.renew()
    assert two.leader() == "service-b/2"


def test_the_restarted_container_of_a_pod_leads_at_once_and_another_installation_beside_it() -> None:
    ledger, now = MemoryLedger(), Time()
    assert Leadership(ledger, "shop", "service-a/1", now).take()
    assert Leadership(ledger, "shop", "service-a/1", now).take()
    assert not Leadership(ledger, "shop", "service-a/3", now).take(), "a pod of the same name, created anew, may run beside the former one"
    assert Leadership(ledger, "bakery", "service-a/3", now).take()


def test_a_released_leadership_is_free_at_once() -> None:
    ledger, now = MemoryLedger(), Time()
    one, two = (Leadership(ledger, "shop", pod, now) for pod in ("a/1", "b/2"))
    assert one.take()
    one.release()
    assert two.take()
    one.release()
    assert not one.take()


def test_a_leader_has_less_time_than_its_lease_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    one = Leadership(MemoryLedger(), "shop", "a/1", Time())
    one.take()
    assert one.left() == LEAD_SECONDS - LEAVE_SECONDS
    state.check_leads()
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + LEAD_SECONDS - LEAVE_SECONDS)
    with pytest.raises(Fenced):
        state.check_leads()


class Away(MemoryLedger):
    """A ledger whose database goes away, or lets another pod lead."""

    error: Exception | None = None

    def renew(self, lease, ttl, now):  # type: ignore[no-untyped-def]
        if self.error is not None:
            raise self.error
        return super().renew(lease, ttl, now)


@pytest.mark.parametrize(
    ("error", "reason"), [(Retryable("away"), "was not renewed in time"), (Fenced("another pod has it"), "another pod has it")]
)
def test_a_leader_ends_when_another_pod_may_lead(error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(module, "LEAD_SECONDS", LEAVE_SECONDS + 0.5)
    ledger, ended = Away(), list[str]()
    one = Leadership(ledger, "shop", "a/1", Time())
    one.take()
    with leading(one, ended.append):
        time.sleep(1.2)
        assert ended == [], "it is renewed"
        ledger.error = error
        until(lambda: bool(ended), 5)
    assert reason in ended[0]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP])
def test_another_pod_leads_after_the_process_is_killed_or_suspended(server: PostgresServer, tmp_path: Path, way: signal.Signals) -> None:
    """A suspended process ends itself when it goes on, before it changes anything."""
    program = f"""
        import os, sys, time
        from ratchet.flows.service import leadership
        leadership.LEAD_SECONDS, leadership.RENEW_SECONDS, leadership.LEAVE_SECONDS = 3.0, 0.5, 1.0
        from ratchet.contracts.errors import Fenced
        from ratchet.flows.ledger.opening import open_ledger_at
        from ratchet.flows.ledger.postgres_store import database_time
        from ratchet.runtime.leading import check_leads
        url, file = sys.argv[1:]
        written = os.open(file, os.O_WRONLY | os.O_CREAT)
        one = leadership.Leadership(open_ledger_at(url), "{way.name}", "a/1", lambda: database_time(url))
        assert one.take()
        with leadership.leading(one, lambda why: os._exit(1)):
            print("leads", flush=True)
            while True:
                try:
                    check_leads()
                    os.write(written, b"%f\\n" % time.time())
                except Fenced:
                    pass
        """
    url, file = server.url(), tmp_path / "written"
    command = [sys.executable, "-c", textwrap.dedent(program), url, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "leads\n"
        other = Leadership(open_ledger_at(url), way.name, "b/2", lambda: database_time(url))
        time.sleep(4)
        assert not other.take(), "it is renewed"
        process.send_signal(way)
        stopped = time.time()
        until(other.take, 10)
        took = time.time()
        assert took - stopped > 1.5
        if way is signal.SIGSTOP:
            process.send_signal(signal.SIGCONT)
            assert process.wait(5) == 1
    late = [at for at in file.read_text().splitlines()[:-1] if float(at) > took]
    assert len(late) <= 1, "it may have been suspended between the check and the change"


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_database_that_does_not_answer_is_given_up() -> None:
    """By default, it would be waited for without an end."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Retryable):  # accepts connections, and sends nothing
        open_ledger_at(prompt(f"postgresql+psycopg://user@127.0.0.1:{silent.getsockname()[1]}/ledger"))


def test_the_short_limits_keep_the_options_of_the_url() -> None:
    url = make_url(prompt("postgresql+psycopg://user:secret@db/ledger?options=-c%20search_path%3Dteam"))
    assert url.query["options"] == "-c search_path=team -c statement_timeout=8000"
    assert (url.password, url.query["connect_timeout"]) == ("secret", "5")
