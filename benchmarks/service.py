"""What an idle service costs, and how fast it reacts: trace to cycle, and answer to action.

The service runs as a user starts it, with a Prefect server on SQLite, one line, its receiver, router and model server. Measured are the CPU
and memory of `ratchet serve` without news; the seconds from the receiver's acknowledgement of a trace to the row that opens a cycle; and
the seconds from an answer to the row with which the cycle goes on, given in Prefect's form and on the command line.

`python benchmarks/service.py [--idle 120] [--cycles 30] [--answers 5]`
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import httpx
import psutil

from contracts.cycle import Answer, Identity
from contracts.data.senders import Role
from contracts.ids import approval_stream, cycle_stream
from flows.composition.credentials import open_credentials
from flows.composition.installation import Installation
from flows.config.home import Home
from flows.core.folds import fold_approval
from flows.demo.users import Crowd, Habits
from flows.demo.world import base_ready, build_world, start_base, traffic
from flows.engine.ingest import ingest
from flows.engine.line import adopt, answer, ask_cancel
from flows.prefect import server
from trainers.code_digest import code_digest

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
FORMER = {"idle_cpu_share": 0.49, "trace_to_cycle_s": [17.7, 41.3, 43.5, 52.5], "form_to_action_s": [37, 37], "command_to_action_s": [271]}
"""Figures of the former service, which started a process per tick, measured on 2026-11-22 on another machine with two busy cores."""


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
        self.home = Home(folder / "home")
        self.loop = folder / "ops.toml"
        self.loop.write_text(LOOP, encoding="utf-8")
        self.home.root.mkdir()
        world = build_world()
        training = start_base(world, self.home.root)
        self.installation = Installation(self.home)
        self.context = self.installation.context(self.loop)
        adopt(self.context, base_ready(training, self.home.root), "benchmark")
        self.world, self.folder, self.at = world, folder, 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service and wait until it answers, with 300 requests of simulated users already in the lake."""
        environment = {**os.environ, "RATCHET_HOME": str(self.home.root)}
        log = (self.folder / "serve.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli.main", "serve", str(self.loop)], env=environment, stderr=log, stdout=log
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
        command = [sys.executable, "-m", "flows.cli.main", "serve", "--stop", str(self.loop)]
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
        """Cancel the open cycle and wait for its end."""
        ask_cancel(self.installation.ledger, LINE, "benchmark", "measured", datetime.now(UTC))
        wait(lambda: self.context.line_view().open_cycle is None, 120, "the end of the cycle")

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


def idle(site: Site, seconds: float) -> dict[str, float]:
    """Return the share of a core and the memory of the idle service, and those of the Prefect server beside it."""
    assert site.process is not None
    ready = json.loads((site.home.prefect / "server" / "ready.json").read_bytes())
    ours, theirs = psutil.Process(site.process.pid), psutil.Process(ready["pid"])

    def cpu(process: psutil.Process) -> float:
        family = [process, *process.children(recursive=True)]
        return float(sum(sum(one.cpu_times()[:2]) for one in family))

    before = cpu(ours), cpu(theirs)
    time.sleep(seconds)
    return {
        "seconds": seconds,
        "idle_cpu_share": round((cpu(ours) - before[0]) / seconds, 4),
        "prefect_cpu_share": round((cpu(theirs) - before[1]) / seconds, 4),
        "memory_mb": round(ours.memory_info().rss / 2**20),
        "runs_created": len(site.prefect.post("flow_runs/filter", json={}).json()),
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
        site.prefect.post(f"flow_runs/{site.suspended(cycle)}/resume", json=body).raise_for_status()
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


@click.command()
@click.option("--idle", "seconds", default=120.0, help="Seconds of the idle measurement.")
@click.option("--cycles", default=30, help="Number of cycles opened by a trace.")
@click.option("--answers", default=5, help="Number of answers, each by form and by command.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "service.json")
def main(seconds: float, cycles: int, answers: int, out: Path) -> None:
    """Measure the service and write the result."""
    with tempfile.TemporaryDirectory(prefix="ratchet-service-") as folder:
        site = Site(Path(folder))
        try:
            site.start()
            time.sleep(30)
            quiet = idle(site, seconds)
            click.echo(json.dumps(quiet))
            site.pause(False)
            wait(lambda: site.context.line_view().open_cycle, 120, "the first cycle")  # of the 300 requests
            reactions: dict[str, list[float]] = {"form": [], "command": []}
            for number in range(2 * answers):
                kind = "form" if number % 2 == 0 else "command"
                reactions[kind].append(acted(site, by_form=kind == "form"))
                click.echo(f"{kind}: {reactions[kind][-1]:.2f} s")
                opened(site)
            site.end()
            openings = []
            for _ in range(cycles):
                openings.append(opened(site))
                site.end()
            result = {
                "date": datetime.now(UTC).strftime("%Y-%m-%d"),
                "code": code_digest(),
                "cores": os.cpu_count(),
                "idle": quiet,
                "trace_to_cycle": spread(openings),
                "form_to_action": spread(reactions["form"]),
                "command_to_action": spread(reactions["command"]),
                "former_service": FORMER,
            }
            click.echo(json.dumps(result, indent=2))
            out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        finally:
            site.stop()


if __name__ == "__main__":
    main()
