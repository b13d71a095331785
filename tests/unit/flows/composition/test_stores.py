"""Tests of the copy of SQLite files to the database when the service starts."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.training import JobSpec
from ratchet.flows.composition.stores import copy_files, job_documents
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.k8s.gangs.submissions import Submission, Submissions
from ratchet.materializer.quarantine.kept import FILE, KeptRecords
from ratchet.materializer.training_sets.prompt_sides import PromptSides
from ratchet.rewards.judge.records import JudgeRecords
from ratchet.runtime.jobs.run_folder import RunFolders
from tests.postgres import PostgresServer
from tests.shared_lake import postgres  # noqa: F401  fixture

TEXTS = {digest(text.encode()): text for text in ("one", "two", "three")}


def state(home: Home, line: str) -> tuple[object, ...]:
    place = home.lake(line)
    return PromptSides(place).clusters(), JudgeRecords(home.judgements, line, home.database(line)).grades(), KeptRecords(place).get("a")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An installation that has worked with SQLite."""
    found = Home(tmp_path / "home")
    PromptSides(found.lake("math").folder).assign(TEXTS, lambda root: root < "8")
    JudgeRecords(found.judgements, "math").grade(dict.fromkeys(TEXTS, 0.5), "Ada", datetime.now(UTC))
    return found


def test_nothing_is_copied_with_a_ledger_in_sqlite(home: Home) -> None:
    before = sorted(home.root.rglob("*"))
    copy_files(home, "math")
    assert sorted(home.root.rglob("*")) == before


def test_after_the_start_with_postgres_the_volume_can_be_lost(
    home: Home,
    postgres: PostgresServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = state(home, "math")
    postgres.create("upgraded")
    monkeypatch.setenv(variables.LEDGER_URL, postgres.url("upgraded"))
    copy_files(home, "math")
    copy_files(home, "other")
    assert not (home.lake("math").folder / FILE).exists(), "it has texts"
    shutil.rmtree(home.root)
    copy_files(home, "math")
    assert state(home, "math") == before
    assert state(home, "other") == ({}, {}, None)


def test_the_gangs_of_an_earlier_release_are_found_before_the_copy_and_after_the_loss_of_the_volume(
    home: Home,
    postgres: PostgresServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = JobSpec(name="rt-a-a1", plan="a" * 64, attempt=1, command=(), environment={}, inputs={}, plan_json="{}", grace_seconds=1)
    RunFolders(home.jobs("math")).claim(spec)
    before = Submissions(job_documents(home, "math"))
    before.install()
    before.add(spec.name, Submission(name="gang", incarnation=1, job={}, at=1.0))
    before.measure(spec.name, lambda meter: meter.add(3600.0, 8, used=10.0))
    before.died("gang", 2, "killed")

    def records() -> tuple[object, ...]:
        found = Submissions(job_documents(home, "math"))
        name = spec.name
        jobs = RunFolders(home.jobs("math"), job_documents(home, "math"))
        return found.installation, found.of(name), found.meter(name), found.death("gang"), found.spent(1.0), jobs.spec(name), jobs.names()

    here = records()
    postgres.create("gangs")
    monkeypatch.setenv(variables.LEDGER_URL, postgres.url("gangs"))
    assert records() == here
    assert Submissions(job_documents(home, "math")).install() == here[0], "the running gangs belong to this name"
    Submissions(job_documents(home, "math")).change(spec.name, "gang", created=True)
    copy_files(home, "math")
    copy_files(home, "other")
    shutil.rmtree(home.root)
    copy_files(home, "math")
    installation, (submission,), *others = records()
    assert (installation, *others) == (here[0], *here[2:])
    assert submission.created, "a change since the start is kept"
    assert Submissions(job_documents(home, "other")).installation == ""


def test_a_database_that_is_away_is_tried_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.LEDGER_URL, f"postgresql+psycopg://ratchet@/db?host={home.root}")
    with pytest.raises(Retryable, match="RATCHET_LEDGER_URL"):
        copy_files(home, "math")
