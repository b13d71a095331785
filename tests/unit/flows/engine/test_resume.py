"""Tests that a truncated, changed or extended checkpoint is rejected, and that the previous accepted one is used instead."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.training import JobSpec, ResumePoint
from ratchet.flows.engine.effects import lay_resume_point
from ratchet.local.executor import LocalExecutor
from ratchet.runtime.manifest import MANIFEST, write_manifest
from ratchet.trainers.job.checkpoints import resume_folder
from tests.unit.flows.cycles import run, training

POINTS = 200
CHANCE = random.Random(20)
FILES = {
    "model.safetensors": 900,
    "optimizer.pt": 1800,
    "scheduler.pt": 90,
    "rng_state.pth": 300,
    "trainer_state.json": 200,
    "sub/part.pt": 60,
}


def save(folder: Path) -> str:
    for name, size in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(CHANCE.randbytes(size))
    return write_manifest(folder)


def damage(folder: Path, point: int) -> str:
    """Damage one file: truncate it, flip one bit, append a byte, or delete it. `point` selects the file, including the manifest."""
    name = [*FILES, MANIFEST][point % (len(FILES) + 1)]
    path = folder / name
    data = path.read_bytes()
    at = CHANCE.randrange(len(data))
    how = point // (len(FILES) + 1) % 4
    changed = [data[:at], data[:at] + bytes([data[at] ^ (1 << CHANCE.randrange(8))]) + data[at + 1 :], data + b"\0"]
    path.unlink() if how == 3 else path.write_bytes(changed[how])
    return f"{name}, {('cut', 'changed', 'longer', 'gone')[how]} at {at}"


@pytest.fixture
def place(tmp_path: Path) -> SimpleNamespace:
    spec = JobSpec(
        name="rt-cut-a1", plan="p" * 64, attempt=1, command=("true",), environment={}, inputs={}, plan_json="{}", grace_seconds=1
    )
    executor = LocalExecutor(tmp_path / "jobs", tmp_path / "artifacts")
    plan = executor.root / spec.plan[:16]
    accepted = []
    for step in (1, 2):
        path = f"a1/i1/step_{step}"
        accepted.append(ResumePoint(attempt=1, incarnation=1, step=step, path=path, manifest=save(plan / path)))
    shutil.copytree(plan / accepted[1].path, tmp_path / "whole")
    return SimpleNamespace(spec=spec, executor=executor, plan=plan, accepted=tuple(accepted), whole=tmp_path / "whole")


def resumed(place: Any, accepted: tuple[ResumePoint, ...]) -> tuple[ResumePoint | None, tuple[str, ...]]:
    cycle = training(run(1, 1), run(1, 2), accepted=accepted)
    return lay_resume_point(SimpleNamespace(executor=place.executor), cycle, place.spec)  # type: ignore[arg-type]


@pytest.mark.slow
def test_damaged_checkpoint_is_rejected_and_the_previous_one_is_used(place: Any) -> None:
    first, second = place.accepted
    folder = place.plan / second.path
    assert resumed(place, place.accepted) == (second, ())
    for point in range(POINTS):
        shutil.rmtree(folder)
        shutil.copytree(place.whole, folder)
        said = damage(folder, point)
        with pytest.raises(Permanent):
            resume_folder(place.plan, second)
        resume, refused = resumed(place, place.accepted)
        assert resume == first, said
        assert len(refused) == 1
        assert resume_folder(place.plan, first)


def test_nothing_is_pinned_if_every_checkpoint_is_damaged(place: Any) -> None:
    broken = tuple(replace_manifest(point) for point in place.accepted)
    resume, refused = resumed(place, broken)
    assert resume is None
    assert len(refused) == 2
    assert replace(training(run(1, 1)), accepted=()).resume is None


def replace_manifest(point: ResumePoint) -> ResumePoint:
    return point.model_copy(update={"manifest": "0" * 64})
