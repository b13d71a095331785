"""A test job that writes the files of a training job (events, a checkpoint, published artifacts) without training.

It ends in a fraction of a second. The real executor runs it as `python job.py RUN_FOLDER`. It records each of its starts, so that a test
can detect a second one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ratchet.contracts.ids import canonical
from ratchet.contracts.jobs.training import Checkpoint, TrainingPlan
from ratchet.contracts.model import model_ref
from ratchet.contracts.schema import parse, stamped
from ratchet.runtime.artifacts import FolderArtifacts, write_atomic
from ratchet.runtime.manifest import write_manifest

run = Path(sys.argv[1])
incarnation = int(os.environ["RATCHET_INCARNATION"])
attempt = int(os.environ["RATCHET_ATTEMPT"])
here = run / f"i{incarnation}"
with (run / "starts").open("a") as starts:
    starts.write(f"{incarnation}\n")


def event(kind: str, step: int, **data: object) -> None:
    """Append one event to the job's event log."""
    with (here / "events.jsonl").open("a") as events:
        line = {"at": time.time(), "incarnation": incarnation, "kind": kind, "step": step, "total": 2, "data": data}
        events.write(json.dumps(line) + "\n")


plan = parse(TrainingPlan, (run / "plan.json").read_bytes())
assert (run / "start" / "model.safetensors").read_bytes() == b"base weights"
event("started", 0)
model = here / "step_2"
model.mkdir()
(model / "config.json").write_text("{}")
(model / "model.safetensors").write_bytes(b"trained by " + plan.id.encode())
artifacts = FolderArtifacts(Path(os.environ["RATCHET_ARTIFACTS"]))
files = artifacts.put_folder(model)  # before the manifest, which is no part of the model
reference = model_ref(model, files)
event("checkpoint", 2, path=str(model.relative_to(run.parent)), manifest=write_manifest(model))
scale = plan.recipe.get("rate_scale", 1.0)  # in a search, the model with the highest rate is the best
event("measured", 2, scores=[float(prompt < 10 * scale) for prompt in range(40)])
checkpoint = Checkpoint(
    plan=plan.id,
    attempt=attempt,
    incarnation=incarnation,
    step=2,
    files=files,
    model=reference,
    metrics={"loss": 0.5, "published_step": 2.0},
)
artifacts.bind(f"checkpoint/{plan.id}/a{attempt}/i{incarnation}", artifacts.put(stamped(checkpoint)))
write_atomic(here / "ended.json", canonical({"outcome": "done", "reason": "2 steps"}))
