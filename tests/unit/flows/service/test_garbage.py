"""Tests of the garbage collection: what the ledger reaches stays, and retention and withdrawn consent are applied."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.contracts.cycle import Append, Row
from ratchet.contracts.fakes.state import FakeClock, MemoryLedger
from ratchet.contracts.ids import Digest, line_stream, version_tag
from ratchet.contracts.jobs.training import Checkpoint
from ratchet.contracts.loop import Loop
from ratchet.contracts.model import model_ref
from ratchet.contracts.schema import stamped
from ratchet.contracts.serving import Endpoint, ModelVersion
from ratchet.contracts.steps import AcceptResult, State, Step
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import open_cycle
from ratchet.flows.service import garbage
from ratchet.flows.service.erase import erase_people, pseudonyms_of
from ratchet.flows.service.garbage import collect_artifacts, collect_line, expired_folders
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.receive.spool import FolderSpool
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.bucket import Bucket
from ratchet.runtime.bucket_artifacts import BucketArtifacts
from tests.markers import LINE, SHOP, append, fill, install, marks_in, opened, planned, promoted, user
from tests.s3 import S3
from tests.unit.materializer.records import T0, evaluation, log, logs

DAY = 86_400.0


def aged(artifacts: FolderArtifacts, key: Digest, days: float) -> Digest:
    path = artifacts.path(key)
    at = path.stat().st_mtime - days * DAY
    os.utime(path, (at, at))
    return key


@pytest.mark.slow
def test_old_artifacts_that_nothing_names_go_and_those_of_the_line_stay(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    promoted(context, installation.home)
    planned(opened(installation, tmp_path), installation.home)
    artifacts = FolderArtifacts(installation.home.artifacts)
    named = {key for key, _ in artifacts.contents()}
    old, young = aged(artifacts, artifacts.put(b"forgotten"), 8), artifacts.put(b"young")
    again = aged(artifacts, artifacts.put(b"stored again"), 8)
    artifacts.put(b"stored again")
    part = artifacts.path(old).parent / ".part-0123"
    part.write_bytes(b"torn")
    os.utime(part, (1, 1))
    for key in named:
        aged(artifacts, key, 30)
    tried = collect_line(installation, context, dry_run=True)
    assert (tried.files["artifacts"], artifacts.path(old).exists()) == (2, True)
    done = collect_line(installation, context)
    assert done.files["artifacts"] == 2
    assert {key for key, _ in artifacts.contents()} == named | {young, again}
    assert not part.exists()
    assert installation.line(LINE).rows[-1].kind == "collected"
    assert collect_line(installation, context).is_empty
    assert installation.line(LINE).open_cycle is not None


def test_a_content_that_was_renamed_when_a_collection_died_gets_its_name_back(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path)
    key = artifacts.put(b"in use again")
    artifacts.path(key).rename(artifacts.path(key).with_name(f".part-{key}"))
    assert collect_artifacts(artifacts, MemoryLedger(), DAY, dry_run=False) == (0, 0)
    assert artifacts.get(key) == b"in use again"


_NODES = 8


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, _NODES - 1), st.integers(0, _NODES - 1)), max_size=12),
    roots=st.sets(st.integers(0, _NODES - 1), max_size=3),
    bound=st.sets(st.integers(0, _NODES - 1), max_size=2),
    erased=st.sets(st.integers(0, _NODES - 1), max_size=2),
    dies=st.integers(0, _NODES),
)
def test_nothing_that_a_random_ledger_reaches_is_deleted_also_after_a_crash(
    edges: list[tuple[int, int]], roots: set[int], bound: set[int], erased: set[int], dies: int
) -> None:
    """Artifacts name artifacts with a smaller number. The collection may die before any deletion, and is then repeated."""
    with TemporaryDirectory() as folder:
        artifacts, ledger = FolderArtifacts(Path(folder)), MemoryLedger()
        keys: list[Digest] = []
        for node in range(_NODES):
            named = sorted({keys[to] for at, to in edges if at == node and to < node})
            keys.append(artifacts.put(stamped({"node": node, "files": named})))
        rows = tuple(Row(kind="done", key=str(root), data={"deep": [{"digest": keys[root]}]}) for root in roots)
        clock = FakeClock()
        ledger.append([Append(stream="cycle/l/0001", after=0, rows=(Row(kind="opened"), *rows))], None, clock.now())
        for node in bound:
            artifacts.bind(f"name-{node}", keys[node])
        wanted = set(roots | bound)
        for node in reversed(range(_NODES)):
            wanted |= {to for at, to in edges if at == node and to < node and node in wanted}
        for node in erased:  # its rows are replaced, and what it named is named by the replacement
            named = sorted({keys[to] for at, to in edges if at == node and to < node})
            artifacts.replace(keys[node], stamped({"node": node, "files": named, "filtered": True}), 1, 0)
        for _, path in artifacts.contents():
            os.utime(path, (1, 1))
        left, original = dies, garbage._delete

        def delete(*arguments: Any) -> bool:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return original(*arguments)

        garbage._delete = delete
        try:
            collect_artifacts(artifacts, ledger, DAY, dry_run=False)
        except KeyboardInterrupt:
            pass
        finally:
            garbage._delete = original
        collect_artifacts(artifacts, ledger, DAY, dry_run=False)
        there = {node for node in range(_NODES) if artifacts.path(artifacts.current(keys[node])).exists()}
        assert there == wanted


def withdraw(installation: Any, subject: str, n: int, given: bool = False, after: int = 10) -> None:
    item = evaluation(f"{subject}_consent", float(given), at=T0 + after * 10**9, user__id=user(n), session__id=f"session of {user(n)}")
    FolderSpool(installation.home.spool(LINE)).put_json(SHOP, json.dumps(logs(log(2 * n + 1, item))).encode())


@pytest.mark.slow
def test_content_whose_use_is_refused_is_deleted_and_a_later_consent_brings_it_back(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    version = promoted(context, installation.home)
    withdraw(installation, "user", 0)
    withdraw(installation, "trace", 1)
    ingest(context)
    lake = Lake(installation.home.lake(LINE))
    before = len(lake.scan("traces"))
    done = collect_line(installation, context)
    assert done.rows["contents"] == 3
    assert 0 not in marks_in(installation.home.lake(LINE).folder / "warehouse")
    assert 0 not in marks_in(installation.home.artifacts)
    rows = lake.scan("traces")
    assert (len(rows), rows["messages"].null_count()) == (before, 3)  # the metadata stay, as of a trace without consent
    assert installation.line(LINE).recalled == {}
    assert installation.line(LINE).champion == version
    assert collect_line(installation, context).rows == {}
    fill(installation.home, range(1))  # the records again; the refusal is newer
    ingest(context)
    collect_line(installation, context)
    assert marks_in(installation.home.lake(LINE).folder / "warehouse").get(0) is None


@pytest.mark.slow
def test_rows_whose_retention_has_ended_go_also_from_the_artifacts(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 6)
    promoted(context, installation.home)
    loop = Loop.model_validate(context.loop.model_dump() | {"retention": {"traces": 1, "quarantine": None}})
    late = replace(context, loop=loop)
    lake = Lake(installation.home.lake(LINE))
    assert collect_line(installation, context).is_empty  # by default, only quarantined records are too old after 30 days
    done = collect_line(installation, late)
    assert done.rows["traces"] == 12
    assert (len(lake.scan("traces")), len(lake.scan("feedback"))) == (0, 1)
    assert marks_in(installation.home.artifacts).keys() <= {5}
    assert len(lake.scan("quarantine")) == 6


@pytest.mark.slow
def test_no_row_is_touched_while_a_cycle_is_open(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    planned(context, installation.home)
    withdraw(installation, "user", 0)
    ingest(context)
    done = collect_line(installation, context)
    assert (done.rows, done.postponed) == ({}, True)
    assert 0 in marks_in(installation.home.lake(LINE).folder / "warehouse")


@pytest.mark.slow
def test_an_interrupted_erasure_is_left_to_its_repetition_which_recalls_the_versions(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    version = promoted(context, installation.home)
    people = pseudonyms_of(installation, [user(0)], ())

    def die(step: str) -> None:
        if step == "recall":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        erase_people(installation, people, die)
    assert collect_line(installation, context).rows == {}
    receipt = erase_people(installation, people)
    assert [one.tag for one in receipt.lines[0].recalled] == [version.tag]
    assert marks_in(installation.home.root).get(0) is None


def made(context: LineContext, folder: Path) -> ModelVersion:
    """Promote a version with a model folder of its own, without a training."""
    cycle = context.cycle_view(open_cycle(context, "test"))
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(f"weights of {cycle.number}".encode())
    (folder / "config.json").write_text("{}")
    model = model_ref(folder, context.artifacts.put_folder(folder))
    checkpoint = Checkpoint(plan="0" * 64, attempt=1, incarnation=1, step=1, files=model.files, model=model, metrics={})
    tag = version_tag(checkpoint.id)
    version = ModelVersion(line=LINE, number=cycle.number, tag=tag, model=model, cycle=cycle.id, plan=checkpoint.plan)
    accepted = AcceptResult(checkpoint=checkpoint, version=version).model_dump(mode="json")
    append(context, cycle.id, Row(kind="intended", key=str(Step.ACCEPT)), Row(kind="done", key=str(Step.ACCEPT), data=accepted))
    append(context, cycle.id, Row(kind="ended", key=State.PROMOTED, data={"reason": "test"}))
    ended = Row(kind="cycle_ended", key=cycle.id, data={"state": State.PROMOTED, "reason": "test", "evaluated": True})
    champion = Row(kind="champion", key=tag, data={"version": version.model_dump(mode="json"), "cycle": cycle.id})
    append(context, line_stream(LINE), ended, champion)
    return version


def kept_by(artifacts: FolderArtifacts, versions: list[ModelVersion]) -> list[int]:
    """Return the numbers of the versions whose models are stored."""
    return [one.number for one in versions if artifacts.here(one.model.files).exists()]


@pytest.mark.slow
def test_old_models_go_and_those_that_serve_are_pinned_or_may_be_needed_stay(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 1)
    versions = [made(context, tmp_path / "models" / str(number)) for number in range(1, 8)]
    artifacts, later = FolderArtifacts(installation.home.artifacts), datetime.now(UTC) + timedelta(days=40)
    assert expired_folders(installation, context, later) == set(), "without a setting, every model stays"
    kept = context.loop.retention.model_copy(update={"models": 30, "pinned_models": (2,)})
    context = replace(context, loop=context.loop.model_copy(update={"retention": kept}))
    assert expired_folders(installation, context, datetime.now(UTC)) == set(), "none is old enough"
    expired = expired_folders(installation, context, later)
    assert expired == {versions[number - 1].model.files for number in (1, 3, 4)}
    before = {key for key, _ in artifacts.contents()}
    assert collect_artifacts(artifacts, installation.ledger, 0, dry_run=True, expired=expired)[0] == 6  # manifest and weights of each
    assert collect_artifacts(artifacts, installation.ledger, 0, dry_run=False, expired=expired)[0] == 6
    assert kept_by(artifacts, versions) == [2, 5, 6, 7]
    gone = before - {key for key, _ in artifacts.contents()}
    assert hashlib.sha256(b"{}").hexdigest() not in gone, "a file that another model has, too, stays"
    line = installation.line(LINE)
    assert line.base is not None
    assert artifacts.here(line.base.model.files).exists()


@pytest.mark.slow
def test_a_model_that_a_server_has_stays(tmp_path: Path) -> None:
    installation, context = install(tmp_path, 1)
    versions = [made(context, tmp_path / "models" / str(number)) for number in range(1, 6)]
    kept = context.loop.retention.model_copy(update={"models": 1})
    served = SimpleNamespace(running=lambda: [Endpoint(tag=versions[0].tag, url="http://127.0.0.1:1", model="shop")])
    context = replace(context, loop=context.loop.model_copy(update={"retention": kept}), server=served)  # type: ignore[arg-type]
    expired = expired_folders(installation, context, datetime.now(UTC) + timedelta(days=40))
    assert expired == {versions[1].model.files}


@pytest.mark.slow
def test_an_artifact_that_nothing_reaches_leaves_the_bucket_too(s3: S3, tmp_path: Path) -> None:
    store = BucketArtifacts(Bucket(s3.settings), tmp_path / "artifacts")
    kept, lost = store.put(b"kept"), store.put(b"lost")
    store.bind("cycle/shop/x", kept)
    for _, path in store.contents():
        os.utime(path, (0, 0))
    assert collect_artifacts(store, MemoryLedger(), 60, dry_run=True) == (1, 4)
    assert store.get(lost) == b"lost"
    for _, path in store.contents():
        os.utime(path, (0, 0))
    assert collect_artifacts(store, MemoryLedger(), 60, dry_run=False) == (1, 4)
    again = BucketArtifacts(Bucket(s3.settings), tmp_path / "again")
    assert {key for key, _ in again.contents()} == {kept}
