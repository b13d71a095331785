"""Writes what a training job publishes: a checkpoint with a small model, in the drop folder of its run."""

from __future__ import annotations

from pathlib import Path

from ratchet.contracts.ids import Digest, checkpoint_name
from ratchet.contracts.jobs.training import Checkpoint, JobSpec
from ratchet.contracts.model import model_ref
from ratchet.contracts.schema import stamped
from ratchet.runtime.artifacts import FolderArtifacts


def offer(run: Path, spec: JobSpec, incarnation: int = 1) -> Digest:
    """Publish a checkpoint of an incarnation in the drop folder of `run`, and return its digest."""
    drop, model = FolderArtifacts(run / "drop"), run / f"i{incarnation}" / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "model.safetensors").write_bytes(b"weights")
    files = drop.put_folder(model)
    where = {"plan": spec.plan, "attempt": spec.attempt, "incarnation": incarnation}
    checkpoint = Checkpoint.model_validate({**where, "step": 1, "files": files, "model": model_ref(model, files), "metrics": {}})
    return drop.bind(checkpoint_name(spec.plan, spec.attempt, incarnation), drop.put(stamped(checkpoint)))
