"""Tests of the reference log-probabilities: computed once, found again by content, and computed again if the file is damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.jobs.training import Method
from ratchet.trainers.job.events import Events
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.trl import reference_logps
from ratchet.trainers.job.trl.reference_logps import Reference
from tests.unit.trainers.dpo_trainers import ours, recipe, rehearsing, some_pairs

pytestmark = pytest.mark.slow  # TRL takes seconds to load

PAIRS = some_pairs(8)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of pairs of every computation with the start model."""
    calls: list[int] = []
    real = reference_logps.computed

    def computed(trainer: Any, met: Any) -> Any:
        calls.append(len(met))
        return real(trainer, met)

    monkeypatch.setattr(reference_logps, "computed", computed)
    return calls


@pytest.fixture
def job(workshop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a DPO job in the test's folder."""
    monkeypatch.setenv("RATCHET_ARTIFACTS", str(workshop.artifacts.root))
    plan = workshop.plan(Method.DPO)
    return Job(tmp_path, plan, attempt=1, incarnation=1, gpus=0, events=Events(tmp_path / "events.jsonl", 1, 1))


def known(job: Job, model: Path, folder: Path, pairs: Any = PAIRS, rehearsal: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Return the reference log-probabilities of a new trainer."""
    own = recipe(batch=8, **changes)
    given = shared_with(Reference(job, own)) | (rehearsal or {})
    return ours(model, folder, own, pairs=pairs, **given)._known


def shared_with(references: Reference) -> dict[str, Any]:
    """Return the trainer's argument for these references."""
    return {"references": references}


def kept_file(job: Job) -> Path:
    """Return the artifact of the only table of reference log-probabilities."""
    import json

    root = Path(job_root())
    names = [json.loads(path.read_bytes()) for path in (root / "names").iterdir() if not path.name.startswith(".")]
    (found,) = [value["digest"] for value in names if value["name"].startswith("reference/")]
    return root / "sha256" / found[:2] / found


def job_root() -> str:
    """Return the folder of the artifact store."""
    import os

    return os.environ["RATCHET_ARTIFACTS"]


def test_references_are_computed_once_for_the_same_content(job: Job, counted: list[int], tiny_model: Path, tmp_path: Path) -> None:
    import torch

    first = known(job, tiny_model, tmp_path)
    again = known(job, tiny_model, tmp_path, learning_rate=1e-5, beta=0.3)
    assert counted == [8]
    assert torch.equal(first, again)
    assert bool(first.isfinite().all())


def test_a_later_attempt_reads_the_references_of_an_earlier_one(
    job: Job, counted: list[int], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    runs = [tmp_path / "plan" / "a1", tmp_path / "plan" / "a2"]
    for run, attempt, expected in zip(runs, (1, 2), ([8], [8]), strict=True):
        monkeypatch.setenv("RATCHET_ARTIFACTS", str(run / "drop"))
        found = known(replace(job, run=run, attempt=attempt), tiny_model, tmp_path)
        assert counted == expected
    assert bool(torch.isfinite(found).all())
    assert not (runs[1] / "drop").exists()


def test_rehearsed_rows_need_no_references(job: Job, counted: list[int], tiny_model: Path, tmp_path: Path) -> None:
    import torch

    first = known(job, tiny_model, tmp_path)
    again = known(job, tiny_model, tmp_path, rehearsal={"rehearsal": rehearsing(2)})
    assert counted == [8]
    assert torch.equal(first, again)


def test_references_of_other_content_are_computed(job: Job, counted: list[int], tiny_model: Path, tmp_path: Path) -> None:
    known(job, tiny_model, tmp_path)
    known(job, tiny_model, tmp_path, pairs=[pair._replace(chosen=[7]) for pair in PAIRS])
    known(job, tiny_model, tmp_path, max_length=47)
    assert len(counted) == 3


def test_an_interrupted_computation_continues_where_it_stopped(
    job: Job, counted: list[int], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(reference_logps, "BLOCK", 3)
    whole = known(job, tiny_model, tmp_path)
    assert counted == [3, 3, 2]
    names = sorted((Path(job_root()) / "names").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    names[-1].unlink()
    assert torch.equal(known(job, tiny_model, tmp_path), whole)
    assert counted == [3, 3, 2, 2]


@pytest.mark.parametrize("broken", [b"", b"\x80\x04no safetensors", None])
def test_a_damaged_file_is_computed_again_and_replaced(
    broken: bytes | None, job: Job, counted: list[int], tiny_model: Path, tmp_path: Path
) -> None:
    import torch

    first = known(job, tiny_model, tmp_path)
    path = kept_file(job)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:-4] + b"\x00\x00\x80\x3f" if broken is None else broken)
    assert torch.equal(known(job, tiny_model, tmp_path), first)
    assert len(counted) == 2
    assert path.read_bytes() == whole
    assert "computing them again" in job.events.path.read_text()
    known(job, tiny_model, tmp_path)
    assert len(counted) == 2


def test_the_sft_loss_alone_needs_no_references(job: Job, counted: list[int], tiny_model: Path, tmp_path: Path) -> None:
    assert known(job, tiny_model, tmp_path, losses={"sft": 1.0}) is None
    assert counted == []
