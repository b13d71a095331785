"""Tests of run folders: which job owns one, also after its loss, and what a log says about the end of its writer."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.training import JobSpec
from ratchet.runtime.documents import LAYOUT, Documents, FolderDocuments, StoredDocuments
from ratchet.runtime.jobs.run_folder import RunFolders, last_words
from ratchet.runtime.sql_store import SqliteStore

ENGINE = """(APIServer pid=1) INFO waiting for the engine
(EngineCore pid=2) ERROR 11-27 07:04:01 [core.py:1100] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-27 07:04:01 [core.py:1100]   File "worker.py", line 12, in init_device
(EngineCore pid=2) ERROR 11-27 07:04:01 [core.py:1100] ValueError: Free memory on device (3.1/79.2 GiB) on startup is less than desired
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "utils.py", line 1150, in launch_core_engines
(APIServer pid=1)     wait_for_engine_startup(

(APIServer pid=1)     raise RuntimeError(
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def spec(name: str = "rt-a-a1", plan_json: str = "{}") -> JobSpec:
    return JobSpec(name=name, plan="a" * 64, attempt=1, command=(), environment={}, inputs={}, plan_json=plan_json, grace_seconds=1)


@pytest.fixture(params=["files", "rows"])
def documents(request: pytest.FixtureRequest, tmp_path: Path) -> Documents:
    """The records of the jobs, beside the run folders or elsewhere."""
    return FolderDocuments(tmp_path / "jobs") if request.param == "files" else StoredDocuments(SqliteStore(LAYOUT, tmp_path / "db"), "jobs")


def test_a_run_folder_belongs_to_one_job_and_a_name_to_one_spec(tmp_path: Path, documents: Documents) -> None:
    folders = RunFolders(tmp_path / "jobs", documents)
    assert (folders.spec("rt-a-a1"), folders.names()) == (None, [])
    assert folders.claim(spec()) == folders.claim(spec()) == folders.run(spec())
    assert (folders.spec("rt-a-a1"), folders.names()) == (spec(), ["rt-a-a1"])
    for other in (spec("rt-b-a1"), spec(plan_json='{"other": 1}')):
        with pytest.raises(Permanent, match="belongs to a different job or spec"):
            folders.claim(other)
    assert folders.names() == ["rt-a-a1"]


def test_a_lost_run_folder_is_claimed_again_by_the_same_spec_only(tmp_path: Path) -> None:
    folders = RunFolders(tmp_path / "jobs", StoredDocuments(SqliteStore(LAYOUT, tmp_path / "db"), "jobs"))
    folders.claim(spec())
    shutil.rmtree(tmp_path / "jobs")
    with pytest.raises(Permanent, match="belongs to a different job or spec"):
        folders.claim(spec(plan_json='{"other": 1}'))
    assert not (tmp_path / "jobs").exists()
    assert (folders.claim(spec()) / "job.json").exists()
    assert folders.names() == ["rt-a-a1"]


def test_of_two_specs_that_claim_a_name_at_once_one_wins(tmp_path: Path, documents: Documents) -> None:
    together, refused = threading.Barrier(2), list[Permanent]()

    def claim(plan_json: str) -> None:
        together.wait(30)
        try:
            RunFolders(tmp_path / "jobs", documents).claim(spec(plan_json=plan_json))
        except Permanent as error:
            refused.append(error)

    threads = [threading.Thread(target=claim, args=(one,)) for one in ("{}", '{"other": 1}')]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(refused) == 1


def test_the_cause_in_another_process_comes_before_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text(ENGINE)
    said = last_words(log)
    assert said.startswith("ValueError: Free memory on device (3.1/79.2 GiB) on startup is less than desired … ")
    assert said.endswith("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    assert len(said) <= 500


def test_the_exceptions_of_an_earlier_start_are_not_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text(ENGINE)
    before = log.stat().st_size
    with log.open("a") as more:
        more.write("starting\nOSError: [Errno 98] address already in use\n")
    assert last_words(log, before) == "starting | OSError: [Errno 98] address already in use"


def test_an_exception_in_the_last_lines_is_not_repeated(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("loading\nTraceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory\n")
    assert last_words(log) == "loading | Traceback (most recent call last): | torch.OutOfMemoryError: CUDA out of memory"


def test_a_log_without_exceptions_or_without_anything(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    assert last_words(log) == "no output"
    log.write_bytes(b"")
    assert last_words(log, 10) == "no output"
    log.write_bytes(b"one\n\xff two\n\nFutureWarning: old\nthree\n")
    assert last_words(log) == "\ufffd two | FutureWarning: old | three"
