"""Answers to approvals around changes of their runs, and, in `make soak`, random kills and delays: none is lost, and no run stays open."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import httpx
import psutil
import pytest

from ratchet.contracts.cycle import Answer, Append, Identity, Row
from ratchet.contracts.ids import approval_stream, cycle_stream, line_stream
from ratchet.contracts.steps import State
from ratchet.flows.core.folds.cycle import fold_cycle
from ratchet.flows.core.requests import ApprovalView, fold_approval
from ratchet.flows.engine.line import answer, ask_cancel
from tests.e2e.prefect_service import Service, eventually, outcome, wait_for_approval
from tests.soak_results import record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

LINES = ("sim", "a", "b", "c", "d", "e", "f", "g")
"""Each round answers one request per line, so eight answers meet the same kills."""
SECONDS = 8.0
"""Seconds over which the answers and the kills of a round are distributed."""


@dataclass
class Round:
    """What happened in one round."""

    cycle: dict[str, str]
    accepted: dict[str, str] = field(default_factory=dict)
    """Line -> approver of the form that Prefect accepted."""
    by_command: set[str] = field(default_factory=set)
    """Lines whose request was answered by command, as the first answer."""
    cancelled: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    """What was done when, to print on failure."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A running service; the first cycle of each line waits for the approval of its training."""
    served = Service(tmp_path_factory.mktemp("answers"), LINES)
    wait_for_approval(served)
    try:
        served.start()
        yield served
    finally:
        served.stop()


def request_of(service: Service, cycle: str) -> ApprovalView:
    """Return the request to approve the cycle's training."""
    return fold_approval(service.ledger.read(approval_stream(cycle, "training")))


def ask_anew(service: Service, line: str) -> str:
    """Return the line's open cycle, which waits for an approval. If the newest one has ended, open one as a copy of the first."""
    opened = [row for row in service.ledger.read(line_stream(line)) if row.kind == "cycle_opened"]
    newest = opened[-1].key if opened else cycle_stream(line, 1)
    if not fold_cycle(service.ledger.read(newest)).ended:
        return newest
    number, first = len(opened) + 1, cycle_stream(line, 1)
    cycle = cycle_stream(line, number)
    streams = {cycle: first, approval_stream(cycle, "training"): approval_stream(first, "training")}
    until = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    for new, old in streams.items():
        rows = []
        for row in service.ledger.read(old):
            if row.kind in ("answered", "expired", "ended"):
                break
            data = json.loads(json.dumps(row.data).replace(first, cycle))
            data |= {"number": number} if row.kind == "opened" else {"expires": until} if row.kind == "asked" else {}
            rows.append(Row(kind=row.kind, key=row.key, data=data))
        service.ledger.append([Append(stream=new, after=0, rows=tuple(rows))], None, datetime.now(UTC))
    row = Row(kind="cycle_opened", key=cycle, data={"traces": 0, "reason": "the next round"})
    length = len(service.ledger.read(line_stream(line)))
    service.ledger.append([Append(stream=line_stream(line), after=length, rows=(row,))], None, datetime.now(UTC))
    return cycle


class Attack:
    """One round: answers, cancellations, kills and delays at random times."""

    def __init__(self, service: Service, seed: int) -> None:
        self.service = service
        self.random = random.Random(seed)
        self.round = Round({line: ask_anew(service, line) for line in LINES})
        self.begun = 0.0
        self.over = threading.Event()

    def run(self) -> Round:
        """Let everything happen, and repair the service afterwards."""
        for cycle in self.round.cycle.values():
            eventually(lambda cycle=cycle: self._suspended(cycle))
        plans: list[tuple[float, Callable[[], None]]] = []
        for line in LINES:
            plans.append((self.random.uniform(0, SECONDS), lambda line=line: self._submit(line)))  # type: ignore[misc]
            other = self.random.choice((None, None, self._command, self._cancel))
            if other is not None:
                plans.append((plans[-1][0] + self.random.uniform(-0.3, 0.3), lambda line=line, other=other: other(line)))  # type: ignore[misc]
        faults = self.random.choices((self._kill_service, self._kill_server, self._delay_service, self._delay_server), k=5)
        times = sorted(self.random.uniform(0, SECONDS) for _ in faults)
        threads = [threading.Thread(target=self._at, args=plan, daemon=True) for plan in plans]
        self.begun = time.monotonic()
        for thread in threads:
            thread.start()
        for at, fault in zip(times, faults, strict=True):
            self._at(at, fault)
        self._ensure_service()
        for thread in threads:
            thread.join(240)
            assert not thread.is_alive()
        return self.round

    def _at(self, at: float, act: Callable[[], None]) -> None:
        time.sleep(max(0.0, self.begun + at - time.monotonic()))
        act()

    def _tell(self, text: str) -> None:
        self.round.told.append(f"{time.monotonic() - self.begun:6.2f} s  {text}")

    def _suspended(self, cycle: str) -> bool:
        runs = self.service.post("flow_runs/filter", {"flow_runs": {"name": {"any_": [cycle.removeprefix("cycle/")]}}})
        return any(self.service._answerable(run) for run in runs)

    def _submit(self, line: str) -> None:
        """Press Submit until Prefect accepts the form, or until the request is closed. Each try has its own approver."""
        cycle, number = self.round.cycle[line], 0
        while request_of(self.service, cycle).awaiting:
            number += 1
            with contextlib.suppress(httpx.HTTPError, KeyError):
                chosen = {"flow_runs": {"name": {"any_": [cycle.removeprefix("cycle/")]}}}
                for run in self.service.prefect.post("flow_runs/filter", json=chosen).json():
                    typed = {"run_input": {"decision": "reject", "approver": f"form-{number}"}}
                    done = self.service.prefect.post(f"flow_runs/{run['id']}/resume", json=typed)
                    if done.status_code == 201 and done.json()["status"] == "ACCEPT":
                        self.round.accepted[line] = f"form-{number}"
                        return self._tell(f"{cycle}: Prefect accepted form-{number}")
            time.sleep(0.1)
        return self._tell(f"{cycle}: closed before the form was accepted")

    def _command(self, line: str) -> None:
        given = Answer(approve=False, actor="command", identity=Identity.CLAIMED, via="cli")
        _, first = answer(self.service.ledger, request_of(self.service, self.round.cycle[line]), given, datetime.now(UTC))
        if first:
            self.round.by_command.add(line)
        self._tell(f"{self.round.cycle[line]}: answered by command, first: {first}")

    def _cancel(self, line: str) -> None:
        with contextlib.suppress(Exception):
            ask_cancel(self.service.ledger, line, "eve", "a test", datetime.now(UTC))
            self.round.cancelled.add(line)
        self._tell(f"{self.round.cycle[line]}: cancelled")

    def _kill_service(self) -> None:
        self._tell("kill the service")
        with contextlib.suppress(ProcessLookupError):
            self.service.kill()
        time.sleep(self.random.uniform(0, 3))
        self._ensure_service()

    def _kill_server(self) -> None:
        self._tell("kill the Prefect server")
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            self._server().kill()

    def _delay_service(self) -> None:
        self._tell("stop the service for a while")
        assert self.service.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.service.process.pid, signal.SIGSTOP)
            time.sleep(self.random.uniform(0.2, 3))
            os.killpg(self.service.process.pid, signal.SIGCONT)

    def _delay_server(self) -> None:
        self._tell("stop the Prefect server for a while")
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            server = self._server()
            server.suspend()
            time.sleep(self.random.uniform(0.2, 3))
            server.resume()

    def _server(self) -> psutil.Process:
        return psutil.Process(json.loads((self.service.home.prefect / "server" / "ready.json").read_bytes())["pid"])

    def _ensure_service(self) -> None:
        """Start the service again if it has ended, as a process manager does."""
        for _ in range(5):
            if self.service.process is not None and self.service.process.poll() is None:
                return
            self._tell("start the service")
            with contextlib.suppress(AssertionError):
                self.service.start()


def check(service: Service, attack: Attack) -> None:
    """Check that the accepted answers count, that every cycle and every run ended, and that nothing was done twice."""
    happened = attack.run()
    for line, cycle in happened.cycle.items():
        eventually(lambda cycle=cycle: fold_cycle(service.ledger.read(cycle)).ended)
        rows, view = service.ledger.read(cycle), request_of(service, cycle)
        twice = [row for row, count in Counter((row.kind, row.key) for row in rows if row.kind != "tried").items() if count > 1]
        assert not twice
        assert not view.awaiting
        if line not in happened.cancelled:
            assert fold_cycle(rows).state is State.REJECTED
            assert view.answer is not None
        if line in happened.by_command:
            assert view.answer is not None
            assert view.answer.actor == "command"
        elif line in happened.accepted and line not in happened.cancelled:
            assert view.answer is not None
            # A try whose response was lost in a kill may have been stored before the accepted one. It then is the first answer.
            assert int(view.answer.actor.removeprefix("form-")) <= int(happened.accepted[line].removeprefix("form-"))
        name = cycle.removeprefix("cycle/")
        eventually(lambda name=name: _all_final(service, name))
        told = [
            event["payload"]["seq"] for event in service.events("ratchet.approval.answered", line) if event["payload"]["stream"] == view.id
        ]
        assert len(told) <= 1


def _all_final(service: Service, name: str) -> bool:
    """Return whether the cycle's runs have ended in a state that a cycle's end has."""
    names = [name, *(f"{name} {state}" for state in State)]  # an ended run has the outcome in its name
    runs = service.post("flow_runs/filter", {"flow_runs": {"name": {"any_": names}}})
    return bool(runs) and all(run["state_type"] in ("COMPLETED", "CANCELLED") for run in runs)


def attacked(service: Service, seeds: range) -> dict[str, int]:
    """Run one round per seed, and name the seed and what happened if one fails. Return the numbers of answers and faults."""
    answers, faults = 0, Counter[str]()
    for seed in seeds:
        attack = Attack(service, seed)
        try:
            check(service, attack)
        except BaseException as error:
            raise AssertionError(f"seed {seed}:\n" + "\n".join(sorted(attack.round.told))) from error
        answers += len(LINES)
        faults.update(text for _, _, text in (told.partition(" s  ") for told in attack.round.told) if text.startswith(("kill", "stop")))
    return {"answers": answers, "faults": faults.total()}


def waiting(service: Service, line: str) -> tuple[str, str]:
    """Return a cycle of the line that waits for its approval, and the id of the run that shows the form."""
    cycle = ask_anew(service, line)
    chosen = {"flow_runs": {"name": {"any_": [cycle.removeprefix("cycle/")]}}}
    run = eventually(lambda: next((run for run in service.post("flow_runs/filter", chosen) if service._answerable(run)), None))
    return cycle, str(run["id"])


def test_run_that_a_person_renames_keeps_its_form(service: Service) -> None:
    cycle, run = waiting(service, "a")
    service.request("PATCH", f"flow_runs/{run}", {"name": "my favourite"})
    service.kill()
    service.start()
    assert service.resume(run, decision="reject", approver="ada")["status"] == "ACCEPT"
    eventually(lambda: fold_cycle(service.ledger.read(cycle)).ended)
    assert request_of(service, cycle).answer is not None
    assert outcome(service.ended(run)) == ("Completed", "rejected")
    assert service.post("flow_runs/filter", {"flow_runs": {"name": {"any_": [cycle.removeprefix("cycle/")]}}}) == []


def test_answer_counts_although_the_deployment_of_its_run_was_deleted(service: Service) -> None:
    cycle, run = waiting(service, "b")
    before = service.deployment("b")["id"]
    service.request("DELETE", f"deployments/{before}")
    eventually(lambda: service.deployment("b").get("id", before) != before)
    assert service.resume(run, decision="reject", approver="ada")["status"] == "ACCEPT"
    eventually(lambda: fold_cycle(service.ledger.read(cycle)).ended)
    assert request_of(service, cycle).answer is not None
    assert outcome(service.ended(run)) == ("Completed", "rejected")


def test_run_that_a_person_sets_to_completed_asks_again(service: Service) -> None:
    cycle, run = waiting(service, "c")
    service.post(f"flow_runs/{run}/set_state", {"state": {"type": "COMPLETED"}, "force": True})
    assert waiting(service, "c") == (cycle, run)
    assert service.resume(run, decision="reject", approver="ada")["status"] == "ACCEPT"
    assert eventually(lambda: request_of(service, cycle).answer) is not None
    assert outcome(service.ended(run)) == ("Completed", "rejected")
    service.post(f"flow_runs/{run}/set_state", {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True})
    eventually(lambda: service._final(run))
    assert [row.kind for row in service.ledger.read(cycle)].count("ended") == 1


def test_deployment_opens_no_cycle_of_another_line(service: Service) -> None:
    waiting(service, "d")
    chosen = {"parameters": {"line": "e", "when": "now"}, "name": "a mistake"}
    run = service.post(f"deployments/{service.deployment('d')['id']}/create_flow_run", chosen)
    ended = service.ended(run["id"])
    assert outcome(ended) == ("Completed", "not_opened")
    assert "is of line d" in ended["state"]["message"]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_answer_is_lost_when_processes_are_killed_around_it(service: Service) -> None:
    rounds = attacked(service, range(1, 28))
    assert rounds["answers"] >= 200
    record("answers", {**rounds, "lost": 0})


def test_service_stops_although_the_prefect_server_does_not_respond(service: Service) -> None:
    server = psutil.Process(json.loads((service.home.prefect / "server" / "ready.json").read_bytes())["pid"])
    server.suspend()
    try:
        time.sleep(3)
        assert service.process is not None
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(50) == 0
    finally:
        server.resume()
