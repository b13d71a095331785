"""Tests of the submission records and meters: changes by several processes are all kept."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from ratchet.k8s.gangs.meter import Meter
from ratchet.k8s.gangs.submissions import Submission, Submissions

pytestmark = pytest.mark.slow

ROUNDS = 60


def _change(folder: Path, field: str) -> None:
    submissions = Submissions(folder)
    for number in range(1, ROUNDS + 1):
        before = submissions.of("job")[0]
        submissions.change("job", "gang", **{field: number})
        assert getattr(submissions.of("job")[0], field) == number, f"{field} was {getattr(before, field)} before"


def _die(folder: Path, first: int) -> None:
    for version in range(first, ROUNDS, 2):
        Submissions(folder).died("gang", version, f"restart {version}")


def _count(folder: Path, together: Barrier) -> None:
    together.wait(60)
    for _ in range(ROUNDS):
        Submissions(folder).measure("job", lambda meter: meter.add(3600.0, 8, used=1.0))


def test_changes_by_two_processes_are_all_kept(tmp_path: Path) -> None:
    """Each process changes a field of its own and must always read its own last value."""
    Submissions(tmp_path).add("job", Submission(name="gang", incarnation=1, job={}, at=0.0))
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_change, args=(tmp_path, field)) for field in ("seen", "waits")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    record = Submissions(tmp_path).of("job")[0]
    assert (record.seen, record.waits) == (ROUNDS, ROUNDS)


def test_the_newest_failure_stays_when_two_processes_report(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_die, args=(tmp_path, first)) for first in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert Submissions(tmp_path).death("gang") == (ROUNDS - 1, f"restart {ROUNDS - 1}")


def test_no_seconds_are_lost_when_two_processes_meter_one_job(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(2)
    workers = [spawn.Process(target=_count, args=(tmp_path, together)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert Submissions(tmp_path).meter("job") == Meter(used=8.0 * 2 * ROUNDS, nodes=2.0 * ROUNDS, cost=2.0 * ROUNDS)
