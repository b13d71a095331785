"""End-to-end tests of the service with a real Prefect server. The tests create cycles that wait for an approval."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ratchet.contracts.cycle import Append, Identity, Row
from ratchet.contracts.ids import approval_stream, rollout_stream
from ratchet.contracts.steps import State
from tests import command
from tests.chromium import chromium
from tests.e2e.prefect_service import LINES, Service, cycle_of, eventually, outcome, request_of, wait_for_approval
from tests.other_user import as_other_user
from tests.waiting import until

pytestmark = pytest.mark.slow
get = partial(httpx.get, trust_env=False, timeout=60)  # the first page imports a lot, beside other tests


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
    done = [("freeze", "Completed"), ("probe", "Completed"), ("plan", "Completed")]
    eventually(lambda: service.tasks(run["id"]) == [*done, ("approve_training", "Paused")])
    assert [one["name"] for one in service.runs("sim")] == ["sim/0001"]
    asked = {"logs": {"flow_run_id": {"any_": [run["id"]]}}}  # logs arrive in batches, after the state
    eventually(lambda: any("waiting for the approval of the training" in log["message"] for log in service.post("logs/filter", asked)))
    artifacts = service.post("artifacts/latest/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    assert {artifact["key"] for artifact in artifacts} >= {"sim-0001-freeze", "sim-0001-plan", "sim-0001-approve-training"}
    linked = next(artifact["data"] for artifact in artifacts if artifact["key"] == "sim-0001-report")
    report = service.url.removesuffix("/api") + "/ratchet/sim/0001"
    assert report in linked
    assert all(report in artifact["data"] for artifact in artifacts if artifact["type"] == "markdown"), "each card leads to the report"


def test_report_beside_the_ui_needs_the_login_and_changes_nothing(service: Service) -> None:
    page, before = service.url.removesuffix("/api") + "/ratchet/sim", service.ledger.heads()
    refused = get(page)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic")
    assert get(page, auth=("ratchet", "wrong")).status_code == 401
    login = tuple(service.home.prefect_login().read_text().split(":"))
    cycle = get(f"{page}/0001", auth=login)
    assert (cycle.status_code, cycle.headers["location"]) == (307, "/ratchet/sim#cycle/sim/0001")
    shown = get(page, auth=login)
    assert shown.status_code == 200
    assert 'id="cycle/sim/0001"' in shown.text
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    assert httpx.post(page, auth=login, trust_env=False).status_code == 405
    for wrong in ("ratchet/nobody", "ratchet/..%2Fsim", "ratchet/sim/x", "ratchet/"):
        assert get(service.url.replace("api", wrong), auth=login).status_code == 404
    assert get(page, auth=login, headers={"Host": "evil.example"}).status_code == 400
    assert service.ledger.heads() == before


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
    assert (ended["name"], outcome(ended)) == ("form/0001 failed", ("Failed", "failed"))
    assert ended["state_type"] == "FAILED", "the training set of the simulated cycle exists only in the simulation"
    eventually(lambda: [name for name, _ in service.tasks(run["id"])] == ["freeze", "probe", "plan", "approve_training", "train"])
    assert ("approve_training", "Completed") in service.tasks(run["id"])


@pytest.mark.parametrize(("line", "decision"), [("page-yes", "approve"), ("page-no", "reject")])
def test_person_answers_in_the_browser_and_the_cycle_goes_on(service: Service, tmp_path: Path, line: str, decision: str) -> None:
    run, login = service.suspended(line), service.home.prefect_login().read_text()
    page_of, stored = service.url.removesuffix("/api"), base64.b64encode(login.encode()).decode()
    with chromium(tmp_path) as page:
        page.open(page_of)
        until(lambda: page.run("document.readyState") == "complete", 120)
        page.run(f"localStorage.setItem('prefect-password', {stored!r})")

        def filled() -> None:
            page.open(f"{page_of}/runs/flow-run/{run['id']}")
            page.click("Resume")
            page.enter("[...document.querySelectorAll('select')].find(one => one.textContent.includes('approve'))", decision)
            for place, text in enumerate(("Grace", "seen in the browser")):
                page.enter(f"document.querySelectorAll('textarea')[{place}]", text)

        filled()
        policy = get(page_of, auth=tuple(login.split(":", 1))).headers["content-security-policy"]  # type: ignore[arg-type]
        assert "connect-src 'self' http://127.0.0.1" in policy
        hosts = page.run("JSON.stringify([...new Set(performance.getEntriesByType('resource').map(one => new URL(one.name).host))])")
        assert {host for host in json.loads(hosts) if host} <= {httpx.URL(page_of).netloc.decode()}, "the UI contacts nobody else"
        assert "with DPO on 100 pairs?" in page.run("document.body.innerText")
        seen = "(one => one.top >= 0 && one.bottom <= innerHeight)(document.querySelector('.p-modal__body select').getBoundingClientRect())"
        assert page.run(seen), "the decision is visible without scrolling"
        inside = "one.getBoundingClientRect().right <= one.closest('.p-modal__body').getBoundingClientRect().right"
        assert page.run(f"[...document.querySelectorAll('.p-modal__body table')].every(one => {inside})"), "no table is cut off"
        page.click("Submit")
        for _ in range(3):  # Prefect refuses an answer while SQLite is busy, and says so; a person submits it again
            with suppress(AssertionError):
                until(lambda: service.answer(line), 60, pause=0.3)
                break
            filled()
            page.click("Submit")
        answer = eventually(lambda: service.answer(line))
    assert (answer.approve, answer.actor, answer.note, answer.via) == (decision == "approve", "Grace", "seen in the browser", "prefect")
    ended = service.ended(run["id"])
    assert outcome(ended) == (("Failed", "failed") if decision == "approve" else ("Completed", "rejected")), (
        "the simulated cycle has no real training set"
    )


def test_answer_on_the_command_line_closes_the_form_and_the_run_goes_on(service: Service) -> None:
    run = service.suspended("cli")
    assert service.ratchet("reject", request_of("cli"), "--by", "bob").returncode == 0
    ended = service.ended(run["id"])
    assert (ended["state_type"], outcome(ended)) == ("COMPLETED", ("Completed", "rejected"))
    assert "bob" in ended["state"]["message"]
    assert service.tasks(run["id"])[-1] == ("approve_training", "Completed")
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
    eventually(lambda: [name for name, _ in service.tasks(second["id"])] == ["freeze", "probe", "plan", "approve_training"])
    assert service.resume(second["id"], decision="reject", approver="ada")["status"] == "ACCEPT"
    assert outcome(service.ended(second["id"])) == ("Completed", "rejected")
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
    assert outcome(service.ended(run["id"])) == ("Completed", "not_opened")
    assert not mark.exists(), "the service runs its own flow, whatever the deployment says"


def test_a_schedule_that_was_made_in_the_ui_opens_no_cycle_without_new_traces(service: Service) -> None:
    place = f"deployments/{service.deployment('empty')['id']}/schedules"
    [made] = service.post(place, [{"active": True, "schedule": {"interval": 10, "anchor_date": "2026-01-01T00:00:00Z"}}])
    run = eventually(lambda: next((run for run in service.runs("empty") if run["auto_scheduled"]), None))
    assert run["parameters"]["when"] == "now", "the UI copies the deployment's parameters"
    ended = service.ended(run["id"])
    assert service.request("DELETE", f"{place}/{made['id']}").status_code == 204
    assert outcome(ended) == ("Completed", "not_opened")
    assert service.ledger.read(cycle_of("empty")) == []


def test_new_traces_open_a_cycle_within_seconds_unless_the_deployment_is_paused(service: Service) -> None:
    deployment = service.deployment("empty")
    service.request("PATCH", f"deployments/{deployment['id']}", {"paused": True})
    time.sleep(30)  # the service reads `paused` every ten seconds, and takes longer on a busy machine
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


def test_automations_of_the_examples_act_on_the_events(service: Service, tmp_path: Path) -> None:
    with webhook() as (address, received):
        saved = f"from prefect.blocks.notifications import CustomWebhookNotificationBlock as B; print(B(name='x', url={address!r}, "
        saved += "json_data={'subject': '{{subject}}', 'body': '{{body}}'}).save('channel'))"
        block = prefect(service, sys.executable, "-c", saved).stdout.strip()
        for name in ("notify-approval", "pause-after-rollback"):
            text = (EXAMPLES / f"{name}.yaml").read_text().replace("00000000-0000-0000-0000-000000000000", block)
            (tmp_path / f"{name}.yaml").write_text(text)
            prefect(service, "prefect", "automation", "create", "--from-file", str(tmp_path / f"{name}.yaml"))
        asked = Row(kind="asked", key="rollout", data={"expires": "2100-01-01T00:00:00Z"})
        append(service, approval_stream(cycle_of("auto"), "rollout"), asked)
        append(service, rollout_stream(cycle_of("auto")), Row(kind="ended", key="rolled_back", data={"reason": "a test"}))
        append(service, "line/auto", Row(kind="noted", key="a change that the service looks at"))
        assert eventually(lambda: received[:1]) == [
            {
                "subject": "auto waits for an approval",
                "body": "approval/auto/0001/rollout is open. Press Resume on its run in Prefect, or run `ratchet approve`.",
            }
        ]
        eventually(lambda: service.deployment("auto")["paused"])
        assert not service.deployment("cli")["paused"]


def test_worker_of_a_work_pool_asks_the_service_and_exits(service: Service, tmp_path: Path) -> None:
    (tmp_path / "prefect.yaml").write_text(service.ratchet("prefect", "render", *service.paths).stdout)
    prefect(service, "prefect", "work-pool", "create", "--type", "process", "ratchet", folder=tmp_path)
    prefect(service, "prefect", "--no-prompt", "deploy", "-n", "thief", folder=tmp_path)
    deployed = service.request("GET", "deployments/name/ratchet-request/thief").json()
    run = service.post(f"deployments/{deployed['id']}/create_flow_run", {})
    prefect(service, "prefect", "worker", "start", "--pool", "ratchet", "--run-once", folder=tmp_path)
    ended = service.ended(run["id"])
    service.request("DELETE", f"deployments/{deployed['id']}")  # the other tests count the deployments
    assert (ended["state_name"], ended["state"]["message"]) == ("Completed", "no cycle opened: cycle/thief/0001 is still open")


EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "prefect"


def append(service: Service, stream: str, row: Row) -> None:
    """Append a row to a stream of the service's ledger."""
    service.ledger.append([Append(stream=stream, after=len(service.ledger.read(stream)), rows=(row,))], None, datetime.now(UTC))


def prefect(service: Service, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command as a user of the service's Prefect server."""
    login = service.home.prefect_login().read_text()
    environment = {
        **os.environ,
        "PREFECT_API_URL": service.url,
        "PREFECT_API_AUTH_STRING": login,
        "PREFECT_HOME": str(service.folder / "user"),
    }
    program, *others = arguments
    command = [shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or program, *others]
    done = subprocess.run(command, env=environment, cwd=folder or service.folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@contextmanager
def webhook() -> Iterator[tuple[str, list[Any]]]:
    """An HTTP server that keeps the JSON bodies that it receives: its address and the bodies."""
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", received
    finally:
        server.shutdown()
        server.server_close()


def test_answer_given_while_the_service_is_dead_counts(service: Service) -> None:
    run = service.suspended("late")
    service.kill()
    assert service.resume(run["id"], decision="reject", approver="ada", note="too late?")["status"] == "ACCEPT"
    assert service.answer("late") is None
    service.start()
    answer = eventually(lambda: service.answer("late"))
    assert (answer.actor, answer.approve, answer.note) == ("ada", False, "too late?")
    assert outcome(service.ended(run["id"])) == ("Completed", "rejected")


def test_service_continues_after_the_prefect_server_is_killed_and_its_database_deleted(service: Service) -> None:
    before = {deployment["id"] for deployment in service.post("deployments/filter")}
    server = json.loads((service.home.prefect / "server" / "ready.json").read_bytes())
    psutil.Process(server["pid"]).kill()
    for file in service.home.prefect.glob("prefect.db*"):
        file.unlink()
    eventually(lambda: _answers(service.url))
    eventually(lambda: len(new := service.post("deployments/filter")) == len(LINES) and not before & {one["id"] for one in new})
    run = service.suspended("thief")
    eventually(lambda: ("approve_training", "Paused") in service.tasks(run["id"]))
    assert [name for name, _ in service.tasks(run["id"])] == ["freeze", "probe", "plan", "approve_training"]


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
