"""A hostile trainer in a real pod on a shared volume reaches only its inputs, for reading, and its run folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Attempt, Method
from tests.cluster.bench import REAL, Bench
from tests.cluster.rig.cluster import Rig
from tests.cluster.rig.images import HOST
from tests.cluster.training import finished, story
from tests.unit.trainers.conftest import TRAINERS, Workshop, write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FORGED = "cycle/test/0001/evaluate"


def test_a_pod_can_neither_forge_nor_delete_nor_read_what_is_not_its_own(real_rig: Rig, real_namespace: str, tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, write_model(tmp_path / "start"))
    golden = workshop.artifacts.put(b"golden set with references")
    before = {path: path.read_bytes() for path in workshop.artifacts.root.rglob("*") if path.is_file()}
    bench = Bench(real_rig, real_namespace, tmp_path, REAL, image=HOST, python=sys.executable)
    spec = TRAINERS[Method.DPO].job(workshop.plan(Method.DPO, steps=1), Attempt(number=1, timeout=120, nodes=1))
    hostile = {"RATCHET_TRAINER": "tests.cluster.reach", "STORE": str(workshop.artifacts.root), "GOLDEN": golden, "FORGED": FORGED}
    spec = spec.model_copy(update={"environment": spec.environment | hostile})
    bench.executor.submit(spec, 1)
    status = finished(bench, spec, 120)
    assert status.outcome is Outcome.FAILED, story(bench, spec)
    found = json.loads((bench.executor.folders.run(spec) / "found.json").read_text())
    assert found.pop("list the lines") == str(["jobs"]), "only the job's own folders may be mounted"
    assert found == {
        "read the golden set": "ENOENT",
        "list the names": "ENOENT",
        "delete the artifacts": "ENOENT",
        "change the plan": "EROFS",
        "replace the plan": "EBUSY",
        "change the data": "EROFS",
        "delete the start model": "EROFS",
        "add to the start model": "EROFS",
        "begin another attempt": "EROFS",
    }
    assert {path: path.read_bytes() for path in workshop.artifacts.root.rglob("*") if path.is_file()} == before
    assert workshop.artifacts.resolve(FORGED) is None
