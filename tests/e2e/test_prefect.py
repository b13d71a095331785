"""End-to-end tests of the service with a real Prefect server. The tests create cycles that wait for an approval."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from contracts.cycle import Identity, State
from tests import command
from tests.chromium import chromium
from tests.e2e.prefect_service import LINES, Service, cycle_of, eventually, request_of, wait_for_approval
from tests.other_user import as_other_user
from tests.waiting import until

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize(("line", "decision"), [("page-yes", "approve"), ("page-no", "reject")])
def test_person_answers_in_the_browser_and_the_cycle_goes_on(service: Service, tmp_path: Path, line: str, decision: str) -> None:
    run, login = service.suspended(line), service.home.prefect_login().read_text()
    page_of, stored = service.url.removesuffix("/api"), base64.b64encode(login.encode()).decode()
    fill = """(() => {
        const set = (field, value) => {
            Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), 'value').set.call(field, value);
            for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {bubbles: true}));
        };
        const choice = [...document.querySelectorAll('select')].find(one => one.textContent.includes('approve'));
        const texts = [...document.querySelectorAll('textarea')];
        if (!choice || texts.length < 2) return false;
        choice.selectedIndex = [...choice.options].findIndex(one => one.textContent.trim() === 'DECISION');
        choice.dispatchEvent(new Event('change', {bubbles: true}));
        set(texts[0], 'Grace'); set(texts[1], 'seen in the browser');
        return true;
    })()""".replace("DECISION", decision)
    with chromium(tmp_path) as page:
        page.open(page_of)
        until(lambda: page.run("document.readyState") == "complete", 120)
        page.run(f"localStorage.setItem('prefect-password', {stored!r})")
        page.open(f"{page_of}/runs/flow-run/{run['id']}")
        page.click("Resume")
        until(lambda: page.run(fill), 120, pause=0.2)
        assert "with DPO on 100 pairs?" in page.run("document.body.innerText")
        inside = "one.getBoundingClientRect().right <= one.closest('.p-modal__body').getBoundingClientRect().right"
        assert page.run(f"[...document.querySelectorAll('.p-modal__body table')].every(one => {inside})"), "no table is cut off"
        page.click("Submit")
        answer = eventually(lambda: service.answer(line))
    assert (answer.approve, answer.actor, answer.note, answer.via) == (decision == "approve", "Grace", "seen in the browser", "prefect")
    ended = service.ended(run["id"])
    assert ended["state_name"] == ("Failed" if decision == "approve" else "Rejected"), "the simulated cycle has no real training set"


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
