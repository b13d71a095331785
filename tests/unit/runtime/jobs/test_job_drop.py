"""Tests of the drop folder: a valid checkpoint is taken over in any crash, and nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import canonical, checkpoint_name, digest
from ratchet.contracts.jobs.training import Checkpoint, JobSpec
from ratchet.contracts.model import model_ref
from ratchet.contracts.schema import SCHEMA_VERSION, parse, stamped
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs import job_drop

PLAN = "b" * 64
SPEC = JobSpec(
    name="job", plan=PLAN, attempt=1, command=("true",), environment={}, inputs={}, plan_json="{}", grace_seconds=1
)  # fmt: skip
NAME = checkpoint_name(PLAN, 1, 2)


class Place:
    """A run folder with a drop folder, and the artifacts of the service."""

    def __init__(self, folder: Path) -> None:
        self.run, self.folder = folder / "a1", folder
        self.store, self.drop = FolderArtifacts(folder / "artifacts"), FolderArtifacts(self.run / "drop")

    def checkpoint(self, **changes: object) -> Checkpoint:
        """Put a model into the drop folder and return its checkpoint."""
        model = self.folder / "model"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(b"weights")
        files = self.drop.put_folder(model)
        fields = {"plan": PLAN, "attempt": 1, "incarnation": 2, "step": 7, "metrics": {"loss": 0.5}}
        return Checkpoint.model_validate({**fields, "files": files, "model": model_ref(model, files), **changes})

    def offer(self, document: bytes | None = None, name: str = NAME) -> str:
        """Bind a checkpoint in the drop folder, as a job does, and return its digest."""
        return self.drop.bind(name, self.drop.put(document or stamped(self.checkpoint())))

    def take(self) -> None:
        """Take over what incarnation 2 offers."""
        job_drop.take_over(self.run, SPEC, 2, self.store)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return empty folders."""
    return Place(tmp_path)


def complete(place: Place, key: str) -> bool:
    """Return whether the checkpoint and each file of its model are in the artifacts with their digests."""
    checkpoint = parse(Checkpoint, place.store.get(key))
    into = place.folder / "fetched"
    shutil.rmtree(into, ignore_errors=True)
    place.store.fetch(checkpoint.files, into)
    return (into / "model.safetensors").read_bytes() == b"weights"


def test_a_checkpoint_is_taken_over_once_and_its_drop_folder_is_deleted(place: Place) -> None:
    key = place.offer()
    place.drop.bind("cycle/line/0001/evaluate", place.drop.put(b"a forged report"))
    assert job_drop.offered(place.run, SPEC, 2)
    place.take()
    assert place.store.resolve(NAME) == key
    assert complete(place, key)
    place.take()
    job_drop.clear(place.run)
    job_drop.clear(place.run)
    assert not job_drop.offered(place.run, SPEC, 2)
    assert not (place.run / "drop").exists()
    assert place.store.resolve("cycle/line/0001/evaluate") is None
    assert not place.store.path(digest(b"a forged report")).exists()
    assert len(list((place.store.root / "names").iterdir())) == 1


def test_a_name_that_is_bound_is_never_changed(place: Place) -> None:
    bound = place.store.bind(NAME, place.store.put(b"published before"))
    place.offer()
    place.take()
    assert place.store.resolve(NAME) == bound


@pytest.mark.parametrize("name", [checkpoint_name("c" * 64, 1, 2), checkpoint_name(PLAN, 2, 2), checkpoint_name(PLAN, 1, 3)])
def test_names_of_other_plans_attempts_and_incarnations_are_ignored(place: Place, name: str) -> None:
    place.offer(name=name)
    place.take()
    assert place.store.resolve(name) is None
    assert not place.store.root.exists()


def _link(path: Path, place: Place) -> None:
    path.rename(place.folder / "elsewhere")
    path.symlink_to(place.folder / "elsewhere")


def _fifo(path: Path, _: Place) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.mkfifo(path)


def _other(path: Path, _: Place) -> None:
    path.write_bytes(b"other content")


def _huge(path: Path, _: Place) -> None:
    os.truncate(path, 1 << 40)


def _gone(path: Path, _: Place) -> None:
    path.unlink()


def _paths(place: Place, key: str) -> dict[str, Path]:
    files = parse(Checkpoint, place.store.get(key) if place.store.path(key).exists() else place.drop.get(key)).files
    weights = place.drop.path(digest(b"weights"))
    return {
        "binding": place.drop.place(NAME),
        "checkpoint": place.drop.path(key),
        "manifest": place.drop.path(files),
        "weights": weights,
        "folder of the weights": weights.parent,
        "content": weights.parents[1],
        "names": place.drop.root / "names",
        "drop": place.drop.root,
    }


FILES, FOLDERS = ("binding", "checkpoint", "manifest", "weights"), ("folder of the weights", "content", "names", "drop")
HOSTILE = [
    *((change, what) for change in (_link, _fifo) for what in (*FILES, *FOLDERS)),
    *((change, what) for change in (_other, _huge) for what in FILES),
    *((_gone, what) for what in FILES[1:]),
]


@pytest.mark.parametrize(("change", "what"), HOSTILE)
def test_a_damaged_drop_folder_is_refused_and_binds_nothing(place: Place, change: Callable[[Path, Place], None], what: str) -> None:
    key = place.offer(stamped(place.checkpoint()))
    change(_paths(place, key)[what], place)
    with pytest.raises(Permanent):
        place.take()
    assert place.store.resolve(NAME) is None
    assert not list(place.folder.glob("artifacts/**/.part-*"))
    job_drop.clear(place.run)
    assert not os.path.lexists(place.run / "drop")


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": "c" * 64},
        {"attempt": 2},
        {"incarnation": 3},
        {"incarnation": 0},
        {"files": "../../../../etc/passwd"},
        {"adapter": dict.fromkeys(("weights", "tokenizer", "chat_template", "generation_config", "others", "files"), "../x")},
        {"metrics": {"loss": float("nan")}},
    ],
)
def test_a_checkpoint_with_other_claims_is_refused(place: Place, changes: dict[str, object]) -> None:
    content = place.checkpoint().model_dump(mode="json") | changes
    place.offer(json.dumps({**content, "schema_version": SCHEMA_VERSION}).encode())
    with pytest.raises(Permanent):
        place.take()
    assert place.store.resolve(NAME) is None


@pytest.mark.parametrize("document", [b"[]", b"null", b'{"schema_version": 99}', b'{"a":' * 100_000, b"\xff", b"{}"])
def test_a_document_that_is_no_checkpoint_is_refused(place: Place, document: bytes) -> None:
    place.offer(document)
    with pytest.raises(Permanent, match="does not describe a checkpoint"):
        place.take()


def test_content_of_the_artifacts_that_the_job_does_not_have_is_refused(place: Place) -> None:
    golden = place.store.put(b"golden set")
    files = place.drop.put(canonical({"files": {"model.safetensors": golden}}))
    place.offer(stamped(place.checkpoint(files=files)))
    with pytest.raises(Permanent, match="is missing"):
        place.take()
    assert place.store.resolve(NAME) is None


def adapted(place: Place) -> Checkpoint:
    """Put a model and an adapter into the drop folder, and return their checkpoint."""
    folder = place.folder / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"low rank")
    base = "d" * 64
    return place.checkpoint(adapter=model_ref(folder, place.drop.put_folder(folder), base).model_dump())


def test_an_adapter_is_taken_over_with_its_checkpoint(place: Place) -> None:
    checkpoint = adapted(place)
    place.offer(stamped(checkpoint))
    place.take()
    assert checkpoint.adapter is not None
    into = place.store.fetch(checkpoint.adapter.files, place.folder / "fetched adapter")
    assert (into / "adapter_model.safetensors").read_bytes() == b"low rank"


def test_an_adapter_of_content_that_the_job_does_not_have_is_refused(place: Place) -> None:
    golden, checkpoint = place.store.put(b"golden set"), adapted(place)
    files = place.drop.put(canonical({"files": {"adapter_model.safetensors": golden}}))
    assert checkpoint.adapter is not None
    forged = checkpoint.model_copy(update={"adapter": checkpoint.adapter.model_copy(update={"files": files})})
    place.offer(stamped(forged))
    with pytest.raises(Permanent, match="is missing"):
        place.take()
    assert place.store.resolve(NAME) is None


def test_a_file_that_a_process_still_has_open_cannot_be_changed_after_its_verification(place: Place) -> None:
    key = place.offer()
    with place.drop.path(digest(b"weights")).open("r+b") as still_open:
        place.take()
        still_open.write(b"changed")
    assert complete(place, key)


@pytest.mark.slow
def test_a_kill_at_any_point_loses_nothing_and_publishes_nothing_partial(tmp_path: Path) -> None:
    """The process is killed before each change of a folder. A second process finishes."""
    for point in range(100):
        place = Place(tmp_path / str(point))
        key = place.offer()
        child = os.fork()
        if child == 0:
            _killed_at(point, place)
        _, status = os.waitpid(child, 0)
        bound = place.store.resolve(NAME)
        assert bound in (None, key)
        assert bound is None or complete(place, key)
        assert bound is not None or job_drop.offered(place.run, SPEC, 2)
        if job_drop.offered(place.run, SPEC, 2):
            place.take()
            job_drop.clear(place.run)
        assert complete(place, key)
        assert not (place.run / "drop" / "sha256").exists()
        if os.WIFEXITED(status):
            break
    assert os.WIFEXITED(status)
    assert point > 15


def _killed_at(point: int, place: Place) -> None:
    """Take over and clear in this process, which kills itself before the change with this number."""
    left = [point]

    def counted(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return original(*arguments, **options)

        return call

    try:
        for name in ("fsync", "link", "unlink", "rmdir", "replace", "rename"):
            setattr(os, name, counted(getattr(os, name)))
        place.take()
        job_drop.clear(place.run)
        os._exit(0)
    except BaseException:
        os._exit(1)
