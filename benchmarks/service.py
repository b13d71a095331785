"""What an idle service costs, how fast it reacts, and how fast it recovers.

The service runs as a user starts it, with a Prefect server on SQLite, one line, its receiver, router and model server. The sections are:

- `idle`: CPU and memory of service, receiver and router without news. `idle_lines` is the same with many lines (service_lines.py).
- `asked`: CPU and memory while a cycle waits for a person.
- `recovery`: seconds without answers after a `kill -9` of receiver, router or model server (service_recovery.py).
- `reactions`: the seconds from the receiver's acknowledgement of a trace to the row that opens a cycle; and the seconds from an answer to
  the row with which the cycle goes on, given in Prefect's form and on the command line. `reactions_postgres` is the same with the ledger on
  Postgres. Both also give the service's resident memory before the first cycle and after each quarter of the cycles.

`python benchmarks/service.py [--only SECTION …] [--idle 120] [--lines 100] [--kills 8] [--cycles 30] [--answers 5]`

Sections that are not measured keep their earlier figures in the result, each with the date and the digest of its code.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import httpx
import psutil
from service_lines import idle_lines, model_servers, processes, quiet
from service_recovery import cold_starts, recovered

from ratchet.contracts.cycle import Answer, Identity
from ratchet.contracts.data.senders import Role
from ratchet.contracts.ids import approval_stream, cycle_stream, digest, digest_file
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.config.variables import LEDGER_URL
from ratchet.flows.core.requests import fold_approval
from ratchet.flows.demo.users import Crowd, Habits
from ratchet.flows.demo.world import base_ready, build_world, start_base, traffic
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import adopt, answer, ask_cancel
from ratchet.flows.prefect import server
from tests.postgres import postgres_server

LINE = "ops"
LOOP = """
[line]
name = "ops"
served_model = "ops"
[[sources]]
name = "router"
kind = "receiver"
[[rewards]]
name = "exact_match"
[[rewards]]
name = "user_feedback"
[probe]
prompts = 20
samples = 2
max_tokens = 8
[training]
min_pairs = 5
[serving.options]
threads = 1
[approvals.training]
mode = "person"
[trigger]
new_traces = 1
min_interval = 0
"""
FORMER = {
    "idle": {"cpu_share_with_prefect": 0.49, "service_memory_mb": 224, "flow_process_memory_mb": [146, 491]},
    "asked": {"own_cpu_share": 0.0175},
    "idle_lines": {"lines": 100, "cpu_share_computed": 39},
    "recovery": {"receiver": "never", "router": "at the next reconcile, 60 s"},
    "reactions": {"trace_to_cycle_s": [17.7, 41.3, 43.5, 52.5], "form_to_action_s": [37, 37], "command_to_action_s": [271]},
    "reactions_postgres": {},
}
"""Figures of the former service, which started a process per tick, and a receiver and a router process per line. Measured on 2026-11-22
on another machine with two busy cores."""
SECTIONS = tuple(FORMER)


PACKAGES = ("contracts", "runtime", "materializer", "gates", "local", "flows")
"""Packages whose code the result depends on."""


def service_digest() -> str:
    """Return the digest of the service's code."""
    root = Path(__file__).resolve().parents[1]
    files = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    return digest([[path.relative_to(root).as_posix(), digest_file(path)] for path in files])[:12]


def wait(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return the first true value of the condition. Exits if there is none within `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise SystemExit(f"{what} did not happen within {seconds:g} s")


class Site:
    """One installation with a served line."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.home = Home(folder / "home")
        self.loop = folder / "ops.toml"
        self.loop.write_text(LOOP, encoding="utf-8")
        self.home.root.mkdir()
        world = build_world()
        training = start_base(world, self.home.root)
        self.installation = Installation(self.home)
        self.context = self.installation.context(self.loop)
        weights = base_ready(training, self.home.root)
        version = adopt(self.context, weights, "benchmark")
        self.context.registry.register(version, weights, {"ratchet.adopted": "true"}, {})  # as `ratchet adopt` does
        self.context.registry.alias(LINE, "champion", version.tag)
        self.world, self.folder, self.at = world, folder, 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service and wait until it answers, with 300 requests of simulated users already in the lake."""
        environment = {**os.environ, "RATCHET_HOME": str(self.home.root)}
        log = (self.folder / "serve.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ratchet.flows.cli.main", "serve", str(self.loop)], env=environment, stderr=log, stdout=log
        )
        wait(lambda: server.known_url(self.home), 120, "the start of Prefect")
        wait(lambda: self.context.router.read(LINE), 120, "the start of the router")
        ready = wait(lambda: self.home.receiver(LINE).exists() and json.loads(self.home.receiver(LINE).read_text()), 60, "the receiver")
        self.receiver = f"http://127.0.0.1:{ready['port']}"
        store = open_credentials(self.home, LINE)
        names = (("users", Role.FEEDBACK), ("reviewers", Role.REVIEW), ("application", Role.TRACES))
        tokens = {role: store.add(name, [role]).read_text() for name, role in names}
        self.token = tokens[Role.TRACES]
        self.prefect = httpx.Client(
            base_url=str(server.known_url(self.home)), headers=server.authorization(self.home), timeout=60, trust_env=False
        )
        wait(lambda: self.deployment().get("id"), 120, "the deployment")
        self.pause(True)
        crowd = Crowd(self.context.router.url(), self.receiver, tokens, "ops", Habits(), 1)
        crowd.ask_all(traffic(self.world, 300, 1))
        time.sleep(2)
        ingest(self.context, wait=60)

    def stop(self) -> None:
        """Stop everything."""
        command = [sys.executable, "-m", "ratchet.flows.cli.main", "serve", "--stop", str(self.loop)]
        subprocess.run(command, env={**os.environ, "RATCHET_HOME": str(self.home.root)}, check=False, capture_output=True)

    def deployment(self) -> dict[str, Any]:
        """Return the line's deployment."""
        reply = self.prefect.get(f"deployments/name/ratchet-retrain/{LINE}")
        return dict(reply.json()) if reply.status_code == 200 else {}

    def pause(self, paused: bool) -> None:
        """Pause or resume the deployment, and wait until the service has noticed."""
        path = f"deployments/{self.deployment()['id']}"
        wait(lambda: self.prefect.patch(path, json={"paused": paused}).status_code == 204, 30, "the change")  # 503 while SQLite is busy
        time.sleep(11)

    def send(self) -> float:
        """Send one trace to the receiver. Returns the time at which the receiver acknowledged it."""
        self.at += 1
        said = {"role": "user", "content": f"question {self.at}"}, {"role": "assistant", "content": "kubectl get pods"}
        values = {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps([said[0]]),
            "gen_ai.output.messages": json.dumps([said[1]]),
            "metadata.consent": True,
        }
        now = time.time_ns()
        span = {
            "traceId": f"{self.at:032x}",
            "spanId": f"{self.at:016x}",
            "name": "chat",
            "startTimeUnixNano": str(now),
            "endTimeUnixNano": str(now + 1),
            "attributes": [{"key": k, "value": {"boolValue": v} if v is True else {"stringValue": v}} for k, v in values.items()],
        }
        body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
        headers = {"authorization": f"Bearer {self.token}"}
        httpx.post(f"{self.receiver}/v1/traces", json=body, headers=headers, trust_env=False, timeout=30).raise_for_status()
        return time.monotonic()

    def rows(self, cycle: str) -> list[Any]:
        """Return the rows of a cycle."""
        return self.installation.ledger.read(cycle)

    def end(self) -> None:
        """Cancel the open cycle, wait for its end, and leave the service the time to finish its work for it."""
        ask_cancel(self.installation.ledger, LINE, "benchmark", "measured", datetime.now(UTC))
        wait(lambda: self.context.line_view().open_cycle is None, 120, "the end of the cycle")
        time.sleep(2)

    def waiting(self) -> str:
        """Wait until the open cycle asks for approval with a usable form; return its stream."""
        cycle = str(self.context.line_view().open_cycle)
        wait(lambda: any(row.kind == "asked" for row in self.rows(cycle)), 180, "the request")
        wait(lambda: self.suspended(cycle), 60, "the form")
        return cycle

    def suspended(self, cycle: str) -> str | None:
        """Return the id of the cycle's run if it is suspended with its form."""
        body = {"flow_runs": {"name": {"any_": [cycle.removeprefix("cycle/")]}}}
        reply = self.prefect.post("flow_runs/filter", json=body)
        for run in reply.json() if reply.status_code == 200 else []:
            if run["state_type"] == "PAUSED" and run["state"]["state_details"].get("run_input_keyset"):
                return str(run["id"])
        return None


def idle(site: Site, seconds: float) -> dict[str, Any]:
    """Return what the idle service costs."""
    assert site.process is not None
    pid = site.process.pid
    found = quiet(lambda: processes(site.home, pid), model_servers(site.home), seconds)
    return {**found, "runs_created": len(site.prefect.post("flow_runs/filter", json={}).json())}


def asked(site: Site, seconds: float) -> dict[str, Any]:
    """Return what the service costs while a cycle waits for a person."""
    assert site.process is not None
    pid = site.process.pid
    site.pause(False)
    wait(lambda: site.context.line_view().open_cycle, 120, "the first cycle")
    site.waiting()
    time.sleep(10)
    found = quiet(lambda: processes(site.home, pid), model_servers(site.home), seconds)
    site.end()
    site.pause(True)
    return found


def recovery(site: Site, kills: int) -> dict[str, Any]:
    """Return the seconds without answers after kills, and those of cold starts without the service."""
    champion = site.context.line_view().champion
    assert champion is not None
    cold = cold_starts(site.folder / "cold", site.loop, champion, site.context.artifacts)
    found = recovered(site.context, site.home, site.receiver, kills)
    return {name: {**spread(values), "cold_start_s": round(cold[name], 2)} for name, values in found.items()}


def reactions(site: Site, cycles: int, answers: int) -> dict[str, Any]:
    """Return the seconds from a trace to a cycle, and from an answer to the action, and the service's memory in MB."""
    assert site.process is not None
    service = psutil.Process(site.process.pid)
    memory = [round(service.memory_info().rss / 2**20)]
    site.pause(False)
    if site.context.line_view().open_cycle is None:  # the 300 requests open the first one, unless an earlier section had it
        opened(site)
    acts: dict[str, list[float]] = {"form": [], "command": []}
    for number in range(2 * answers):
        kind = "form" if number % 2 == 0 else "command"
        acts[kind].append(acted(site, by_form=kind == "form"))
        click.echo(f"{kind}: {acts[kind][-1]:.2f} s")
        opened(site)
    site.end()
    openings = []
    for number in range(1, cycles + 1):
        openings.append(opened(site))
        site.end()
        if number % max(cycles // 4, 1) == 0:
            memory.append(round(service.memory_info().rss / 2**20))
            click.echo(f"{number} cycles: {memory[-1]} MB")
    return {
        "memory_mb": memory,
        "trace_to_cycle": spread(openings),
        "form_to_action": spread(acts["form"]),
        "command_to_action": spread(acts["command"]),
    }


def opened(site: Site) -> float:
    """Send a trace, and return the seconds from its acknowledgement to the opening of a cycle."""
    cycle = cycle_stream(LINE, site.context.line_view().cycles + 1)
    sent = site.send()
    wait(lambda: site.rows(cycle), 120, f"the opening of {cycle}")
    return time.monotonic() - sent


def acted(site: Site, by_form: bool) -> float:
    """Reject the open cycle's request, and return the seconds until the cycle has the answer."""
    cycle = site.waiting()
    request = approval_stream(cycle, "training")
    if by_form:
        body = {"run_input": {"decision": "reject", "approver": "ada"}}
        given = time.monotonic()
        path = f"flow_runs/{site.suspended(cycle)}/resume"
        wait(lambda: site.prefect.post(path, json=body).status_code < 300, 30, "the answer in the form")  # 503 while SQLite is busy
    else:
        view = fold_approval(site.rows(request))
        said = Answer(approve=False, actor="ada", identity=Identity.CLAIMED, via="cli")
        given = time.monotonic()
        answer(site.installation.ledger, view, said, datetime.now(UTC))
    wait(lambda: any(row.kind == "answered" or row.kind == "ended" for row in site.rows(cycle)), 300, "the action")
    seconds = time.monotonic() - given
    wait(lambda: site.context.line_view().open_cycle is None, 120, "the end of the cycle")
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    """Return count, median, 95th percentile and maximum, in seconds."""
    ordered = sorted(values)
    return {
        "n": len(values),
        "median_s": round(statistics.median(ordered), 2),
        "p95_s": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 2),
        "max_s": round(ordered[-1], 2),
    }


def measured(only: Sequence[str], seconds: float, lines: int, kills: int, cycles: int, answers: int) -> Iterator[tuple[str, Any]]:
    """Measure the sections, and yield each with its result."""
    with tempfile.TemporaryDirectory(prefix="ratchet-service-") as folder:
        if "idle_lines" in only:
            yield "idle_lines", idle_lines(Path(folder) / "lines", lines, seconds)
        site = Site(Path(folder) / "site")
        try:
            site.start()
            time.sleep(30)
            if "idle" in only:
                yield "idle", idle(site, seconds)
            if "asked" in only:
                yield "asked", asked(site, seconds)
            if "recovery" in only:
                yield "recovery", recovery(site, kills)
            if "reactions" in only:
                yield "reactions", reactions(site, cycles, answers)
        finally:
            site.stop()
        if "reactions_postgres" in only:
            yield "reactions_postgres", on_postgres(Path(folder) / "postgres", cycles, answers)


def on_postgres(folder: Path, cycles: int, answers: int) -> dict[str, Any]:
    """Return the reactions of a service whose ledger is on a private Postgres server."""
    with postgres_server() as postgres:
        os.environ[LEDGER_URL] = postgres.url()
        try:
            site = Site(folder)
            try:
                site.start()
                return reactions(site, cycles, answers)
            finally:
                site.stop()
        finally:
            del os.environ[LEDGER_URL]


@click.command()
@click.option("--only", multiple=True, type=click.Choice(SECTIONS), help="Section to measure. Default: all.")
@click.option("--idle", "seconds", default=120.0, help="Seconds of each idle measurement.")
@click.option("--lines", default=100, help="Number of lines of the section idle_lines.")
@click.option("--kills", default=8, help="Number of kills of each process.")
@click.option("--cycles", default=30, help="Number of cycles opened by a trace.")
@click.option("--answers", default=5, help="Number of answers, each by form and by command.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "service.json")
def main(only: tuple[str, ...], seconds: float, lines: int, kills: int, cycles: int, answers: int, out: Path) -> None:
    """Measure the service and write the result after each section."""
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for section, found in measured(only or SECTIONS, seconds, lines, kills, cycles, answers):
        about = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "code": service_digest(), "cores": os.cpu_count()}
        result[section] = {**about, **found, "former": FORMER[section]}
        click.echo(json.dumps({section: result[section]}, indent=2))
        out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
