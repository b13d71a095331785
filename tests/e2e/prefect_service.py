"""A running `ratchet serve` with its Prefect server, whose lines wait for the approval of a training."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from ratchet.contracts.cycle import Append, Entry, Row
from ratchet.contracts.ids import approval_stream, cycle_stream
from ratchet.contracts.steps import State
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop
from ratchet.flows.config.variables import LEDGER_URL
from ratchet.flows.core.decide import Wait
from ratchet.flows.core.folds.cycle import fold_cycle
from ratchet.flows.core.requests import fold_approval
from ratchet.flows.engine.advance import drive
from ratchet.flows.engine.line import open_cycle
from ratchet.flows.ledger.sql import SqlLedger
from ratchet.flows.prefect.cycle.run_names import OUTCOME_TAG
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.trainers.code_digest import code_digest
from tests import command, prefect_database
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.waiting import until


def outcome(run: dict[str, Any]) -> tuple[str, ...]:
    """Return the name of a run's state, and what its tag says about the end of its cycle."""
    tags = [str(tag).removeprefix(OUTCOME_TAG) for tag in run["tags"] if str(tag).startswith(OUTCOME_TAG)]
    return (str(run["state_name"]), *tags)


LINES = ("sim", "form", "page-yes", "page-no", "cli", "cancel", "lost", "thief", "late", "auto", "empty")
"""One line per test, each with a cycle that waits for the approval of its training. The last one has no cycle."""
LOOP = """
[line]
name = "{name}"
served_model = "sim"

[[sources]]
name = "in"
kind = "jsonl"
path = "traces-{name}"

[[rewards]]
name = "exact_match"

[approvals.training]
expires = 7200

[trigger]
cron = "0 3 * * *"
timezone = "Europe/Berlin"
new_traces = 1
min_interval = 0
"""


def cycle_of(line: str) -> str:
    """Return the stream of a line's first cycle."""
    return cycle_stream(line, 1)


def request_of(line: str) -> str:
    """Return the stream of the request to approve its training."""
    return approval_stream(cycle_of(line), "training")


class Service:
    """A running installation with access to its Prefect server.

    `external` is a client of the Prefect server, if that is not the installation's own. `variables` are added to the environment.
    """

    def __init__(self, folder: Path, lines: Sequence[str] = LINES, **variables: str) -> None:
        self.home = Home(folder / "home")
        prefect_database.place(self.home)
        self.loops = {}
        for name in lines:
            self.loops[name] = folder / f"{name}.toml"
            self.loops[name].write_text(LOOP.format(name=name))
            (folder / f"traces-{name}").mkdir()
        self.folder = folder
        self.environment = command.environment(self.home.root, **variables)
        self.ledger = SqlLedger(variables.get(LEDGER_URL, self.home.ledger_url))
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.prefect = httpx.Client()
        self.external: httpx.Client | None = None

    @property
    def paths(self) -> list[str]:
        """The paths of all loop files."""
        return [str(path) for path in self.loops.values()]

    def ratchet(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `ratchet` command against this installation."""
        return command.ratchet(*arguments, home=self.home.root, **self.environment)

    def start(self) -> None:
        """Start `ratchet serve` and wait until its deployments are ready."""
        serve = [*command.RATCHET, "serve", *self.paths, "--json"]
        log = (self.folder / "serve.log").open("a")
        self.process = subprocess.Popen(serve, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        rows = json.loads(_json_on(self.process))
        addresses = {row["what"]: row["where"] for row in rows}
        self.url = addresses["Prefect UI and approvals"] + "/api"
        if self.external is None:
            login = Path(addresses["Prefect UI login file"]).read_text()
            self.prefect = httpx.Client(base_url=self.url, auth=tuple(login.split(":")), trust_env=False, timeout=30)
        else:
            self.prefect = self.external
        eventually(lambda: len(self.post("deployments/filter")) == len(self.loops))
        eventually(lambda: self.deployment(next(iter(self.loops)))["status"] == "READY")

    def stop(self) -> None:
        """Stop the service and its Prefect server."""
        stopped = self.ratchet("serve", "--stop", *self.paths)
        assert stopped.returncode == 0, stopped.stderr
        if self.process is not None:
            self.process.wait(60)

    def kill(self) -> None:
        """Kill the service."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Send a request to the Prefect API and return the answer.

        Retries while SQLite is busy (HTTP 503) or the server restarts; raises AssertionError after about a minute.
        """
        for _ in range(60):
            with contextlib.suppress(httpx.TransportError):
                answer = self.prefect.request(method, path, json=body or {})
                if answer.status_code != 503:
                    return answer
            time.sleep(1)
        raise AssertionError(f"{path}: the Prefect server does not answer")

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a POST request to the Prefect API and return the decoded answer."""
        answer = self.request("POST", path, body)
        return answer.json() if answer.content else None

    def deployment(self, line: str) -> dict[str, Any]:
        """Return the deployment of a line."""
        return dict(self.request("GET", f"deployments/name/ratchet-retrain/{line}").json())

    def runs(self, line: str) -> list[dict[str, Any]]:
        """Return the runs of a line, oldest first."""
        filters = {"deployments": {"name": {"any_": [line]}}, "limit": 200, "sort": "EXPECTED_START_TIME_DESC"}
        runs = [run for run in self.post("flow_runs/filter", filters) if not (run["auto_scheduled"] and run["state_type"] == "SCHEDULED")]
        return sorted(runs, key=lambda run: str(run["created"]))

    def run(self, line: str) -> dict[str, Any]:
        """Return the run of the line's first cycle; waits until it exists."""
        return eventually(lambda: next((run for run in self.runs(line) if run["name"].split()[0] == f"{line}/0001"), None))

    def tasks(self, run: str) -> list[tuple[str, str]]:
        """Return the names and states of a run's task runs, in the order in which they began."""
        found = self.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}, "sort": "EXPECTED_START_TIME_ASC"})
        return [(task["name"], task["state_name"]) for task in found]

    def suspended(self, line: str) -> dict[str, Any]:
        """Wait until the run of the line's cycle shows a form that can be filled in, and return the run."""
        return eventually(lambda: run if self._answerable(run := self.run(line)) else None)

    def _answerable(self, run: dict[str, Any]) -> bool:
        if run["state_type"] != "PAUSED":
            return False
        key = run["state"]["state_details"]["run_input_keyset"]["schema"]
        return self.request("GET", f"flow_runs/{run['id']}/input/{key}").status_code == 200

    def resume(self, run: str, **typed: str) -> dict[str, Any]:
        """Submit the form of a suspended run with these values and return the answer of the API."""
        return dict(self.post(f"flow_runs/{run}/resume", {"run_input": typed}))

    def ended(self, run: str) -> dict[str, Any]:
        """Wait until the run has ended and return it."""
        return eventually(lambda: self._final(run))

    def _final(self, run: str) -> dict[str, Any] | None:
        found = self.request("GET", f"flow_runs/{run}").json()
        return found if found["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None

    def answer(self, line: str) -> Any:
        """Return the answer to the line's request, or None."""
        return fold_approval(self.ledger.read(request_of(line))).answer

    def cycle_state(self, line: str) -> State:
        """Return the state of the line's first cycle."""
        return fold_cycle(self.ledger.read(cycle_of(line))).state

    def events(self, name: str, line: str) -> list[dict[str, Any]]:
        """Return the events of this name that Prefect has stored for the line."""
        chosen = {"event": {"name": [name]}, "resource": {"id": [f"ratchet.line.{line}"]}, "occurred": {"since": "2020-01-01T00:00:00Z"}}
        return list(self.post("events/filter", {"filter": chosen})["events"])


def _json_on(process: subprocess.Popen[str]) -> str:
    """Return the output of `--json`, up to its closing bracket."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith("]"):
            return text
    raise AssertionError(f"`ratchet serve` ended before it printed its addresses: {text}")


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait until the condition returns a true value and return it. The limit is generous because the machine may be busy."""
    return until(condition, 240, pause=0.3)


def wait_for_approval(service: Service) -> None:
    """Create a cycle per line that waits for the approval of its training, with the real engine and ledger and fakes for all other ports.

    The cycle of the first line is the engine's own; the other lines get copies of its rows.
    """
    sim = SimulatedLine(Scenario(seed=1))
    sim.world.faults = lambda _where: None
    adopted = sim.ledger.read("line/sim")[0]
    context = replace(
        sim.context,
        loop=load_loop(service.loops["sim"]),
        folder=service.folder,
        ledger=service.ledger,
        artifacts=FolderArtifacts(service.home.artifacts),
        code=code_digest(),
    )
    context.clock.time = datetime.now(UTC)
    row = Row(kind="adopted", key=adopted.key, data=adopted.data)
    service.ledger.append([Append(stream="line/sim", after=0, rows=(row,))], None, context.clock.now())
    open_cycle(context, "a test")
    assert isinstance(drive(cycle_of("sim"), context), Wait)
    for line in [line for line in service.loops if line != "sim"]:
        for stream in ("line/sim", cycle_of("sim"), request_of("sim")):
            if line == "empty" and stream != "line/sim":
                continue
            rows = service.ledger.read(stream)[:1] if line == "empty" else service.ledger.read(stream)
            copied = tuple(_renamed_row(row, line) for row in rows)
            service.ledger.append([Append(stream=_renamed(stream, line), after=0, rows=copied)], None, datetime.now(UTC))


def _renamed_row(row: Entry, line: str) -> Row:
    return Row(kind=row.kind, key=_renamed(row.key, line), data=json.loads(_renamed(json.dumps(row.data), line)))


def _renamed(text: str, line: str) -> str:
    """Return text of the line `sim` as text of another line."""
    for before in ("line/sim", "cycle/sim/", "approval/sim/", "traces-sim", '"name": "sim"', '"line": "sim"'):
        text = text.replace(before, before.replace("sim", line))
    return text
