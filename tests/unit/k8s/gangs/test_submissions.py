"""Tests of the submission records and meters, as files and as rows: changes by several processes are all kept."""

from __future__ import annotations

import multiprocessing
import secrets
from collections.abc import Callable
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.k8s.gangs.meter import Meter
from ratchet.k8s.gangs.submissions import Submission, Submissions
from ratchet.runtime.documents import open_documents
from tests.shared_lake import postgres  # noqa: F401  fixture

pytestmark = pytest.mark.slow

ROUNDS = 60
Open = Callable[[], Submissions]


def opened_at(folder: Path, url: str | None) -> Submissions:
    """Open the records in a folder, or in a database."""
    return Submissions(open_documents(folder, PostgresDatabase(url, "math") if url else None, "jobs"))


@pytest.fixture(params=["folder", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the records of a line, again for each caller and in other processes."""
    url = None
    if request.param == "postgres":
        server, name = request.getfixturevalue("postgres"), f"records_{secrets.token_hex(4)}"
        server.create(name)
        url = server.url(name)
    return partial(opened_at, tmp_path, url)


def record(at: float = 0.0, **fields: Any) -> Submission:
    return Submission.model_validate({"name": "gang", "incarnation": 1, "job": {}, "at": at, **fields})


def _change(opened: Open, field: str) -> None:
    submissions = opened()
    for number in range(1, ROUNDS + 1):
        before = submissions.of("job")[0]
        submissions.change("job", "gang", **{field: number})
        assert getattr(submissions.of("job")[0], field) == number, f"{field} was {getattr(before, field)} before"


def _die(opened: Open, first: int) -> None:
    for version in range(first, ROUNDS, 2):
        opened().died("gang", version, f"restart {version}")


def _count(opened: Open, together: Barrier) -> None:
    together.wait(60)
    for _ in range(ROUNDS):
        opened().measure("job", lambda meter: meter.add(3600.0, 8, used=1.0))


def in_two_processes(target: Callable[..., None], *arguments: tuple[Any, ...]) -> None:
    """Call `target` in a process for each of the arguments, and wait for the processes."""
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=target, args=one) for one in arguments]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * len(workers)


def test_changes_by_two_processes_are_all_kept(opened: Open) -> None:
    """Each process changes a field of its own and must always read its own last value."""
    opened().add("job", record())
    in_two_processes(_change, (opened, "seen"), (opened, "waits"))
    found = opened().of("job")[0]
    assert (found.seen, found.waits) == (ROUNDS, ROUNDS)


def test_the_newest_failure_stays_when_two_processes_report(opened: Open) -> None:
    in_two_processes(_die, (opened, 0), (opened, 1))
    assert opened().death("gang") == (ROUNDS - 1, f"restart {ROUNDS - 1}")


def test_no_seconds_are_lost_when_two_processes_meter_one_job(opened: Open) -> None:
    together = multiprocessing.get_context("spawn").Barrier(2)
    in_two_processes(_count, (opened, together), (opened, together))
    assert opened().meter("job") == Meter(used=8.0 * 2 * ROUNDS, nodes=2.0 * ROUNDS, cost=2.0 * ROUNDS)


def test_the_first_name_of_the_installation_stays(opened: Open) -> None:
    assert opened().installation == ""
    name = opened().install()
    assert (opened().install(), opened().installation) == (name, name)
    assert len(name) == 12


def test_records_are_found_by_job_and_the_first_stop_stays(opened: Open) -> None:
    submissions = opened()
    assert (submissions.of("job"), submissions.meter("job"), submissions.death("gang")) == ((), Meter(), (-1, ""))
    submissions.add("job", record())
    submissions.add("job", record(name="second", incarnation=2, seen=4, job={"spec": {"maxRetry": 1}}))
    submissions.add("another", record())
    submissions.stop("job", "second", "the cap", Outcome.PERMANENT)
    submissions.stop("job", "second", "not whole", Outcome.LOST)
    assert [(name, [one.name for one in found]) for name, found in opened().all()] == [("another", ["gang"]), ("job", ["gang", "second"])]
    assert [one.stop for one in opened().of("job")] == ["", "the cap"]
    assert (opened().highest("job"), opened().highest("another"), opened().highest("unknown")) == (4, 4, 0)


def test_of_two_records_of_an_incarnation_the_first_counts(opened: Open) -> None:
    first = opened().add("job", record(at=1.0, job={"spec": {}}))
    assert opened().add("job", record(at=2.0, name="of another release")) == first
    assert opened().of("job") == (first,)


def test_the_cost_of_a_month_is_that_of_the_jobs_that_began_in_it(opened: Open) -> None:
    september, october = 1_790_000_000.0, 1_791_900_000.0
    for job, at in (("a", september), ("b", october), ("c", october + 60)):
        opened().add(job, record(at))
        opened().measure(job, lambda meter: meter.add(3600.0, 8, used=10.0))
    opened().add("d", record(october))
    assert (opened().spent(september), opened().spent(october), opened().spent(0.0)) == (10.0, 20.0, 0.0)
