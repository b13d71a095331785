"""End-to-end tests of the service with a real Prefect server. The tests create cycles that wait for an approval."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from contracts.cycle import Append, Entry, Identity, Row, State
from contracts.ids import approval_stream, cycle_stream
from flows.composition.ports import open_ledger
from flows.config.home import Home
from flows.config.load import load_loop
from flows.core.decide import Wait
from flows.core.folds import fold_approval, fold_cycle
from flows.engine.advance import drive
from flows.engine.line import open_cycle
from runtime.artifacts import FolderArtifacts
from tests import command
from tests.other_user import as_other_user
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.waiting import until
from trainers.code_digest import code_digest

pytestmark = pytest.mark.slow

LINES = ("sim", "form", "cli", "cancel", "lost", "thief", "late", "empty")
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
    """A running installation with access to its Prefect server."""

    def __init__(self, folder: Path, lines: Sequence[str] = LINES) -> None:
        self.home = Home(folder / "home")
        self.loops = {}
        for name in lines:
            self.loops[name] = folder / f"{name}.toml"
            self.loops[name].write_text(LOOP.format(name=name))
            (folder / f"traces-{name}").mkdir()
        self.folder = folder
        self.environment = command.environment(self.home.root)
        self.ledger = open_ledger(self.home)
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.prefect = httpx.Client()

    @property
    def paths(self) -> list[str]:
        """The paths of all loop files."""
        return [str(path) for path in self.loops.values()]

    def ratchet(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `ratchet` command against this installation."""
        return command.ratchet(*arguments, home=self.home.root)

    def start(self) -> None:
        """Start `ratchet serve` and wait until its deployments are ready."""
        serve = [*command.RATCHET, "serve", *self.paths, "--json"]
        log = (self.folder / "serve.log").open("a")
        self.process = subprocess.Popen(serve, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        rows = json.loads(_json_on(self.process))
        addresses = {row["what"]: row["where"] for row in rows}
        self.url = addresses["Prefect UI and approvals"] + "/api"
        login = Path(addresses["Prefect UI login file"]).read_text()
        self.prefect = httpx.Client(base_url=self.url, auth=tuple(login.split(":")), trust_env=False, timeout=30)
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
        return eventually(lambda: next((run for run in self.runs(line) if run["name"] == f"{line}/0001"), None))

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


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A running service whose lines wait for approval."""
    served = Service(tmp_path_factory.mktemp("served"))
    wait_for_approval(served)
    try:
        served.start()
        yield served
    finally:
        served.stop()


def test_one_deployment_per_line_with_its_schedule(service: Service) -> None:
    deployment = service.deployment("sim")
    assert [(s["schedule"]["cron"], s["schedule"]["timezone"], s["active"]) for s in deployment["schedules"]] == [
        ("0 3 * * *", "Europe/Berlin", True)
    ]
    assert deployment["schedules"][0]["parameters"]["when"] == "any new traces"
    properties = deployment["parameter_openapi_schema"]["properties"]
    assert set(properties) == {"line", "when", "reason"}
    assert properties["when"]["enum"] == ["now", "any new traces", "enough new traces"]
    assert all(properties[name].get("description") for name in properties), "the form of the Run button explains each parameter"


def test_cycle_is_one_run_whose_tasks_are_the_steps(service: Service) -> None:
    run = service.suspended("sim")
    eventually(lambda: service.tasks(run["id"]) == [("freeze", "Completed"), ("probe", "Completed"), ("choose", "Completed")])
    assert [one["name"] for one in service.runs("sim")] == ["sim/0001"]
    logs = service.post("logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}})
    assert any("waiting for the approval of the training" in log["message"] for log in logs)
    artifacts = service.post("artifacts/latest/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    assert {artifact["key"] for artifact in artifacts} >= {"sim-0001-freeze", "sim-0001-choose", "sim-0001-approve-training"}


def test_submitted_form_is_written_to_the_ledger_and_the_same_run_goes_on(service: Service) -> None:
    run = service.suspended("form")
    keys = run["state"]["state_details"]["run_input_keyset"]
    schema = service.request("GET", f"flow_runs/{run['id']}/input/{keys['schema']}").json()
    assert schema["properties"]["decision"]["enum"] == ["approve", "reject"]
    assert {"decision", "approver"} <= set(schema["required"])
    text = service.request("GET", f"flow_runs/{run['id']}/input/{keys['description']}").text
    assert "with DPO on" in text

    for bad in ({}, {"decision": "approve"}, {"decision": "approve", "approver": "  "}, {"decision": "maybe", "approver": "ada"}):
        assert service.resume(run["id"], **bad)["status"] == "REJECT"
    assert service.answer("form") is None

    assert service.resume(run["id"], decision="approve", approver=" Ada ", note="go")["status"] == "ACCEPT"
    answer = eventually(lambda: service.answer("form"))
    assert (answer.actor, answer.approve, answer.identity, answer.via, answer.note) == ("Ada", True, Identity.CLAIMED, "prefect", "go")
    ended = service.ended(run["id"])
    assert ended["name"] == "form/0001"
    assert ended["state_type"] == "FAILED", "the training set of the simulated cycle exists only in the simulation"
    eventually(lambda: [name for name, _ in service.tasks(run["id"])] == ["freeze", "probe", "choose", "approve training", "train"])


def test_answer_on_the_command_line_closes_the_form_and_the_run_goes_on(service: Service) -> None:
    run = service.suspended("cli")
    assert service.ratchet("reject", request_of("cli"), "--by", "bob").returncode == 0
    ended = service.ended(run["id"])
    assert (ended["state_type"], ended["state_name"]) == ("COMPLETED", "Rejected")
    assert "bob" in ended["state"]["message"]
    assert service.ratchet("approve", request_of("cli"), "--by", "eve").returncode == 2
    assert (service.answer("cli").actor, service.answer("cli").via) == ("bob", "cli")
    eventually(lambda: service.events("ratchet.cycle.ended", "cli"))
    assert service.events("ratchet.cycle.ended", "cli")[0]["payload"]["state"] == "rejected"
    assert len(service.events("ratchet.approval.answered", "cli")) == 1


def test_cancelling_the_run_cancels_the_cycle(service: Service) -> None:
    run = service.suspended("cancel")
    service.post(f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    eventually(lambda: service.cycle_state("cancel") is State.CANCELLED)
    assert eventually(lambda: (ended := service._final(run["id"])) and ended["state_type"] == "CANCELLED")


def test_deleted_run_is_replaced_by_one_with_the_same_name_and_steps(service: Service) -> None:
    first = service.suspended("lost")
    service.request("DELETE", f"flow_runs/{first['id']}")
    second = service.suspended("lost")
    assert second["id"] != first["id"]
    eventually(lambda: [name for name, _ in service.tasks(second["id"])] == ["freeze", "probe", "choose"])
    assert service.resume(second["id"], decision="reject", approver="ada")["status"] == "ACCEPT"
    assert service.ended(second["id"])["state_name"] == "Rejected"
    assert not service.answer("lost").approve


def _attacks(service: Service, waiting: str, mark: Path) -> dict[str, Callable[[], Any]]:
    """Return attacks on the Prefect API by name. Each returns the HTTP status of its answer, or the answer's headers."""
    deployment, flow = service.deployment("thief"), service.deployment("thief")["flow_id"]
    steps = [{"prefect.deployments.steps.run_shell_script": {"script": f"touch {mark}"}}]
    run, page = f"deployments/{deployment['id']}/create_flow_run", service.url.removesuffix("/api")

    def call(method: str, path: str, body: Any = None, **headers: str) -> int:
        return httpx.request(method, f"{service.url}/{path}", json=body, headers=headers, trust_env=False, timeout=30).status_code

    preflight = {"Origin": "http://attacker.example", "Access-Control-Request-Method": "POST"}
    return {
        "pull steps": lambda: call("PATCH", f"deployments/{deployment['id']}", {"pull_steps": steps}),
        "a run": lambda: call("POST", run, {}),
        "a deployment": lambda: call("POST", "deployments/", {"name": "evil", "flow_id": flow, "pull_steps": steps}),
        "an answer": lambda: call("POST", f"flow_runs/{waiting}/resume", {"run_input": {"decision": "approve", "approver": "mal"}}),
        "reading": lambda: call("POST", "flow_runs/filter", {}),
        "a guessed login": lambda: call("POST", run, {}, Authorization="Basic YWRtaW46cGFzcw=="),
        "deleting": lambda: call("DELETE", f"deployments/{deployment['id']}"),
        "a rebound host": lambda: call("POST", run, {}, Host="attacker.example"),
        "the login file": lambda: service.home.prefect_login().read_text(),
        "a foreign page": lambda: httpx.options(f"{service.url}/flow_runs/filter", headers=preflight, trust_env=False).headers.get(
            "access-control-allow-origin", "none"
        ),
        "its own page": lambda: httpx.options(
            f"{service.url}/flow_runs/filter", headers={**preflight, "Origin": page}, trust_env=False
        ).headers.get("access-control-allow-origin", "none"),
    }


def test_another_user_of_the_machine_can_do_nothing_through_prefect(service: Service, tmp_path: Path) -> None:
    waiting = service.suspended("thief")["id"]
    mark = tmp_path / "ran"
    outcomes = {name: as_other_user(attack) for name, attack in _attacks(service, waiting, mark).items()}
    assert outcomes == {
        "pull steps": 401,
        "a run": 401,
        "a deployment": 401,
        "an answer": 401,
        "reading": 401,
        "a guessed login": 401,
        "deleting": 401,
        "a rebound host": 400,
        "the login file": "PermissionError" if os.geteuid() == 0 else service.home.prefect_login().read_text(),
        "a foreign page": "none",
        "its own page": service.url.removesuffix("/api"),
    }
    assert not mark.exists()
    assert service.answer("thief") is None


def test_code_that_is_added_to_a_deployment_is_never_run(service: Service, tmp_path: Path) -> None:
    deployment, mark = service.deployment("empty"), tmp_path / "ran"
    module = tmp_path / "evil.py"
    module.write_text(f"open({str(mark)!r}, 'w')")
    steps = [{"prefect.deployments.steps.run_shell_script": {"script": f"touch {mark}"}}]
    change = {"pull_steps": steps, "entrypoint": f"{module}:flow", "path": str(tmp_path)}
    assert service.request("PATCH", f"deployments/{deployment['id']}", change).status_code == 204
    run = service.post(f"deployments/{deployment['id']}/create_flow_run", {"parameters": {"when": "enough new traces"}})
    assert service.ended(run["id"])["state_name"] == "NotOpened"
    assert not mark.exists(), "the service runs its own flow, whatever the deployment says"


def test_new_traces_open_a_cycle_within_seconds_unless_the_deployment_is_paused(service: Service) -> None:
    deployment = service.deployment("empty")
    service.request("PATCH", f"deployments/{deployment['id']}", {"paused": True})
    time.sleep(11)  # the service reads `paused` every ten seconds
    record = {"id": "1", "timestamp": "2026-10-01T00:00:00Z", "messages": "2+2?", "response": "4", "consent": True}
    (service.folder / "traces-empty" / "one.jsonl").write_text(json.dumps(record) + "\n")
    eventually(lambda: service.events("ratchet.traces.ingested", "empty"))
    assert service.ledger.read(cycle_of("empty")) == []
    service.kill()
    service.start()
    assert service.deployment("empty")["paused"], "a restart of the service does not resume what a person paused"
    service.request("PATCH", f"deployments/{deployment['id']}", {"paused": False})
    opened = eventually(lambda: service.ledger.read(cycle_of("empty")))
    assert opened[0].data["reason"] == "1 new traces"
    assert service.run("empty")["parameters"]["when"] == "enough new traces"


def test_answer_given_while_the_service_is_dead_counts(service: Service) -> None:
    run = service.suspended("late")
    service.kill()
    assert service.resume(run["id"], decision="reject", approver="ada", note="too late?")["status"] == "ACCEPT"
    assert service.answer("late") is None
    service.start()
    answer = eventually(lambda: service.answer("late"))
    assert (answer.actor, answer.approve, answer.note) == ("ada", False, "too late?")
    assert service.ended(run["id"])["state_name"] == "Rejected"


def test_service_continues_after_the_prefect_server_is_killed_and_its_database_deleted(service: Service) -> None:
    before = {deployment["id"] for deployment in service.post("deployments/filter")}
    server = json.loads((service.home.prefect / "server" / "ready.json").read_bytes())
    psutil.Process(server["pid"]).kill()
    for file in service.home.prefect.glob("prefect.db*"):
        file.unlink()
    eventually(lambda: _answers(service.url))
    eventually(lambda: len(new := service.post("deployments/filter")) == len(LINES) and not before & {one["id"] for one in new})
    run = service.suspended("thief")
    eventually(lambda: [name for name, _ in service.tasks(run["id"])] == ["freeze", "probe", "choose"])


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=3).status_code == 200
    except httpx.HTTPError:
        return False


def test_second_service_and_occupied_port_are_rejected(service: Service) -> None:
    again = service.ratchet("serve", *service.paths)
    assert again.returncode == 3
    assert "another `ratchet serve`" in again.stderr
    port = service.url.split(":")[2].split("/")[0]
    other = command.ratchet(
        "serve",
        service.loops["sim"],
        "--port",
        port,
        home=service.home.root.parent / "other",
        timeout=120,
    )
    assert other.returncode == 2
    assert f"port {port} on 127.0.0.1 is not available" in other.stderr


def test_sigterm_ends_the_service_but_not_the_prefect_server(service: Service) -> None:
    assert service.process is not None
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(120) == 0
    assert _answers(service.url)
    assert "the Prefect server" in service.ratchet("serve", "--stop", *service.paths).stderr
    assert not _answers(service.url)
