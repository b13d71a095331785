"""What the service costs and how it reacts while cycles run, with the toy line of the tests: real servers, training and evaluation.

- `overhead`: cycles one after another, each of another line. The seconds that are neither training, evaluation, probe nor waiting for
  traffic, their share of the cycle and of one that takes a minute without the waiting, and the seconds of each step of the median cycle.
- `rollback`: the seconds from a person's command to the moment from which the router sends every request to the old version; also while
  another process holds the line's lease, as an evaluation does.
- `many`: lines that all cycle at once. Every cycle must end; reported are the steps a minute.

`python benchmarks/service_cycles.py [--cycles 5] [--rollbacks 30] [--lines 20]`
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import httpx

from ratchet.contracts.cycle import Append, Entry, Row
from ratchet.contracts.data.senders import Role
from ratchet.contracts.ids import cycle_stream, line_stream, rollout_stream
from ratchet.contracts.serving import ModelVersion, RouterHeader
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.composition.services import start_receiver
from ratchet.flows.config.home import Home
from ratchet.flows.engine.line import adopt, ask_rollback
from ratchet.flows.engine.reconcile import reconcile
from ratchet.trainers.code_digest import code_digest
from tests.toy_line import TRAINING, like, write_loop, write_model, write_traffic

FORMER = {"overhead_s": 6.4, "overhead_share": 0.066, "rollback_s": [5.3]}
"""Figures of the former service, measured on 2026-11-22 on another machine with two busy cores."""
MEASURED = ("train", "evaluate", "probe")
"""Steps whose work is not the service's own."""


def wait(condition: Callable[[], Any], seconds: float, what: str, pause: float = 0.02) -> Any:
    """Return the first true value of the condition. Exits if there is none within `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(pause)
    raise SystemExit(f"{what} did not happen within {seconds:g} s")


class Lines:
    """A running installation with `count` toy lines. Their users ask through the router while a cycle is open."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.home = folder, Home(folder / "home")
        self.names = [f"toy{number:02d}" for number in range(count)]
        self.loops = [write_loop(folder, name) for name in self.names]
        model = write_model(folder)
        self.installation = Installation(self.home)
        self.contexts = [self.installation.context(loop) for loop in self.loops]
        for context in self.contexts:
            adopt(context, model, "benchmark")
        self.tokens = {name: open_credentials(self.home, name).add("people", [Role.FEEDBACK]).read_text() for name in self.names}
        self.over = threading.Event()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve all lines, with traffic, until the block ends."""
        environment = {**os.environ, "RATCHET_HOME": str(self.home.root)}
        command = [sys.executable, "-m", "ratchet.flows.cli.main", "serve"]
        with (self.folder / "serve.log").open("wb") as log:
            subprocess.Popen([*command, *map(str, self.loops)], env=environment, stderr=log, stdout=log)
        users = threading.Thread(target=self._ask, daemon=True)
        users.start()
        try:
            wait(lambda: all(context.router.read(context.line) for context in self.contexts), 600, "the start of the routers", 0.2)
            yield
        finally:
            self.over.set()
            users.join(60)
            subprocess.run([*command, "--stop", *map(str, self.loops)], env=environment, check=False, capture_output=True)

    def _ask(self) -> None:
        """Send a request to each line whose rollout is open, about four times a second, and like the answer."""
        client, number = httpx.Client(timeout=60, trust_env=False), 0
        while not self.over.wait(0.25):
            for context in self.contexts:
                rows = self.rows(rollout_stream(cycle_stream(context.line, 1)))
                if not rows or rows[-1].kind == "ended":  # traffic of other lines would be load on the next cycle
                    continue
                number += 1
                headers: dict[str, str] = {RouterHeader.SESSION: f"session-{number}", RouterHeader.USER: f"user-{number}"}
                body = {"model": context.line, "messages": [{"role": "user", "content": TRAINING[number % 100]}], "max_tokens": 4}
                with contextlib.suppress(Exception):
                    reply = client.post(f"{context.router.url()}/v1/chat/completions", json=body, headers=headers)
                    said = like(reply.headers[RouterHeader.TRACE], f"user-{number}")
                    receiver = start_receiver(context.loop, self.home)
                    client.post(f"{receiver}/v1/logs", json=said, headers={"authorization": f"Bearer {self.tokens[context.line]}"})

    def rows(self, stream: str) -> list[Entry]:
        """Return the rows of a stream."""
        return self.installation.ledger.read(stream)

    def ended(self, line: str) -> bool:
        """Return whether the first cycle of a line has ended."""
        cycle = self.installation.cycle(line, 1)
        return cycle is not None and cycle.ended


def overhead(rows: Sequence[Entry], rollout: Sequence[Entry]) -> dict[str, Any]:
    """Return how long a cycle took, in seconds by step, and what is neither a measured step nor waiting for the evidence of the rollout."""
    begun = {row.key: row.at for row in rows if row.kind == "intended"}
    steps: dict[str, float] = {}
    trained = [row.at for row in rows if row.kind == "intended" and row.key.startswith("train/")]
    for row in rows:
        since = trained[0] if row.kind == "job_ended" else begun.get(row.key) if row.kind == "done" else None
        if since is not None:
            step = "train" if row.kind == "job_ended" else row.key.split("/")[0]
            steps[step] = round((row.at - since).total_seconds(), 2)
    total = (rows[-1].at - rows[0].at).total_seconds()
    waited = (rollout[-1].at - rollout[0].at).total_seconds() if rollout else 0.0
    own = total - waited - sum(steps.get(step, 0.0) for step in MEASURED)
    return {
        "total_s": round(total, 1),
        "rollout_s": round(waited, 1),
        "steps_s": steps,
        "overhead_s": round(own, 2),
        "overhead_share": round(own / (total - waited), 3),
    }


def overheads(lines: Lines) -> dict[str, Any]:
    """Let the first cycle of each line run, one after another. Return their overheads, and the cycle with the median one."""
    found = []
    for name in lines.names:
        write_traffic(lines.folder, name)
        wait(lambda name=name: lines.ended(name), 1200, "the end of the cycle", 0.5)
        cycle = cycle_stream(name, 1)
        found.append(overhead(lines.rows(cycle), lines.rows(rollout_stream(cycle))))
        click.echo(json.dumps(found[-1]))
    seconds = spread([one["overhead_s"] for one in found])
    middle = sorted(found, key=lambda one: float(one["overhead_s"]))[(len(found) - 1) // 2]
    return {"overhead": seconds, "share_of_a_minute": round(seconds["median_s"] / 60, 3), "median_cycle": middle}


def rollbacks(lines: Lines, count: int) -> dict[str, Any]:
    """Roll the first line back `count` times with a free lease, and `count` times with a held one. Return the seconds."""
    context, stream = lines.contexts[0], line_stream(lines.names[0])
    view = context.line_view()
    assert view.champion is not None
    assert view.base is not None
    promoted, old = view.champion, view.base
    found: dict[str, list[float]] = {"free": [], "held": []}
    for number in range(2 * count):
        kind = "free" if number % 2 == 0 else "held"
        if number:
            _promote(lines, stream, promoted)
            reconcile(context)
            wait(lambda: _serves(context, promoted), 120, "the route of the promoted version")
        with _held(lines, stream) if kind == "held" else contextlib.nullcontext():
            asked = time.monotonic()
            ask_rollback(lines.installation.ledger, lines.names[0], "benchmark", "measured", datetime.now(UTC))
            wait(lambda: _serves(context, old), 120, "the rollback")
            found[kind].append(time.monotonic() - asked)
        wait(lambda: context.line_view().rollback_asked is None, 120, "the row of the rollback")
    return {kind: spread(values) for kind, values in found.items()}


def _promote(lines: Lines, stream: str, version: ModelVersion) -> None:
    """Write the row with which a cycle promotes a version."""
    row = Row(kind="champion", key=version.tag, data={"version": version.model_dump(mode="json"), "cycle": cycle_stream(version.line, 1)})
    lines.installation.ledger.append([Append(stream=stream, after=len(lines.rows(stream)), rows=(row,))], None, datetime.now(UTC))


def _serves(context: Any, version: ModelVersion) -> bool:
    """Return whether the router process sends every request to this version: its state names the route, and so does a request."""
    route = context.router.read(context.line)
    return route is not None and [backend.tag for backend in route.backends if backend.weight > 0] == [version.tag]


@contextmanager
def _held(lines: Lines, stream: str) -> Iterator[None]:
    """Hold the line's lease, as a long evaluation does."""
    ledger = lines.installation.ledger
    lease = wait(lambda: ledger.acquire(stream, "benchmark", 600, datetime.now(UTC)), 60, "the lease")
    try:
        yield
    finally:
        ledger.release(lease)


def many(lines: Lines) -> dict[str, Any]:
    """Let the first cycle of every line run at once. Return ends, times, and the steps a minute."""
    began = time.monotonic()
    for name in lines.names:
        write_traffic(lines.folder, name)
    wait(lambda: all(lines.ended(name) for name in lines.names), 3600, "the end of all cycles", 1.0)
    minutes = (time.monotonic() - began) / 60
    ends, seconds, steps = [], [], 0
    for name in lines.names:
        rows = lines.rows(cycle_stream(name, 1))
        steps += sum(row.kind == "done" for row in rows)
        ends.append(rows[-1].key)
        seconds.append((rows[-1].at - rows[0].at).total_seconds())
    return {
        "lines": len(lines.names),
        "ends": {end: ends.count(end) for end in sorted(set(ends))},
        "minutes": round(minutes, 1),
        "steps_a_minute": round(steps / minutes, 1),
        "cycle": spread(seconds),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return count, median, 95th percentile and maximum, in seconds."""
    ordered = sorted(values)
    return {
        "n": len(values),
        "median_s": round(statistics.median(ordered), 2),
        "p95_s": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 2),
        "max_s": round(ordered[-1], 2),
    }


@click.command()
@click.option("--cycles", default=5, help="Number of cycles whose overhead is measured.")
@click.option("--rollbacks", "count", default=30, help="Number of rollbacks with a free lease, and with a held one.")
@click.option("--lines", "together", default=20, help="Number of lines that cycle at once; 0: none.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "service_cycles.json")
def main(cycles: int, count: int, together: int, out: Path) -> None:
    """Measure the cycles and write the result."""
    earlier = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    result: dict[str, Any] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "code": code_digest(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="ratchet-cycles-") as folder:
        lines = Lines(Path(folder), cycles)
        with lines.serving():
            result["overhead"] = overheads(lines)
            result["rollback"] = rollbacks(lines, count)
            click.echo(json.dumps(result["rollback"]))
    if together:
        with tempfile.TemporaryDirectory(prefix="ratchet-cycles-") as folder:
            lines = Lines(Path(folder), together)
            with lines.serving():
                result["many"] = many(lines)
            click.echo(json.dumps(result["many"]))
    elif "many" in earlier:
        result["many"] = {"code": earlier["code"], **earlier["many"]}
    out.write_text(json.dumps({**result, "former_service": FORMER}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
