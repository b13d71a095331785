"""Goodput under interruptions: the share of training time (steps and saves) that becomes saved steps when a job is killed repeatedly.

Compares the save interval that the job chooses (`save_every = auto`) with a fixed `save_every = 100`. Kills are SIGKILL, without warning.

The benchmark is scaled down: a tiny model on one CPU core, killed after a few seconds of training. Both arms are killed after the same
times, drawn once from an exponential distribution. The arms alternate, so that other load on the machine affects both. The start time of a
process is not counted.

`python benchmarks/goodput.py [--kills 6]`
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ratchet.contracts.jobs.training import JobEvent, JobSpec, JobState, Method, ResumePoint
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.save_interval import best_seconds
from tests.unit.trainers.conftest import Workshop, write_model

SEED = 5
STEPS = 100_000


def lives(mean: float, kills: int) -> list[float]:
    """Return the seconds of training before each kill, with the given mean."""
    draw = random.Random(SEED)
    return [draw.expovariate(1 / mean) for _ in range(kills)]


def of(events: list[JobEvent], kind: str, incarnation: int) -> list[JobEvent]:
    """Return the events of one kind and one incarnation."""
    return [event for event in events if event.kind == kind and event.incarnation == incarnation]


def live(workshop: Workshop, spec: JobSpec, incarnation: int, seconds: float) -> list[JobEvent]:
    """Run one incarnation and kill it `seconds` after the beginning of its first step.

    Returns the events of all incarnations so far. Exits if the job ends before the kill.
    """
    workshop.executor.submit(spec, incarnation)
    began = None
    while began is None or time.time() < began + seconds:
        time.sleep(0.02)
        if began is None:
            first = of(workshop.executor.events(spec.name), "progress", incarnation)[:1]
            began = first[0].at - float(first[0].data["step_seconds"]) if first else None
        if workshop.executor.observe(spec.name).state == JobState.ENDED:
            raise SystemExit(f"the job ended before the kill: {workshop.executor.observe(spec.name).reason}; {workshop.log(spec)}")
    identity = json.loads((workshop.run_folder(spec) / f"i{incarnation}" / "process.json").read_text())
    os.kill(identity["pid"], signal.SIGKILL)  # the trainer dies with its parent
    workshop.wait(spec)
    return workshop.executor.events(spec.name)


class Arm:
    """One job with one save interval, killed repeatedly."""

    def __init__(self, folder: Path, model: Path, save_every: int | str, mean: float) -> None:
        folder.mkdir()
        self.save_every, self.workshop = save_every, Workshop(folder, model)
        recipe = {
            "steps": STEPS,
            "save_every": save_every,
            "interruption_hours": mean / 3600,
            "schedule": "constant",
            "learning_rate": 1e-5,
        }
        plan = self.workshop.plan(Method.DPO, **recipe, batch=32, health={"reward_flat": {"action": "off"}})
        self.spec = self.workshop.spec(plan, timeout=36_000)
        self.events: list[JobEvent] = []
        self.trained = 0.0

    def suffer(self, incarnation: int, seconds: float) -> None:
        """Train for `seconds`, kill the job, and pin its newest checkpoint, from which the next incarnation resumes."""
        self.events = live(self.workshop, self.spec, incarnation, seconds)
        self.trained += seconds
        if saved := [event for event in self.events if event.kind == "checkpoint"]:
            point = ResumePoint(attempt=1, incarnation=saved[-1].incarnation, step=saved[-1].step, **saved[-1].data)
            self.workshop.executor.pin(self.spec, point)

    def told(self) -> dict[str, Any]:
        """Return the figures of this arm."""
        steps = [event for event in self.events if event.kind == "progress"]
        saves = [event for event in self.events if event.kind == "checkpoint"]
        pairs = [pair for m in {event.incarnation for event in saves} for pair in pairwise(of(self.events, "checkpoint", m))]
        took = median(float(event.data["step_seconds"]) for event in steps)
        kept = max((event.step for event in saves), default=0)
        return {
            "save_every": self.save_every,
            "steps_done": len(steps),
            "steps_kept": kept,
            "checkpoints": len(saves),
            "steps_between": median(later.step - sooner.step for sooner, later in pairs) if pairs else None,
            "step_ms": round(1000 * took, 1),
            "save_ms": round(1000 * median(_saves(self.events)), 1) if saves else None,
            "training_s": round(self.trained, 1),
            "kept_per_s": round(kept / self.trained, 2),
            "goodput": round(kept * took / self.trained, 3),
        }


def _saves(events: list[JobEvent]) -> list[float]:
    """Return the duration of each save in seconds, from its beginning to the completed checkpoint."""
    pairs = pairwise(events)
    return [later.at - sooner.at for sooner, later in pairs if (sooner.kind, later.kind) == ("saving", "checkpoint")]


@click.command()
@click.option("--kills", default=6, help="Number of kills per arm and mean time.")
@click.option("--means", default="6,20", help="Mean seconds of training between kills.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "goodput.json")
def main(kills: int, means: str, out: Path) -> None:
    """Measure both arms, print one JSON object and write it to the results file."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model")
        for mean in map(float, means.split(",")):
            arms = [Arm(Path(folder) / f"{name}-{mean:g}", model, name, mean) for name in ("auto", 100)]
            for incarnation, seconds in enumerate(lives(mean, kills), start=1):
                for one in arms:
                    one.suffer(incarnation, seconds)
            auto, fixed = (one.told() for one in arms)
            ratio = round(auto["kept_per_s"] / fixed["kept_per_s"], 2) if fixed["kept_per_s"] else None
            expected = round(1000 * best_seconds(auto["save_ms"] / 1000, mean) / auto["step_ms"]) if auto["save_ms"] else None
            results.append(
                {"mean_s_between_kills": mean, "kills": kills, "arms": [auto, fixed], "auto_over_fixed": ratio, "best_steps": expected}
            )
            click.echo(json.dumps(results[-1]), err=True)
    said = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code_digest()[:12], "cores": os.cpu_count(), "results": results}
    out.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(said, indent=2))


if __name__ == "__main__":
    main()
