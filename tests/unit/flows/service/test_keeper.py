"""Tests of the warm work on one line: when there is work, what it does, and that problems stop nothing."""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.contracts.ids import digest, hash_share, line_stream
from ratchet.contracts.loop import SourceSettings
from ratchet.contracts.steps import State
from ratchet.flows.core.folds.line import fold_line
from ratchet.flows.engine.context import LEASE_SECONDS, process_holder
from ratchet.flows.engine.line import ask_rollback, end_name, open_cycle
from ratchet.flows.engine.work import turn
from ratchet.flows.service import garbage
from ratchet.flows.service import keeper as keepers_module
from ratchet.flows.service.garbage import Collected
from ratchet.flows.service.keeper import (
    AGAIN_SECONDS,
    ALIVE_SECONDS,
    COLLECT_SECONDS,
    DUE_SECONDS,
    FAILING_SECONDS,
    IDLE_SWEEP_SECONDS,
    SWEEP_SECONDS,
    URGENT_SECONDS,
    Keeper,
    News,
)
from ratchet.flows.service.keepers import HANG_SECONDS, Keepers
from ratchet.materializer.lake.places.place import LakePlace
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.service.test_carry import installation_of
from tests.waiting import until


@pytest.fixture
def said() -> list[str]:
    """What the keeper says."""
    return []


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines whose receiver was started. No receiver process runs in these tests."""
    lines: list[str] = []
    monkeypatch.setattr(keepers_module, "receiver_is_alive", lambda line, _home: line in lines)
    monkeypatch.setattr(keepers_module, "start_receiver", lambda loop, _home: lines.append(loop.line.name))
    return lines


def keep(sim: SimulatedLine, tmp_path: Path, said: list[str]) -> Keeper:
    """Return the keeper of a simulated line."""
    installation = installation_of(sim)
    installation.home = SimpleNamespace(
        spool=lambda line: tmp_path / "spool" / line,
        collected=lambda line: tmp_path / f"{line}.json",
        lake=lambda line: LakePlace(tmp_path / "lake"),
        database=lambda line="": None,
        erasures=tmp_path / "erasures",
    )
    return Keeper(installation, tmp_path / "sim.toml", said.append)


def work(keeper: Keeper, sim: SimulatedLine, now: float) -> News | None:
    """Let the keeper look and work, as the service does. Returns its news."""
    lengths = sim.ledger.lengths(keeper.streams())
    return keeper.work(now, lengths) if keeper.has_work(now, lengths) else None


def test_first_look_sweeps_and_says_that_a_cycle_is_due(tmp_path: Path, said: list[str]) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    sim.context.datasets.traces = 2000
    news = work(keep(sim, tmp_path, said), sim, 0.0)
    assert news is not None
    assert news.due == "2000 new traces"
    assert news.cycle is None


def test_files_of_an_earlier_release_are_copied_once_however_often_it_fails(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ["the database is away", "the database is away", ""]
    copied: list[str] = []

    def copy(_home: object, line: str) -> None:
        if answer := answers.pop(0):
            raise Retryable(answer)
        copied.append(line)

    monkeypatch.setattr(keepers_module, "copy_files", copy)
    sim = SimulatedLine(Scenario(seed=1))
    keeper = keep(sim, tmp_path, said)
    for round_ in range(5):
        work(keeper, sim, round_ * (SWEEP_SECONDS + 1))
    assert copied == ["sim"]
    assert any("the database is away" in text for text in said)


def test_line_without_news_has_no_work_until_the_next_sweep(tmp_path: Path, said: list[str]) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    keeper = keep(sim, tmp_path, said)
    assert work(keeper, sim, 0.0) is not None
    assert work(keeper, sim, 1.0) is None
    assert not keeper.has_work(2.0, sim.ledger.lengths(keeper.streams()))
    asked = work(keeper, sim, DUE_SECONDS + 1)
    assert asked is not None, "the minimum interval between two cycles may have passed"
    assert work(keeper, sim, IDLE_SWEEP_SECONDS + 1) is not None


def promoted() -> SimulatedLine:
    """Return a line whose first cycle has ended with a promotion."""
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.context.datasets.traces = 2000
    open_cycle(sim.context, "a test")
    for _ in range(200):
        turn(sim.context, sim.view())
        sim.clock.sleep(60)
        if sim.ended():
            break
    assert sim.view().state is State.PROMOTED
    return sim


def test_row_in_the_ledger_is_news_and_a_rollback_is_carried_out_at_once(tmp_path: Path, said: list[str]) -> None:
    sim = promoted()
    keeper = keep(sim, tmp_path, said)
    work(keeper, sim, 0.0)
    sim.ledger.acquire(line_stream("sim"), "a long evaluation", LEASE_SECONDS, sim.clock.now())
    ask_rollback(sim.ledger, "sim", "ada", "users complain", sim.clock.now())
    news = work(keeper, sim, 1.0)
    assert news is not None
    assert news.line.rollback_asked is None
    assert any("rolled back from" in text for text in said), "an effect that holds the line's lease does not delay a rollback"


def test_rollback_whose_lease_is_held_is_tried_again_after_a_second(tmp_path: Path, said: list[str]) -> None:
    sim = promoted()
    keeper = keep(sim, tmp_path, said)
    work(keeper, sim, 0.0)
    lease = sim.ledger.acquire("back/sim", f"{process_holder()}0/a command/0", LEASE_SECONDS, sim.clock.now())  # another thread
    assert lease is not None
    ask_rollback(sim.ledger, "sim", "ada", "users complain", sim.clock.now())
    for now in (1.0, 1.5 + URGENT_SECONDS):
        news = work(keeper, sim, now)
        assert news is not None
        assert news.line.rollback_asked == "ada"
    sim.ledger.release(lease)
    news = work(keeper, sim, 2.0 + 2 * URGENT_SECONDS)
    assert news is not None
    assert news.line.rollback_asked is None


def test_source_that_fails_does_not_stop_the_rest(tmp_path: Path, said: list[str]) -> None:
    sim = SimulatedLine(Scenario(seed=1))

    def batches() -> Any:
        raise OSError("the bucket is away")

    sim.context = replace(sim.context, sources=[SimpleNamespace(name="in", batches=batches)])
    sim.context.datasets.traces = 2000
    keeper = keep(sim, tmp_path, said)
    news = work(keeper, sim, 0.0)
    assert news is not None
    assert news.due is not None
    assert any("source 'in' failed" in text for text in said)
    said.clear()
    work(keeper, sim, IDLE_SWEEP_SECONDS + 1)
    assert said == [], "a problem that lasts is said once"


def test_defect_in_one_round_is_said_and_the_next_round_works(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    keeper = keep(sim, tmp_path, said)

    def broken(_context: Any) -> list[str]:
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(keepers_module, "reconcile", broken)
        assert work(keeper, sim, 0.0) is not None, "the other parts of the round go on"
        assert work(keeper, sim, 0.5) is None, "it is not tried again at once"
    assert "unforeseen ZeroDivisionError" in said[0]
    assert work(keeper, sim, IDLE_SWEEP_SECONDS + 1) is not None


def test_what_fails_for_long_is_the_trouble_of_the_line(tmp_path: Path, said: list[str]) -> None:
    sim, away = SimulatedLine(Scenario(seed=1)), [True]

    def batches() -> Any:
        if away[0]:
            raise OSError("the bucket is away")
        return []

    sim.context = replace(sim.context, sources=[SimpleNamespace(name="in", batches=batches)])
    keeper = keep(sim, tmp_path, said)
    work(keeper, sim, 0.0)
    assert keeper.trouble(FAILING_SECONDS - 1) == "", "it is tried again soon"
    for turn_of in range(1, 5):
        work(keeper, sim, turn_of * SWEEP_SECONDS)
    assert "source 'in' failed" in keeper.trouble(4 * SWEEP_SECONDS)
    away[0] = False
    work(keeper, sim, 6 * SWEEP_SECONDS)
    assert keeper.trouble(6 * SWEEP_SECONDS) == ""


def test_a_round_that_does_less_does_not_end_the_trouble_of_a_sweep(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    keeper = keep(sim, tmp_path, said)
    monkeypatch.setattr(keepers_module, "reconcile", lambda _context: ["could not start the server of v-1: no memory"])
    work(keeper, sim, 0.0)
    open_cycle(sim.context, "a new row")
    work(keeper, sim, ALIVE_SECONDS + 1)
    assert keeper.trouble(FAILING_SECONDS + 1) == "could not start the server of v-1: no memory"


def test_work_that_does_not_end_is_told_by_the_signs_of_life(tmp_path: Path, said: list[str]) -> None:
    sim, signs = SimulatedLine(Scenario(seed=1)), []
    begun, ends = threading.Event(), threading.Event()

    def batches() -> Any:
        begun.set()
        ends.wait(60)
        return []

    sim.context = replace(sim.context, sources=[SimpleNamespace(name="in", batches=batches)])
    keeper = keep(sim, tmp_path, said)
    keepers = Keepers(keeper._installation, [keeper], lambda _news: None, said.append, signs.append)
    keepers._exported = float("inf")
    keepers.start()
    try:
        assert begun.wait(60)
        until(lambda: bool(signs))
        assert keepers.line_troubles(time.monotonic()) == "", "a long ingest is no trouble"
        assert re.fullmatch(r"sim: the work that began at .* has not ended", keepers.line_troubles(time.monotonic() + HANG_SECONDS + 60))
        assert set(signs) == {""}
    finally:
        ends.set()
        assert keepers.stop(20)


def test_permanent_problem_of_the_ingest_stops_neither_the_rest_nor_is_it_tried_again_at_once(tmp_path: Path, said: list[str]) -> None:
    sim, asked = SimulatedLine(Scenario(seed=1)), []

    def batches() -> Any:
        asked.append(1)
        raise Permanent("the lake was written by another release")

    sim.context = replace(sim.context, sources=[SimpleNamespace(name="in", batches=batches)])
    sim.context.datasets.traces = 2000
    keeper = keep(sim, tmp_path, said)
    news = work(keeper, sim, 0.0)
    assert news is not None
    assert news.due is not None
    for tenth in range(1, 10):
        work(keeper, sim, tenth / 2)
    assert len(asked) == 1
    assert len(said) == 1


def test_line_whose_ledger_rows_cannot_be_read_is_looked_at_every_few_seconds(tmp_path: Path, said: list[str]) -> None:
    sim, reads = SimulatedLine(Scenario(seed=1)), []
    keeper, read = keep(sim, tmp_path, said), sim.ledger.read

    def damaged(stream: str, after: int = 0) -> Any:
        reads.append(stream)
        raise Permanent("the ledger was changed")

    sim.ledger.read = damaged  # type: ignore[method-assign]
    work(keeper, sim, 0.0)
    before = len(reads)
    assert not keeper.has_work(0.5, sim.ledger.lengths(keeper.streams()))
    assert work(keeper, sim, AGAIN_SECONDS + 0.1) is None
    assert len(reads) > before
    sim.ledger.read = read  # type: ignore[method-assign]
    assert work(keeper, sim, 2 * AGAIN_SECONDS + 0.2) is not None


def test_while_the_loop_file_is_invalid_its_last_content_stays_in_force(tmp_path: Path, said: list[str]) -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.context.datasets.traces = 2000
    keeper = keep(sim, tmp_path, said)
    valid = keeper._installation.context

    def invalid(_path: Path) -> Any:
        raise ConfigError("sim.toml: gate.level: not a number")

    open_cycle(sim.context, "a test")
    for _ in range(200):
        turn(sim.context, sim.view())
        sim.clock.sleep(60)
        if sim.ended():
            break
    sim.context.datasets.traces = 9000
    keeper._installation.context = invalid  # type: ignore[method-assign]
    news = work(keeper, sim, 0.0)
    assert news is not None
    assert news.due is None, "no cycle opens with a loop file that cannot be read"
    assert any("gate.level" in text for text in said)
    ask_rollback(sim.ledger, "sim", "ada", "users complain", sim.clock.now())
    news = work(keeper, sim, 1.0)
    assert news is not None
    assert news.line.rollback_asked is None, "a rollback is carried out"
    assert sum("gate.level" in text for text in said) == 1
    keeper._installation.context = lambda path: replace(  # type: ignore[method-assign]
        sim.context, loop=sim.context.loop.model_copy(update={"line": sim.context.loop.line.model_copy(update={"name": "other"})})
    )
    news = work(keeper, sim, DUE_SECONDS + 2)
    assert news is not None
    assert news.line.line == "sim"
    keeper._installation.context = valid  # type: ignore[method-assign]
    sim.clock.sleep(7 * 86400)
    news = work(keeper, sim, 3 * DUE_SECONDS)
    assert news is not None
    assert news.due == "7000 new traces"


def test_router_that_has_died_is_started_although_an_effect_holds_the_lease(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim, urls = SimulatedLine(Scenario(seed=1)), []
    keeper = keep(sim, tmp_path, said)
    work(keeper, sim, 0.0)
    sim.ledger.acquire(line_stream("sim"), "a long effect", 600, sim.clock.now())
    monkeypatch.setattr(sim.context.router, "read", lambda _line: None)
    monkeypatch.setattr(sim.context.router, "url", lambda: urls.append("started"))
    work(keeper, sim, ALIVE_SECONDS + 0.1)
    assert urls == ["started"]


def test_cycle_of_another_release_makes_the_next_one_due(tmp_path: Path, said: list[str]) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    sim.context.datasets.traces = 2000
    open_cycle(sim.context, "a test")
    turn(sim.context, sim.view())
    assert sim.view().state is State.PLANNED
    sim.context = replace(sim.context, code=digest("code of another release"))
    turn(sim.context, sim.view())
    news = work(keep(sim, tmp_path, said), sim, 0.0)
    assert news is not None
    assert news.due == "the plan of the last cycle was made by another release"


def test_look_at_living_processes_reads_neither_the_ledger_nor_the_loop_file(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    keeper = keep(sim, tmp_path, said)
    work(keeper, sim, 0.0)
    lengths = sim.ledger.lengths(keeper.streams())

    def unwanted(*_arguments: Any) -> Any:
        raise AssertionError("an idle line must be cheap")

    monkeypatch.setattr(sim.ledger, "read", unwanted)
    monkeypatch.setattr(keeper._installation, "context", unwanted)
    assert keeper.has_work(ALIVE_SECONDS + 0.1, lengths)
    assert keeper.work(ALIVE_SECONDS + 0.1, lengths) is None
    assert said == [] or "an idle line" not in said[-1]
    assert not keeper.has_work(ALIVE_SECONDS + 0.2, lengths)


def test_model_server_that_has_died_is_started_within_seconds(tmp_path: Path, said: list[str]) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    keeper = keep(sim, tmp_path, said)
    work(keeper, sim, 0.0)
    (endpoint,) = sim.context.server.running()
    sim.context.server.stop(endpoint.tag)
    work(keeper, sim, ALIVE_SECONDS + 0.1)
    assert [one.tag for one in sim.context.server.running()] == [endpoint.tag]


def test_changed_loop_file_is_read_within_seconds(tmp_path: Path, said: list[str]) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    keeper = keep(sim, tmp_path, said)
    work(keeper, sim, 0.0)
    assert not keeper.has_work(0.5, sim.ledger.lengths(keeper.streams()))
    (tmp_path / "sim.toml").write_text("")
    assert keeper.has_work(0.5, sim.ledger.lengths(keeper.streams()))
    work(keeper, sim, 0.5)
    assert not keeper.has_work(1.0, sim.ledger.lengths(keeper.streams()))


def test_sweeps_of_many_lines_are_spread_over_time(tmp_path: Path, said: list[str]) -> None:
    sim, ends = SimulatedLine(Scenario(seed=1)), []
    for number in range(40):
        keeper = keep(sim, tmp_path, said)
        keeper._share = hash_share("sweep", f"line-{number}") / 2  # that of a line with this name
        work(keeper, sim, 0.0)
        ends.append(keeper._swept + IDLE_SWEEP_SECONDS)
    assert max(ends) <= IDLE_SWEEP_SECONDS
    assert max(ends) - min(ends) > IDLE_SWEEP_SECONDS / 3
    assert len({int(end) for end in ends}) > 30


def test_spool_with_files_is_work_once(tmp_path: Path, said: list[str]) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    keeper, spool = keep(sim, tmp_path, said), tmp_path / "spool" / "sim"
    assert not keeper._spooled(0.0), "a folder that does not exist has no files"
    spool.mkdir(parents=True)
    assert not keeper._spooled(0.0)
    (spool / "1.request").write_text("{}")
    assert keeper._spooled(0.0)


def test_under_steady_traffic_a_fifth_of_the_time_goes_to_ingests(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    keeper, spool = keep(sim, tmp_path, said), tmp_path / "spool" / "sim"
    spool.mkdir(parents=True)
    ingests: list[float] = []
    now, took = 0.0, 0.0

    def ingest(*_: Any) -> IngestReport:
        nonlocal now
        ingests.append(now)
        sim.clock.sleep(took)
        now += took
        return IngestReport()

    def requests(seconds: float) -> None:
        """A request arrives every half a second."""
        nonlocal now
        end = now + seconds
        while now < end:
            (spool / f"{now}.request").write_text("{}")
            os.utime(spool, ns=(int(now * 1e9), int(now * 1e9)))
            work(keeper, sim, now)
            now += 0.5

    monkeypatch.setattr(keepers_module, "ingest", ingest)
    work(keeper, sim, now)
    ingests.clear()
    now, took = 2.0, 1.0
    requests(50.0)
    assert 9 <= len(ingests) <= 11, "each takes one second of five"
    ingests.clear()
    took = 30.0
    requests(120.0)
    assert 3 <= len(ingests) <= 4, "the pause is not longer than SPOOL_SECONDS"
    ingests.clear()
    now += 60.0
    began, took = now, 0.0
    requests(0.5)
    assert ingests == [began], "the first request after a quiet time waits for nothing"


def test_receiver_that_has_died_is_started_within_seconds(tmp_path: Path, said: list[str], started: list[str]) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    keeper = keep(sim, tmp_path, said)
    work(keeper, sim, 0.0)
    assert started == ["sim"]
    started.clear()
    work(keeper, sim, ALIVE_SECONDS + 0.1)
    assert started == ["sim"]


@pytest.mark.slow
def test_rollback_is_carried_out_while_a_long_ingest_runs(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.context.datasets.traces = 2000
    open_cycle(sim.context, "a test")
    for _ in range(200):
        turn(sim.context, sim.view())
        sim.clock.sleep(60)
        if sim.ended():
            break
    ingests, ends = threading.Event(), threading.Event()

    def batches() -> Any:
        ingests.set()
        ends.wait(60)
        return []

    sim.context = replace(sim.context, sources=[SimpleNamespace(name="in", batches=batches)])
    keeper = keep(sim, tmp_path, said)
    keepers = Keepers(keeper._installation, [keeper], lambda _news: None, said.append, lambda _trouble: None)
    keepers._exported = float("inf")
    keepers.start()
    try:
        assert ingests.wait(60)
        ask_rollback(sim.ledger, "sim", "ada", "users complain", sim.clock.now())
        until(lambda: fold_line("sim", sim.ledger.read(line_stream("sim"))).rollback_asked is None)
        assert not ends.is_set()
    finally:
        ends.set()
        assert keepers.stop(20)


@pytest.mark.slow
def test_keepers_go_on_while_the_ledger_is_away(tmp_path: Path, said: list[str]) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    keeper, news, away = keep(sim, tmp_path, said), threading.Event(), threading.Event()
    real = sim.ledger.lengths

    def lengths(streams: Any) -> dict[str, int]:
        if not away.is_set():
            raise Retryable("the database is away")
        return real(streams)

    installation = keeper._installation
    installation.ledger = SimpleNamespace(lengths=lengths)
    keeper._installation = installation_of(sim)
    keeper._installation.home = installation.home
    keepers = Keepers(installation, [keeper], lambda _news: news.set(), said.append, lambda _trouble: None)
    keepers._exported = float("inf")
    keepers.start()
    until(lambda: "the database is away" in said)
    away.set()
    assert news.wait(20)
    assert keepers.stop(5)
    assert said.count("the database is away") == 1


def test_garbage_is_collected_once_a_day_from_a_day_after_the_first_start_on(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    done: list[str] = []

    def collect(_installation: Any, context: Any) -> Collected:
        done.append(context.line)
        return Collected(line="sim", files={"artifacts": len(done)})

    monkeypatch.setattr(garbage, "collect_line", collect)
    for restart in range(2):
        keeper = keep(sim, tmp_path, said)  # a restart forgets nothing
        work(keeper, sim, 0.0)
        assert len(done) == restart
        sim.clock.sleep(COLLECT_SECONDS - IDLE_SWEEP_SECONDS)
        work(keeper, sim, COLLECT_SECONDS - IDLE_SWEEP_SECONDS)
        assert len(done) == restart
        sim.clock.sleep(2 * IDLE_SWEEP_SECONDS)
        work(keeper, sim, COLLECT_SECONDS + IDLE_SWEEP_SECONDS)
        assert len(done) == restart + 1
    assert said[-1] == "sim: garbage collection: 2 files of artifacts, 0 bytes"


def test_changed_model_name_is_routed_at_once_and_said_with_both_names(tmp_path: Path, said: list[str]) -> None:
    sim = promoted()
    keeper = keep(sim, tmp_path, said)
    work(keeper, sim, 0.0)
    before = sim.context.loop.line
    (tmp_path / "sim.toml").write_text("edited")
    sim.context = replace(
        sim.context, loop=sim.context.loop.model_copy(update={"line": before.model_copy(update={"served_model": "second"})})
    )
    work(keeper, sim, 1.0)
    route = sim.router.read("sim")
    assert route is not None
    assert route.names == ("second", before.served_model)
    assert any("'second'" in text and repr(before.served_model) in text for text in said)
    end_name(sim.ledger, "sim", before.served_model, "ada", "unused", sim.clock.now())
    work(keeper, sim, 2.0)
    ended = sim.router.read("sim")
    assert ended is not None
    assert ended.names == ("second",)


def test_a_notification_of_a_bucket_is_work_once(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sim, asked = SimulatedLine(Scenario(seed=1)), []
    arrived = [False, True, False]
    monkeypatch.setattr(keepers_module, "listener", lambda _url: SimpleNamespace(arrived=lambda: arrived.pop(0)))
    monkeypatch.setattr(keepers_module, "ingest", lambda *_: asked.append("ingest") or IngestReport())
    keeper = keep(sim, tmp_path, said)
    work(keeper, sim, 0.0)
    queue = "https://sqs.eu-west-1.amazonaws.com/1/q"
    source = SourceSettings(name="logs", kind="jsonl", path="s3://bucket/logs", queue=queue)
    keeper.loop = keeper.loop.model_copy(update={"sources": (source,)})
    keeper._polls, keeper._polled = True, 0.0
    asked.clear()
    assert work(keeper, sim, 0.5) is None
    assert asked == []
    work(keeper, sim, 1.0)
    assert asked == ["ingest"]
    assert work(keeper, sim, 1.5) is None
    assert asked == ["ingest"]
