"""A job of the real executor on one machine reaches its inputs and its drop folder through its environment, and nothing else gets in."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ratchet.contracts.ids import checkpoint_name, job_name
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec, JobState
from ratchet.local.executor import LocalExecutor
from ratchet.runtime.artifacts import FolderArtifacts
from tests.waiting import job_until

PLAN, FORGED = "b" * 64, "cycle/line/0001/evaluate"
JOB = """
import json, os, shutil
from pathlib import Path
from ratchet.contracts.jobs.training import Checkpoint
from ratchet.contracts.model import model_ref
from ratchet.contracts.schema import stamped
from ratchet.runtime.artifacts import FolderArtifacts, write_atomic

plan, forged, golden, damage = os.environ["PLAN"], os.environ["FORGED"], os.environ["GOLDEN"], os.environ["DAMAGE"]
store = FolderArtifacts(Path(os.environ["RATCHET_ARTIFACTS"]))
found = {"golden": store.path(golden).exists(), "environment": dict(os.environ)}
shutil.rmtree(store.root / "sha256", ignore_errors=True)
for name in (forged, f"checkpoint/{'c' * 64}/a1/i1", f"checkpoint/{plan}/a1/i2", f"checkpoint/{plan}/a2/i1"):
    store.bind(name, store.put(b"forged"))
model = Path("i1/model")
model.mkdir()
(model / "model.safetensors").write_bytes(b"weights")
files = store.put_folder(model)
made = Checkpoint(plan=plan, attempt=1, incarnation=1, step=1, files=files, model=model_ref(model, files), metrics={})
store.bind(f"checkpoint/{plan}/a1/i1", store.put(stamped(made)))
if damage:
    store.path(files).write_bytes(b"other")
Path("found.json").write_text(json.dumps(found))
write_atomic(Path("i1/ended.json"), stamped({"outcome": "done", "reason": "1 step"}))
"""


class Site:
    """An installation with one hostile job."""

    def __init__(self, folder: Path, damage: str = "") -> None:
        self.store = FolderArtifacts(folder / "artifacts")
        self.golden, self.words = self.store.put(b"golden set with references"), self.store.put(b"words")
        self.executor = LocalExecutor(folder / "jobs", self.store.root, sys.executable)
        environment = {"PLAN": PLAN, "FORGED": FORGED, "GOLDEN": self.golden, "DAMAGE": damage}
        self.spec = JobSpec(
            name=job_name(PLAN, 1, "reach"),
            plan=PLAN,
            attempt=1,
            command=("{python}", "-c", JOB),
            environment=environment,
            inputs={"data/words": self.words},
            plan_json="{}",
            grace_seconds=1,
        )
        self.run = self.executor.folders.run(self.spec)
        self.executor.submit(self.spec, 1)

    def found(self) -> dict[str, object]:
        """Return what the job has found."""
        return dict(json.loads((self.run / "found.json").read_text()))


def test_a_job_can_neither_forge_nor_delete_nor_read_what_is_not_its_own(tmp_path: Path) -> None:
    site = Site(tmp_path)
    status = job_until(site.executor, site.spec.name)
    assert status.outcome is Outcome.DONE
    found = site.found()
    assert found["golden"] is False, "the job must not find the golden set by its digest"
    environment = found["environment"]
    assert isinstance(environment, dict)
    assert environment["RATCHET_ARTIFACTS"] == str(site.run / "drop")
    assert str(site.store.root) not in environment.values()
    assert site.store.get(site.golden) == b"golden set with references", "the job must not delete artifacts"
    bound = [path.name for path in (site.store.root / "names").iterdir()]
    assert bound == [site.store.place(checkpoint_name(PLAN, 1, 1)).name], "only the job's own checkpoint may be bound"
    assert not (site.run / "drop").exists()


def test_a_success_counts_only_after_its_checkpoint_is_in_the_artifacts(tmp_path: Path) -> None:
    site = Site(tmp_path)
    seen = job_until(site.executor, site.spec.name, lambda status: status.state is JobState.ENDED, reconcile=False)
    assert seen.outcome is None
    assert site.spec.name in site.executor.live()
    site.executor.reconcile(site.spec.name)
    assert site.executor.observe(site.spec.name).outcome is Outcome.DONE
    assert site.store.resolve(checkpoint_name(PLAN, 1, 1)) is not None
    assert site.executor.live() == []


@pytest.mark.parametrize("damage", ["", "damaged"])
def test_a_damaged_checkpoint_fails_its_job_with_a_reason(tmp_path: Path, damage: str) -> None:
    site = Site(tmp_path, damage)
    status = job_until(site.executor, site.spec.name)
    assert status.outcome is (Outcome.PERMANENT if damage else Outcome.DONE)
    assert ("another digest" in status.reason) is bool(damage)
    assert (site.store.resolve(checkpoint_name(PLAN, 1, 1)) is None) is bool(damage)
