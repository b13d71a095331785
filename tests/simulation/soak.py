"""The long simulation of `make soak`: tens of thousands of seeded runs with faults, with other seeds than the test suite.

Appends its result to benchmarks/results/soak.jsonl. A run that breaks an invariant ends the program with its seed, which reproduces it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import click

from ratchet.contracts.ids import digest as digest_of
from ratchet.contracts.ids import digest_file
from tests.simulation.invariants import LIVES, check
from tests.simulation.simulated_line import SimulatedLine, scenario, seeded_faults

ROOT = Path(__file__).resolve().parents[2]


def code_digest() -> str:
    """Return the digest of all code that the simulation runs."""
    files = [
        path for room in ("contracts", "flows/core", "flows/engine", "tests/simulation") for path in sorted((ROOT / room).rglob("*.py"))
    ]
    return digest_of([[path.relative_to(ROOT).as_posix(), digest_file(path)] for path in files])


@click.command()
@click.option("--lives", default=30_000, help="Number of simulated runs.")
@click.option("--first", default=LIVES, help="The first seed; the test suite uses the lower ones.")
def main(lives: int, first: int) -> None:
    """Simulate runs with consecutive seeds and check the invariants after each."""
    started, ends = time.monotonic(), Counter[str]()
    for seed in range(first, first + lives):
        sim = SimulatedLine(scenario(seed), seeded_faults(seed))
        try:
            sim.live()
            check(sim)
        except Exception as error:
            raise SystemExit(f"seed {seed} broke an invariant: {error!r}; {scenario(seed)}") from error
        ends[str(sim.view().state)] += 1
        if (seed - first) % 1000 == 999:
            click.echo(f"{seed - first + 1} of {lives} runs, {time.monotonic() - started:.0f} s", err=True)
    result = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "code": code_digest()[:12],
        "seeds": [first, first + lives - 1],
        "seconds": round(time.monotonic() - started),
        "broken": 0,
        "ends": dict(sorted(ends.items())),
    }
    with (ROOT / "benchmarks" / "results" / "soak.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
