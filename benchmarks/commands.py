"""What a command costs, and how long users stay on a bad version after `ratchet rollback` is started.

- `cpu`: CPU seconds (user and system) of short commands on a small home, beside those of `python -c pass` and of the import of click
  and pydantic in the same run, and their ratio. All programs run in turn, `--runs` times, so that a busy machine slows all alike.
- `rollback`: seconds from the start of the process `ratchet rollback` to the request's row in the ledger, to the moment from which the
  router sends every session to the old version, and to the end of the command: without a service, with one, and while another process
  holds the line's lease, as an evaluation does.

`python benchmarks/commands.py [--runs 11] [--rollbacks 10]`
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from service_cycles import Lines, _held, _promote, _serves, spread, wait

from ratchet.contracts.ids import digest, line_stream, version_tag
from ratchet.contracts.serving import ModelVersion
from ratchet.flows.engine.reconcile import reconcile
from ratchet.trainers.code_digest import code_digest
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cli.homes import LOOP, home_of

RATCHET = ("-m", "ratchet.flows.cli.main")
BARE = {"python": ("-c", "pass"), "click and pydantic": ("-c", "import click; from pydantic import BaseModel, Field")}
COMMANDS = ("status", "approve sim", "logs sim", "rollback sim --no-wait", "trigger sim", "ingest sim")


def shop(folder: Path) -> dict[str, str]:
    """Make a home with one line that has promoted a version, and return the environment of its commands."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    for stream, rows in sim.ledger.rows.items():
        if stream == line_stream("sim") or stream.startswith("cycle/"):
            rows[0] = rows[0].model_copy(update={"data": {**rows[0].data, "folder": str(folder), "file": "loop.toml"}})
    home = home_of(sim, folder)
    (folder / "loop.toml").write_text(LOOP)
    return {**os.environ, "RATCHET_HOME": str(home.root), "OMP_NUM_THREADS": "1"}


def cpu_of(arguments: tuple[str, ...], folder: Path, environment: dict[str, str]) -> float:
    """Run a Python program and return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cpu(runs: int) -> dict[str, Any]:
    """Return CPU seconds and ratio of each command."""
    programs = {**BARE, **{f"ratchet {one}": (*RATCHET, *one.split()) for one in COMMANDS}}
    used: dict[str, list[float]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory(prefix="ratchet-commands-") as name:
        folder = Path(name)
        environment = shop(folder)
        for number in range(runs + 1):
            for program, arguments in programs.items():
                seconds = cpu_of(arguments, folder, environment)
                if number:  # the first round compiles
                    used[program].append(seconds)
    bare = statistics.median(used["python"])
    return {
        program: {
            "median_s": round(statistics.median(values), 2),
            "min_s": round(min(values), 2),
            "max_s": round(max(values), 2),
            "ratio": round(statistics.median(values) / bare, 1),
        }
        for program, values in used.items()
    }


def rollback(lines: Lines, kind: str, count: int) -> dict[str, Any]:
    """Promote a version and roll it back by the command, `count` times. Return the spread of the three times."""
    context, name = lines.contexts[0], lines.names[0]
    stream, old = line_stream(name), context.line_view().champion
    assert old is not None
    found: dict[str, list[float]] = {"row": [], "sessions": [], "end": []}
    environment = {**os.environ, "RATCHET_HOME": str(lines.home.root)}
    new = ModelVersion(line=name, number=1, tag=version_tag(digest("new")), model=old.model, cycle=None)
    for _ in range(count):
        _promote(lines, stream, new)
        reconcile(context, 60)
        wait(lambda: _serves(context, new), 120, "the route of the promoted version")
        with _held(lines, stream) if kind == "held" else contextlib.nullcontext():
            rows, began = len(lines.rows(stream)), time.monotonic()
            command = subprocess.Popen([sys.executable, *RATCHET, "rollback", name], env=environment, stderr=subprocess.DEVNULL)
            wait(lambda rows=rows: len(lines.rows(stream)) > rows, 60, "the row of the request", 0.005)
            found["row"].append(time.monotonic() - began)
            wait(lambda: _serves(context, old), 60, "the old version", 0.005)
            found["sessions"].append(time.monotonic() - began)
            if command.wait(120):
                raise SystemExit(f"ratchet rollback ended with exit code {command.returncode}")
            found["end"].append(time.monotonic() - began)
        wait(lambda: context.line_view().rollback_asked is None, 60, "the row of the rollback")
    return {what: spread(values) for what, values in found.items()}


@click.command()
@click.option("--runs", default=11, help="Runs of each command for its CPU time.")
@click.option("--rollbacks", "count", default=10, help="Rollbacks of each kind; 0: none.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "commands.json")
def main(runs: int, count: int, out: Path) -> None:
    """Measure the commands and write the result."""
    result: dict[str, Any] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "code": code_digest(), "cores": os.cpu_count()}
    result["cpu"] = cpu(runs)
    click.echo(json.dumps(result["cpu"], indent=1))
    if count:
        with tempfile.TemporaryDirectory(prefix="ratchet-rollback-") as folder:
            lines = Lines(Path(folder), 1)
            reconcile(lines.contexts[0])
            result["rollback"] = {"no service": rollback(lines, "free", count)}
            click.echo(json.dumps(result["rollback"]))
            with lines.serving():
                for kind in ("free", "held"):
                    result["rollback"][f"service, lease {kind}"] = rollback(lines, kind, count)
                    click.echo(json.dumps(result["rollback"]))
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
