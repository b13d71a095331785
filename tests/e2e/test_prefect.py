"""End-to-end tests of the service with a real Prefect server and real flow processes. The tests create approval requests in the ledger."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from contracts.cycle import Append, ApprovalKind, Identity, Row
from contracts.ids import cycle_stream
from flows.composition.ports import open_ledger
from flows.config.home import Home
from flows.config.load import load_loop
from flows.core.decide import Wait
from flows.core.folds import fold_approval
from flows.engine.advance import drive
from flows.engine.line import open_cycle
from runtime.artifacts import FolderArtifacts
from tests import command
from tests.other_user import as_other_user
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.waiting import until
from trainers.code_digest import code_digest

pytestmark = pytest.mark.slow

CYCLE = cycle_stream("sim", 1)
LOOP = """
[line]
name = "sim"
served_model = "sim"

[[sources]]
name = "in"
kind = "jsonl"
path = "traces"

[[rewards]]
name = "exact_match"

[approvals.training]
expires = 7200

[trigger]
cron = "0 3 * * *"
timezone = "Europe/Berlin"
new_traces = 1
"""


class Service:
    """A running installation with access to its Prefect server."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.loop = folder / "sim.toml"
        self.loop.write_text(LOOP)
        self.traces = folder / "traces"
        self.traces.mkdir()
        self.environment = command.environment(self.home.root)
        self.ledger = open_ledger(self.home)
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.prefect = httpx.Client()

    def ratchet(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `ratchet` command against this installation."""
        return command.ratchet(*arguments, home=self.home.root)

    def start(self) -> None:
        """Start `ratchet serve` and wait until its deployments are ready."""
        serve = [*command.RATCHET, "serve", str(self.loop), "--json"]
        log = (self.home.root.parent / "serve.log").open("a")
        self.process = subprocess.Popen(serve, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        rows = json.loads(_json_on(self.process))
        addresses = {row["what"]: row["where"] for row in rows}
        self.url = addresses["Prefect UI and approvals"] + "/api"
        login = Path(addresses["Prefect UI login file"]).read_text()
        self.prefect = httpx.Client(base_url=self.url, auth=tuple(login.split(":")), trust_env=False, timeout=30)
        eventually(lambda: len(self.post("deployments/filter")) == 5)
        eventually(lambda: self.deployment("approval")["status"] == "READY")

    def stop(self) -> None:
        """Stop the service and its Prefect server."""
        stopped = self.ratchet("serve", "--stop", str(self.loop))
        assert stopped.returncode == 0, stopped.stderr
        if self.process is not None:
            self.process.wait(60)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a POST request to the Prefect API and return the decoded answer.

        Retries while SQLite is busy (HTTP 503) or the server restarts; raises AssertionError after about a minute.
        """
        for _ in range(60):
            with contextlib.suppress(httpx.TransportError):
                answer = self.prefect.post(path, json=body or {})
                if answer.status_code != 503:
                    return answer.json() if answer.content else None
            time.sleep(1)
        raise AssertionError(f"{path}: the Prefect server does not answer")

    def deployment(self, flow: str) -> dict[str, Any]:
        """Return the deployment of a flow for the line."""
        return self.prefect.get(f"deployments/name/{flow}/sim").json()

    def runs(self, flow: str, **state: Any) -> list[dict[str, Any]]:
        """Return the runs of a flow, filtered by state."""
        filters: dict[str, Any] = {"flows": {"name": {"any_": [flow]}}, "limit": 200}
        if state:
            filters["flow_runs"] = {"state": state}
        return list(self.post("flow_runs/filter", filters))

    def run_now(self, flow: str) -> str:
        """Schedule a run of a flow for now and return its id."""
        made = self.post(f"deployments/{self.deployment(flow)['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
        return str(made["id"])

    def ended(self, run: str) -> dict[str, Any]:
        """Wait until the run has ended and return it."""
        return eventually(lambda: self._final(run))

    def _final(self, run: str) -> dict[str, Any] | None:
        found = self.post("flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return found[0] if found and found[0]["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None

    def reconcile(self) -> None:
        """Run the reconcile flow and assert that it completes."""
        assert self.ended(self.run_now("reconcile"))["state_type"] == "COMPLETED"

    def views(self, request: str) -> list[dict[str, Any]]:
        """Return the approval runs that show this request."""
        return [run for run in self.runs("approval") if run["parameters"].get("request") == request]

    def suspended(self, request: str) -> dict[str, Any]:
        """Wait until a run shows the request with a form that can be filled in, and return the run."""
        return eventually(lambda: next((run for run in self.views(request) if self._answerable(run)), None))

    def _answerable(self, run: dict[str, Any]) -> bool:
        if run["state_type"] != "PAUSED":
            return False
        key = run["state"]["state_details"]["run_input_keyset"]["schema"]
        return self.prefect.get(f"flow_runs/{run['id']}/input/{key}").status_code == 200

    def resume(self, run: str, **typed: str) -> dict[str, Any]:
        """Submit the form of a suspended run with these values and return the answer of the API."""
        return dict(self.post(f"flow_runs/{run}/resume", {"run_input": typed}))

    def ask(self, number: int) -> str:
        """Add a request for approval to the ledger and return its stream; it copies the evidence of the first request."""
        first = self.ledger.read("approval/sim/0001/training")[0]
        request = f"approval/sim/{number}/training"
        data = {**first.data, "expires": (datetime.now(UTC) + timedelta(hours=1)).isoformat()}
        row = Row(kind="asked", key=ApprovalKind.TRAINING, data=data)
        self.ledger.append([Append(stream=request, after=0, rows=(row,))], None, datetime.now(UTC))
        return request


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
    return until(condition, 240, pause=0.5)


def wait_for_approval(service: Service) -> None:
    """Create a cycle that waits for the approval of its training, with the real engine and ledger and fakes for all other ports."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.world.faults = lambda _where: None
    adopted = sim.ledger.read("line/sim")[0]
    context = replace(
        sim.context,
        loop=load_loop(service.loop),
        folder=service.loop.parent,
        ledger=service.ledger,
        artifacts=FolderArtifacts(service.home.artifacts),
        code=code_digest(),
    )
    context.clock.time = datetime.now(UTC)
    row = Row(kind="adopted", key=adopted.key, data=adopted.data)
    service.ledger.append([Append(stream="line/sim", after=0, rows=(row,))], None, context.clock.now())
    open_cycle(context, "a test")
    assert isinstance(drive(CYCLE, context), Wait)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A running service with one cycle that waits for approval."""
    served = Service(tmp_path_factory.mktemp("served"))
    wait_for_approval(served)
    try:
        served.start()
        yield served
    finally:
        served.stop()


def test_deployments_schedules_and_trigger_exist(service: Service) -> None:
    names = {flow: service.deployment(flow) for flow in ("ingest", "retrain", "rollout", "reconcile", "approval")}
    assert {flow: [s["schedule"].get("cron") or s["schedule"]["interval"] for s in d["schedules"]] for flow, d in names.items()} == {
        "ingest": [30],
        "retrain": ["0 3 * * *"],
        "rollout": [],
        "reconcile": [60],
        "approval": [],
    }
    assert names["retrain"]["schedules"][0]["schedule"]["timezone"] == "Europe/Berlin"
    assert names["retrain"]["schedules"][0]["parameters"] == {"scheduled": True}
    assert names["retrain"]["global_concurrency_limit"]["limit"] == 1
    triggers = [automation["trigger"] for automation in service.post("automations/filter")]
    assert [t["expect"] for t in triggers] == [["ratchet.traces.ingested"]]
    assert triggers[0]["match"] == {"prefect.resource.id": "ratchet.line.sim"}


def test_submitted_form_is_written_to_the_ledger_and_the_cycle_continues(service: Service) -> None:
    request = "approval/sim/0001/training"
    run = service.suspended(request)
    keys = run["state"]["state_details"]["run_input_keyset"]
    schema = service.prefect.get(f"flow_runs/{run['id']}/input/{keys['schema']}").json()
    assert schema["properties"]["decision"]["enum"] == ["approve", "reject"]
    assert {"decision", "approver"} <= set(schema["required"])
    text = service.prefect.get(f"flow_runs/{run['id']}/input/{keys['description']}").text
    assert "further with DPO" in text

    for bad in ({}, {"decision": "approve"}, {"decision": "approve", "approver": "  "}, {"decision": "maybe", "approver": "ada"}):
        assert service.resume(run["id"], **bad)["status"] == "REJECT"
    assert fold_approval(service.ledger.read(request)).awaiting

    assert service.resume(run["id"], decision="approve", approver=" Ada ", note="go")["status"] == "ACCEPT"
    assert service.ended(run["id"])["state_type"] == "COMPLETED"
    answer = fold_approval(service.ledger.read(request)).answer
    assert answer is not None
    assert (answer.actor, answer.approve, answer.identity, answer.via, answer.note) == ("Ada", True, Identity.CLAIMED, "prefect", "go")
    eventually(lambda: any(row.kind == "answered" for row in service.ledger.read(CYCLE)))


def test_first_answer_is_kept_and_the_run_ends(service: Service) -> None:
    request = service.ask(9001)
    service.reconcile()
    run = service.suspended(request)
    assert service.ratchet("approve", request, "--by", "bob").returncode == 0
    service.reconcile()
    ended = service.ended(run["id"])
    assert ended["state_type"] == "COMPLETED"
    assert "bob approved it via cli" in ended["state"]["message"]
    assert service.ratchet("reject", request, "--by", "eve").returncode == 2
    answer = fold_approval(service.ledger.read(request)).answer
    assert answer is not None
    assert (answer.actor, answer.via) == ("bob", "cli")


def test_cancelled_approval_run_is_replaced(service: Service) -> None:
    request = service.ask(9002)
    service.reconcile()
    first = service.suspended(request)
    service.post(f"flow_runs/{first['id']}/set_state", {"state": {"type": "CANCELLED"}, "force": True})
    service.reconcile()
    second = service.suspended(request)
    assert second["id"] != first["id"]
    assert service.resume(second["id"], decision="reject", approver="ada")["status"] == "ACCEPT"
    service.ended(second["id"])
    answer = fold_approval(service.ledger.read(request)).answer
    assert answer is not None
    assert not answer.approve
    assert len(service.views(request)) == 2


def _attacks(service: Service, waiting: str, mark: Path) -> dict[str, Callable[[], Any]]:
    """Return attacks on the Prefect API by name. Each returns the HTTP status of its answer, or the answer's headers."""
    deployment, flow = service.deployment("reconcile"), service.deployment("reconcile")["flow_id"]
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
        "deleting": lambda: call("POST", "admin/database/clear", {"confirm": True}),
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
    request = service.ask(9003)
    service.reconcile()
    waiting = service.suspended(request)["id"]
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
    assert fold_approval(service.ledger.read(request)).awaiting


def test_code_that_is_added_to_a_deployment_is_never_run(service: Service, tmp_path: Path) -> None:
    deployment, mark = service.deployment("reconcile"), tmp_path / "ran"
    module = tmp_path / "evil.py"
    module.write_text(f"open({str(mark)!r}, 'w')")
    steps = [{"prefect.deployments.steps.run_shell_script": {"script": f"touch {mark}"}}]
    change = {"pull_steps": steps, "entrypoint": f"{module}:flow", "path": str(tmp_path)}
    assert service.prefect.patch(f"deployments/{deployment['id']}", json=change).status_code == 204
    service.reconcile()
    assert not mark.exists(), "the service runs its own flow, whatever the deployment says"


def test_new_traces_start_a_retrain_run(service: Service) -> None:
    before = {run["id"] for run in service.runs("retrain")}
    record = {"id": "1", "timestamp": "2026-10-01T00:00:00Z", "messages": "2+2?", "response": "4", "consent": True}
    (service.traces / "one.jsonl").write_text(json.dumps(record) + "\n")
    run = eventually(lambda: next((r for r in service.runs("retrain") if r["id"] not in before and _by_event(r)), None))
    assert run["parameters"]["loop"] == str(service.loop)


def _by_event(run: dict[str, Any]) -> bool:
    return (run["created_by"] or {}).get("type") == "AUTOMATION"


def test_service_continues_after_the_prefect_server_is_killed(service: Service) -> None:
    server = json.loads((service.home.prefect / "server" / "ready.json").read_bytes())
    psutil.Process(server["pid"]).kill()
    eventually(lambda: _answers(service.url))
    service.reconcile()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=3).status_code == 200
    except httpx.HTTPError:
        return False


def test_no_run_is_stuck_after_the_service_is_killed(service: Service) -> None:
    assert service.process is not None
    begun = service.run_now("ingest")
    eventually(lambda: service.runs("ingest", type={"any_": ["PENDING", "RUNNING"]}) or service._final(begun))
    os.killpg(service.process.pid, signal.SIGKILL)
    service.process.wait(60)
    stale = {run["id"] for flow in ("ingest", "reconcile", "retrain") for run in service.runs(flow, type={"any_": ["PENDING", "RUNNING"]})}
    service.start()
    eventually(lambda: all(service._final(run) for run in stale))
    service.reconcile()
    assert service.ended(service.run_now("ingest"))["state_type"] in ("COMPLETED", "CANCELLED")
    eventually(lambda: any(run["state_type"] == "COMPLETED" for run in service.runs("ingest", name={"any_": ["Completed"]})))


def test_second_service_and_occupied_port_are_rejected(service: Service) -> None:
    again = service.ratchet("serve", str(service.loop))
    assert again.returncode == 3
    assert "another `ratchet serve`" in again.stderr
    port = service.url.split(":")[2].split("/")[0]
    other = command.ratchet(
        "serve",
        service.loop,
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
    assert "the Prefect server" in service.ratchet("serve", "--stop", str(service.loop)).stderr
    assert not _answers(service.url)
