"""Tests of artifacts, manifests, models and hash chains under faults: full disks, partial copies, concurrent writers, pickles."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.cycle import Row
from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.hash_chain import GENESIS, seal_row, verify_chain
from ratchet.contracts.ids import canonical, digest, job_name, version_tag
from ratchet.contracts.model import model_ref
from ratchet.runtime.artifacts import FolderArtifacts, write_atomic
from ratchet.runtime.manifest import verify_manifest, write_manifest


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("call", ["fsync", "mkdir", "fdopen"])
def test_full_disk_is_retryable_and_leaves_no_partial_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    store = FolderArtifacts(tmp_path / "store")
    with monkeypatch.context() as patched:
        patched.setattr(Path if call == "mkdir" else os, call, full)
        for attempt in (
            lambda: store.put(b"x"),
            lambda: store.bind("name", digest(b"x")),
            lambda: write_atomic(tmp_path / "a" / "b", b"x"),
        ):
            with pytest.raises(Retryable, match="No space left"):
                attempt()
    assert leftovers(tmp_path) == []
    assert store.resolve("name") is None
    assert store.get(store.put(b"x")) == b"x"


def test_disk_that_fills_during_a_copy_leaves_no_partial_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderArtifacts(tmp_path / "store")
    (tmp_path / "big").write_bytes(bytes(1000))
    key = store.put_file(tmp_path / "big")

    def half(_source: Any, target: Any) -> None:
        Path(target).write_bytes(b"half")
        full()

    (tmp_path / "other").write_bytes(bytes(999))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", half)
        with pytest.raises(Retryable, match="No space left"):
            store.put_file(tmp_path / "other")
        with pytest.raises(Retryable, match="No space left"):
            store.fetch(key, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not [path for path in leftovers(tmp_path) if path.name.startswith(".part")]
    assert store.fetch(key, tmp_path / "out").read_bytes() == bytes(1000)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises((Permanent, Retryable), match="does not exist"):
        FolderArtifacts(tmp_path).put_file(tmp_path / "absent")


def test_a_file_of_another_user_is_named_as_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "model.safetensors"

    def refused(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("ratchet.runtime.artifacts.digest_file", refused)
    with pytest.raises(Permanent, match=r"cannot read .*model\.safetensors: .*chmod a\+r"):
        FolderArtifacts(tmp_path / "store").put_file(source)


@pytest.mark.parametrize("what", ["put", "put_file", "bind", "fetch"])
def test_concurrent_threads_can_store_the_same_content(tmp_path: Path, what: str) -> None:
    store = FolderArtifacts(tmp_path / "store")
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3_000_000))
    key, failed, gate = digest(source.read_bytes()), [], threading.Barrier(8)
    if what == "fetch":
        store.put_file(source)

    def work() -> None:
        gate.wait()
        try:
            for i in range(5):
                if what == "put":
                    store.put(b"x" * i)
                elif what == "put_file":
                    assert store.put_file(source) == key
                    assert len(store.get(key)) == 3_000_000
                elif what == "bind":
                    assert store.bind(f"name {i}", key) == key
                else:
                    store.fetch(key, tmp_path / f"out{i}")
        except BaseException as error:
            failed.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert not [path for path in leftovers(tmp_path) if path.name.startswith(".part")]


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../out", ".."])
def test_manifest_with_a_path_outside_its_folder_is_rejected(tmp_path: Path, name: str) -> None:
    store = FolderArtifacts(tmp_path / "store")
    key = store.put(canonical({"files": {name: store.put(b"evil")}}))
    with pytest.raises(Permanent, match="outside"):
        store.fetch(key, tmp_path / "into" / "deep")
    assert not (tmp_path / "into" / "out").exists()


@pytest.mark.parametrize(
    "content",
    [
        b'{"files":{}}',
        b'{"files":{"a":"secret"}}',
        b'{"files":{"a":["%s"]}}' % (b"0" * 64),
        b'{"files":["%s"]}' % (b"0" * 64),
        b'{"files":{"a":"%s"},"more":1}' % (b"0" * 64),
        b'{"files":{"a":"%s"} }' % (b"0" * 64),
        b'{"files":{"a":"%s"}} and text' % (b"0" * 64),
        b'{"files":' + b"[" * 100_000,
    ],
)
def test_a_file_that_starts_like_a_manifest_is_a_file(tmp_path: Path, content: bytes) -> None:
    store = FolderArtifacts(tmp_path / "store")
    key = store.put(content)
    assert store.files(key) is None
    assert store.fetch(key, tmp_path / "copy").read_bytes() == content


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "model.pt", "model.pkl", "model.ckpt"])
def test_model_in_pickle_files_is_rejected(tmp_path: Path, pickle: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / pickle).write_bytes(b"\x80\x04.")
    with pytest.raises(Permanent, match="safetensors"):
        model_ref(tmp_path, digest("files"))
    with pytest.raises(Permanent):
        model_ref(tmp_path / pickle, digest("files"))


def test_model_id_depends_only_on_the_content_of_model_files(tmp_path: Path) -> None:
    def written(name: str, **files: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        for file, content in {"config.json": "{}", "model.safetensors": "w", "tokenizer.json": "t", **files}.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(content)
        return model_ref(folder, digest(name)).id

    same = written("a")
    assert written("b") == same
    assert written("c", **{"README.md": "hello"}) == same
    others = {
        "config.json": "{ }",
        "model.safetensors": "v",
        "tokenizer.json": "u",
        "chat_template.jinja": "x",
        "chat_template.json": "{}",
        "additional_chat_templates/tools.jinja": "y",
        "generation_config.json": "{}",
        "added_tokens.json": "{}",
        "model.safetensors.index.json": "{}",
        "adapter_config.json": "{}",
    }
    ids = {written(f"other {file.replace('/', ' ')}", **{file: content}) for file, content in others.items()}
    assert len(ids | {same}) == len(others) + 1


def test_manifest_detects_every_change(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    expected = write_manifest(tmp_path)
    assert verify_manifest(tmp_path, expected) == expected
    (tmp_path / "b").write_text("b")
    with pytest.raises(Permanent, match="b"):
        verify_manifest(tmp_path)
    (tmp_path / "b").unlink()
    (tmp_path / "a").write_text("A")
    with pytest.raises(Permanent):
        verify_manifest(tmp_path, expected)
    write_manifest(tmp_path)
    with pytest.raises(Permanent, match="recorded"):
        verify_manifest(tmp_path, expected)
    (tmp_path / "manifest.json").write_text('{"files"')
    with pytest.raises(Permanent, match="missing or invalid"):
        verify_manifest(tmp_path)


def test_canonical_form_is_unique_and_rejects_nan_and_infinity() -> None:
    assert canonical({"b": 1, "a": [True, None, "é"]}) == '{"a":[true,null,"é"],"b":1}'.encode()
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError):
            canonical({"x": bad})


def test_job_and_version_names_are_valid_labels() -> None:
    names = [job_name("p" * 64, 1, "s"), job_name("p" * 64, 2, "s"), job_name("q" * 64, 1, "s"), version_tag("c" * 64)]
    assert len(set(names)) == 4
    assert all(len(name) < 64 and name == name.lower() and name.replace("-", "").isalnum() for name in names)


def test_rows_of_another_stream_or_order_are_an_invalid_chain() -> None:
    from datetime import UTC, datetime

    at = datetime(2026, 1, 1, tzinfo=UTC)
    one = seal_row("s", 1, Row(kind="a"), at, 0, GENESIS)
    two = seal_row("s", 2, Row(kind="b"), at, 0, one.hash)
    verify_chain([])
    verify_chain([one, two])
    for wrong in ([two], [two, one], [one, one], [one, two.model_copy(update={"stream": "t"})]):
        with pytest.raises(Permanent):
            verify_chain(wrong)


def test_reader_of_a_digest_gets_what_replaced_it_and_everything_else_is_as_strict_as_before(tmp_path: Path) -> None:
    store = FolderArtifacts(tmp_path / "store")
    old = store.bind("training set", store.put(b"two people"))
    new = store.replace(old, b"one person", 1, 1)
    last = store.replace(new, b"nobody", 1, 0)
    assert store.get(old) == store.get(new) == b"nobody"
    assert (tmp_path / "laid").read_bytes() == b"nobody" if store.fetch(old, tmp_path / "laid") else False
    assert store.resolve("training set") == old
    assert store.erased(old) is not None
    assert (store.current(old), store.path(old).exists()) == (last, False)
    store.path(last).chmod(0o600)
    store.path(last).write_bytes(b"forged")
    with pytest.raises(Permanent, match="corrupt"):
        store.get(old)
    with pytest.raises(Permanent, match="restore"):
        store.get(digest(b"never stored"))


def test_replacement_that_was_interrupted_is_completed_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderArtifacts(tmp_path / "store")
    old = store.put(b"two people")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda *_args, **_more: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.replace(old, b"one person", 1, 1)
    assert store.get(old) == b"two people"  # the content is deleted last
    store.replace(old, b"one person", 1, 1)
    assert store.get(old) == b"one person"
