"""Opens homes that releases left in the middle of a cycle: every row is readable, and each cycle comes to its proper end."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ratchet.contracts.ids import canonical
from ratchet.contracts.schema import SCHEMA_VERSION
from ratchet.contracts.steps import FreezeResult, PlanResult, State
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.engine.line import open_if_due
from ratchet.flows.engine.work import turn
from ratchet.flows.service.keeper import Keeper
from ratchet.local.processes import own_record
from ratchet.materializer.lake.schemas import read_parquet
from ratchet.materializer.lake.tables import Lake
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs.job_protocol import IncarnationFile
from tests import command
from tests.cluster.rig.site import free_ports
from tests.upgrade.record_homes import HOMES, PLACE, STATES, alone, releases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RELEASES = releases()
every_release = pytest.mark.parametrize("release", RELEASES)
READS = (["status"], ["explain", "old", "--rows"], ["report", "old"], ["verify"])
LOOP = PLACE / "loop" / "loop.toml"


@pytest.fixture(autouse=True)
def place() -> Iterator[None]:
    """Reserve the place in which the homes were recorded, and stop every process of the home at the end."""
    with alone():
        yield
        if (PLACE / "home").exists():
            ratchet("serve", str(LOOP), "--stop")


def unpack(release: str, state: str) -> None:
    """Put the home of one release in one state, and its loop file, at the place in which they were recorded."""
    with tarfile.open(HOMES / f"{release}.tar.xz") as archive:
        wanted = [member for member in archive.getmembers() if member.name.startswith(f"./{state}/")]
        if hasattr(tarfile, "data_filter"):
            archive.extractall(PLACE, members=wanted, filter="data")
        else:  # Python 3.11.2 of Debian 12
            assert all(one.isfile() or one.isdir() for one in wanted)
            assert all((PLACE / one.name).resolve().is_relative_to(PLACE) for one in wanted)
            archive.extractall(PLACE, members=wanted)
    for part in (PLACE / state).iterdir():
        shutil.move(part, PLACE / part.name)
    router = PLACE / "home" / "lines" / "old" / "serving" / "router"
    recorded = json.loads((router / "port.json").read_text())["port"]
    (free,) = free_ports(1)
    for file in router.glob("*.json"):
        # the router listens on the recorded port again, which a connection of this machine may have by chance
        file.write_text(file.read_text().replace(f'"port":{recorded}', f'"port":{free}'))


def ratchet(*args: str, code: int = 0, home: Path = PLACE / "home") -> subprocess.CompletedProcess[str]:
    """Run a command of the present release on the recorded home, and assert its exit code and that it prints no traceback."""
    alike = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
    done = command.ratchet(*args, home=home, cwd=PLACE / "loop", timeout=600, **alike)
    assert done.returncode == code, f"{args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def run_to(state: State) -> str:
    """Run the open cycle until it is in this state, and return the reason of its end, which is empty while it is open."""
    for _ in range(60):
        said = json.loads(ratchet("run", str(LOOP), "--no-ingest", "--wait", "0", "--json").stdout)
        if said["state"] == state:
            return str(said["reason"])
        assert not said["ended"], said
    raise AssertionError(f"the cycle has not reached the state {state}, but {said}")


def rows() -> list[tuple[object, ...]]:
    """Return all rows of the ledger, as they are stored."""
    with contextlib.closing(sqlite3.connect(PLACE / "home" / "ledger.db")) as ledger:
        return ledger.execute("SELECT stream, seq, kind, key, data, at, epoch, previous, hash FROM ratchet_rows ORDER BY 1, 2").fetchall()


@pytest.mark.parametrize("state", STATES)
@every_release
def test_recorded_home_is_readable(release: str, state: str) -> None:
    unpack(release, state)
    written = rows()
    for read in READS:
        ratchet(*read)
    found = json.loads(ratchet("doctor", str(LOOP), "--json", code=1).stdout)  # the recorded model server does not run
    assert {finding["about"] for finding in found if finding["level"] == "error"} == {"serving", "router"}
    assert next(finding for finding in found if finding["about"] == "ledger")["level"] == "ok"
    [line] = json.loads(ratchet("status", "--json").stdout)
    expected = {"training": "attempt"}.get(state, state)
    assert line["cycles"][-1]["state"] == expected
    assert rows() == written
    assert max(row["schema_version"] for row in json.loads(ratchet("explain", "old", "--json").stdout)) <= SCHEMA_VERSION


@every_release
def test_cycle_that_has_not_planned_continues_with_a_plan_of_this_release(release: str) -> None:
    unpack(release, "probed")
    run_to(State.PLANNED)
    ratchet("approve", "old/0001/training", "--by", "ada")
    run_to(State.REGISTERED)
    ratchet("verify")


@every_release
def test_withdrawal_in_a_recorded_lake_changes_the_plan_of_the_open_cycle(release: str) -> None:
    unpack(release, "probed")
    refusal = {"consent_for": "user", "user_id": "u-1", "consent": False, "timestamp": "2026-01-06T09:00:00Z"}
    (LOOP.parent / "traces" / "withdrawn.jsonl").write_text(json.dumps(refusal) + "\n")
    said = json.loads(ratchet("ingest", str(LOOP), "--json").stdout)
    assert (said["consent_changed"], said["feedback"]["kept"], said["kept"]) == (1, 1, 0)
    run_to(State.PLANNED)
    cycle = Installation(Home(PLACE / "home")).cycle("old", 1)
    frozen, planned = cycle.result(FreezeResult).snapshot, cycle.result(PlanResult).dataset
    before, after = (_prompts(one.prompts) for one in (frozen, planned))
    after |= _prompts(planned.development) if planned.development else set()
    assert before - after == {prompt for prompt in before if prompt in ("is 0 more than 1", "is 5 more than 1")} != set()


@every_release
def test_person_in_a_recorded_lake_is_erased_and_the_planned_cycle_ends(release: str) -> None:
    unpack(release, "planned")
    home = Home(PLACE / "home")
    lake = Lake(home.lake("old"))
    cycle = Installation(home).cycle("old", 1)
    mine = {"is 0 more than 1", "is 5 more than 1"}
    assert mine & _prompts(cycle.result(PlanResult).plan.prompts)
    before = len(lake.scan("traces"))
    receipt = json.loads(ratchet("erase", "--user", "u-1", "--json").stdout)
    assert receipt["lines"][0]["cycle"] == "cycle/old/0001"
    assert len(lake.scan("traces")) == before - receipt["lines"][0]["rows"]["traces"] < before
    assert not mine & _prompts(cycle.result(PlanResult).plan.prompts)
    assert not mine & _prompts(cycle.result(FreezeResult).snapshot.prompts)
    [line] = json.loads(ratchet("status", "--json").stdout)
    assert line["cycles"][-1]["state"] == State.RECALLED
    ratchet("explain", "old")
    ratchet("verify")


def _prompts(artifact: str) -> set[str]:
    data = FolderArtifacts(PLACE / "home" / "artifacts").get(artifact)
    return {json.loads(text)[0]["content"] for text in read_parquet(data)["prompt"].to_list()}


@pytest.mark.parametrize("state", ["accepted", pytest.param("registered", marks=pytest.mark.soak)])
@every_release
def test_cycle_with_a_candidate_comes_to_its_end(release: str, state: str) -> None:
    unpack(release, state)
    run_to(State.REGISTERED)
    ratchet("approve", "old/0001/rollout", "--by", "ada")
    run_to(State.ROLLING)
    time.sleep(4)  # longer than `rollout.dark` of the loop file: nobody sends requests, so the rollout waits
    run_to(State.ROLLING)
    ratchet("rollback", str(LOOP), "--by", "ada")
    [line] = json.loads(ratchet("status", "--json").stdout)
    assert line["cycles"][-1]["state"] == State.ROLLED_BACK
    assert "requested by ada" in line["cycles"][-1]["reason"]
    ratchet("verify")


def is_outdated() -> bool:
    """Return whether the recorded plan was made with other training code than the present one."""
    installation = Installation(Home(PLACE / "home"))
    return installation.context(LOOP).code != installation.cycle("old", 1).plan.code


@every_release
def test_planned_cycle_with_other_code_plans_again_and_the_next_one_opens_without_new_traces(release: str) -> None:
    unpack(release, "planned")
    if not is_outdated():
        run_to(State.PLANNED)
        assert "old/0001/training" in ratchet("status").stdout
        return
    run_to(State.SUPERSEDED)
    said = ratchet("explain", "old/1").stdout
    assert "Ended: superseded" in said
    assert "plan again: the plan was made with training code" in said
    installation = Installation(Home(PLACE / "home"))
    code = installation.context(LOOP).code
    plan = installation.cycle("old", 1).plan
    assert code != plan.code
    assert {code[:12], plan.code[:12]} <= set(said.replace(",", " ").split())
    assert "old/0001/training" not in ratchet("status").stdout
    news = Keeper(installation, LOOP, print).work(0.0, {})
    assert news is not None
    assert news.due == "the plan of the last cycle was made by another release"
    cycle, _ = open_if_due(installation.context(LOOP), scheduled=False)
    assert cycle == "cycle/old/0002"
    turn(installation.context(LOOP), installation.context(LOOP).cycle_view(cycle))
    assert installation.cycle("old", 2).state is State.PLANNED
    assert installation.cycle("old", 2).plan.code == code


@every_release
def test_running_job_is_stopped_if_its_cycle_plans_again(release: str) -> None:
    unpack(release, "training")
    if not is_outdated():
        return  # a recorded job cannot continue, because its process is gone
    with subprocess.Popen(["sleep", "600"]) as job:
        [folder] = (PLACE / "home" / "lines" / "old" / "jobs").glob("*/a1/i1")
        (folder / IncarnationFile.PROCESS).write_bytes(canonical(own_record(job.pid)))
        (folder / IncarnationFile.ENDED).unlink(missing_ok=True)
        try:
            assert psutil.Process(job.pid).is_running()
            assert "plan again" in run_to(State.SUPERSEDED)
            assert job.wait(30) != 0
        finally:
            job.kill()


def set_version(version: int) -> int:
    """Change the schema version of a row of the cycle, and return the one that it had."""
    with contextlib.closing(sqlite3.connect(PLACE / "home" / "ledger.db")) as ledger:
        where = "WHERE stream = 'cycle/old/0001' AND seq = 2"
        known = int(ledger.execute(f"SELECT schema_version FROM ratchet_rows {where}").fetchone()[0])
        ledger.execute(f"UPDATE ratchet_rows SET schema_version = ? {where}", (version,))
        ledger.commit()
    return known


@every_release
def test_row_of_a_newer_release_is_a_clear_error_and_nothing_is_changed(release: str) -> None:
    unpack(release, "planned")
    known = set_version(SCHEMA_VERSION + 1)
    written = rows()
    for read in (*READS, ["run", str(LOOP), "--no-ingest", "--wait", "0"]):
        said = ratchet(*read, code=1).stderr
        assert "row 2 of cycle/old/0001 was written by a newer release of Ratchet" in said
        assert "upgrade Ratchet" in said
    found = json.loads(ratchet("doctor", "--json", code=1).stdout)
    assert "upgrade Ratchet" in next(finding["text"] for finding in found if finding["about"] == "ledger")
    assert rows() == written
    set_version(known)
    ratchet("status")  # usable again after the upgrade


@every_release
def test_home_may_be_moved_and_copied(release: str) -> None:
    unpack(release, "planned")
    moved, copied = PLACE / "moved", PLACE / "copied"
    here = ratchet("plan", str(LOOP), "--no-probe").stdout
    (PLACE / "home").rename(moved)
    shutil.copytree(moved, copied, symlinks=True)
    for home in (moved, copied):
        assert ratchet("plan", str(LOOP), "--no-probe", home=home).stdout == here
        ratchet("status", home=home)
        found = json.loads(ratchet("doctor", str(LOOP), "--json", code=1, home=home).stdout)  # nothing is served
        assert {finding["level"] for finding in found if finding["about"] == "lake"} == {"ok"}
