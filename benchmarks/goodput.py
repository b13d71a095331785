"""Goodput under interruptions: how much of the time that a job spends in steps and saves becomes work that is kept, when it is killed
(SIGKILL, no warning) again and again. The interval chosen by the job (`save_every = auto`) against a fixed `save_every = 100`.

Scaled down: a tiny model on one CPU core, killed every few seconds of training. Both arms are killed after the same times, drawn once
from an exponential distribution; the time to start a process counts for neither. `python benchmarks/goodput.py [--kills 6]`
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

from contracts.training import JobEvent, JobSpec, JobState, Method, ResumePoint
from tests.unit.trainers.conftest import Workshop, write_model
from trainers.cadence import best_seconds
from trainers.code import code_digest

SEED = 5
STEPS = 100_000


def lives(mean: float, kills: int) -> list[float]:
    """Seconds of training until each kill."""
    draw = random.Random(SEED)
    return [draw.expovariate(1 / mean) for _ in range(kills)]


def of(events: list[JobEvent], kind: str, incarnation: int) -> list[JobEvent]:
    return [event for event in events if event.kind == kind and event.incarnation == incarnation]


def live(workshop: Workshop, spec: JobSpec, incarnation: int, seconds: float) -> list[JobEvent]:
    """One incarnation, killed so many seconds after its first step; the events of all incarnations so far."""
    workshop.executor.submit(spec, incarnation)
    began = None
    while began is None or time.time() < began + seconds:
        time.sleep(0.02)
        if began is None:
            first = of(workshop.executor.events(spec.name), "progress", incarnation)[:1]
            began = first[0].at - float(first[0].data["step_seconds"]) if first else None
        if workshop.executor.observe(spec.name).state == JobState.ENDED:
            raise SystemExit(f"the job ended by itself: {workshop.executor.observe(spec.name).reason}; {workshop.log(spec)}")
    identity = json.loads((workshop.run_folder(spec) / f"i{incarnation}" / "process.json").read_text())
    os.kill(identity["pid"], signal.SIGKILL)  # the trainer dies with its parent
    workshop.wait(spec)
    return workshop.executor.events(spec.name)


def arm(folder: Path, model: Path, save_every: int | str, mean: float, kills: int) -> dict[str, Any]:
    """One job through all its kills."""
    folder.mkdir()
    workshop = Workshop(folder, model)
    recipe = {"steps": STEPS, "save_every": save_every, "interruption_hours": mean / 3600, "schedule": "constant", "learning_rate": 1e-5}
    spec = workshop.spec(workshop.plan(Method.DPO, **recipe, batch=32, health={"reward_flat": {"action": "off"}}), timeout=36_000)
    events: list[JobEvent] = []
    for incarnation, seconds in enumerate(lives(mean, kills), start=1):
        events = live(workshop, spec, incarnation, seconds)
        if saved := [event for event in events if event.kind == "checkpoint"]:
            workshop.executor.pin(spec, ResumePoint(attempt=1, incarnation=saved[-1].incarnation, step=saved[-1].step, **saved[-1].data))
    steps = [event for event in events if event.kind == "progress"]
    kept = max((event.step for event in events if event.kind == "checkpoint"), default=0)
    gaps = [
        later.step - sooner.step for incarnation in range(1, kills + 1) for sooner, later in pairwise(of(events, "checkpoint", incarnation))
    ]
    took = median(float(event.data["step_seconds"]) for event in steps)
    trained = sum(lives(mean, kills))
    return {
        "save_every": save_every,
        "steps_done": len(steps),
        "steps_kept": kept,
        "checkpoints": sum(event.kind == "checkpoint" for event in events),
        "steps_between": median(gaps) if gaps else None,
        "step_ms": round(1000 * took, 1),
        "save_ms": round(1000 * median(_saves(events)), 1) if any(event.kind == "checkpoint" for event in events) else None,
        "training_s": round(trained, 1),
        "goodput": round(kept * took / trained, 3),
    }


def _saves(events: list[JobEvent]) -> list[float]:
    """Seconds from a save's beginning to its sealed checkpoint."""
    pairs = pairwise(events)
    return [later.at - sooner.at for sooner, later in pairs if (sooner.kind, later.kind) == ("saving", "checkpoint")]


@click.command()
@click.option("--kills", default=6, help="Of each arm, at each rate.")
@click.option("--means", default="6,20", help="Mean seconds of training between kills.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "goodput.json")
def main(kills: int, means: str, out: Path) -> None:
    """Prints one JSON object and keeps it."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model")
        for mean in map(float, means.split(",")):
            arms = [arm(Path(folder) / f"{name}-{mean:g}", model, name, mean, kills) for name in ("auto", 100)]
            ratio = round(arms[0]["goodput"] / arms[1]["goodput"], 2) if arms[1]["goodput"] else None
            expected = round(1000 * best_seconds(arms[0]["save_ms"] / 1000, mean) / arms[0]["step_ms"]) if arms[0]["save_ms"] else None
            results.append({"mean_s_between_kills": mean, "kills": kills, "arms": arms, "auto_over_fixed": ratio, "best_steps": expected})
            click.echo(json.dumps(results[-1]), err=True)
    said = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code_digest()[:12], "cores": os.cpu_count(), "results": results}
    out.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(said, indent=2))


if __name__ == "__main__":
    main()
