"""Tests that a lake works after its folder was moved or copied, and after a crash in between."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.errors import Retryable
from ratchet.materializer.lake.places import moved
from ratchet.materializer.lake.tables import Lake
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import T0, batch, span, spans

DAY = 86_400 * 10**9


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """Return a folder with a lake of three batches, with rows of two days, quarantined records and a tag."""
    folder = tmp_path / "former"
    folder.mkdir()
    datasets = make_datasets(folder)
    datasets.ingest(batch(spans(span(1), span(2, metadata__consent=False), span(3, at=T0 + DAY))))
    datasets.lake.pin("traces", "kept")
    datasets.ingest(batch(spans(span(4)), {"no": "record"}))
    datasets.ingest(batch(spans(span(5, at=T0 + DAY))))
    return folder


def rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of the lake in a folder."""
    lake = Lake(folder / "lake")
    return {name: lake.scan(name).sort(pl.all()).to_dicts() for name in ("traces", "feedback", "consent", "quarantine")}  # type: ignore[arg-type]


def names(folder: Path, place: Path) -> list[Path]:
    """Return the files of the current metadata in a folder that name another place."""
    files = [path for path in folder.rglob("metadata/*") if path.suffix in {".avro", ".json"}]
    return [path for path in files if f"{place}/".encode() in path.read_bytes()]


def test_a_moved_lake_is_read_and_written_at_its_new_place(former: Path, tmp_path: Path) -> None:
    before, present = rows(former), tmp_path / "a longer name for the present"
    former.rename(present)
    assert Lake(present / "lake").size("traces")[0] == 5, "the size needs no correction"
    assert rows(present) == before
    datasets = make_datasets(present)
    datasets.ingest(batch(spans(span(6))))
    assert Lake(present / "lake").size("traces")[0] == 6
    assert not former.exists(), "nothing was written at the former place"
    tagged = datasets.lake.table("traces").refs()["kept"].snapshot_id
    assert len(datasets.lake.scan("traces", snapshot=tagged)) == 3
    back = tmp_path / "b"
    present.rename(back)
    assert len(rows(back)["traces"]) == 6


@pytest.mark.slow
def test_a_copy_and_its_original_have_nothing_in_common(former: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(former, copy)
    make_datasets(copy).ingest(batch(spans(span(7))))
    make_datasets(former).ingest(batch(spans(span(8), span(9))))
    assert (len(rows(former)["traces"]), len(rows(copy)["traces"])) == (7, 6)
    shutil.rmtree(former)
    assert len(rows(copy)["traces"]) == 6
    lake = Lake(copy / "lake")
    lake.forget_history("traces")
    assert len(lake.scan("traces")) == 6
    assert all(Path(file.place).is_relative_to(copy) for file in lake.unreachable("traces"))


@pytest.mark.slow
def test_an_interrupted_correction_is_completed(former: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, step, stopped = rows(former), 0, True
    whole = moved._rewrite, moved.write_atomic
    while stopped:
        present, stopped, done = tmp_path / f"present-{step}", False, [0]
        shutil.copytree(former, present)

        def limited(change: Any, done: list[int] = done, step: int = step) -> Any:
            def changed(*given: Any, **more: Any) -> None:
                if done[0] == step:
                    raise KeyboardInterrupt
                done[0] += 1
                change(*given, **more)

            return changed

        monkeypatch.setattr(moved, "_rewrite", limited(whole[0]))
        monkeypatch.setattr(moved, "write_atomic", limited(whole[1]))
        try:
            rows(present)
        except KeyboardInterrupt:
            stopped = True
        monkeypatch.setattr(moved, "_rewrite", whole[0])
        monkeypatch.setattr(moved, "write_atomic", whole[1])
        assert rows(present) == before
        shutil.rmtree(present)
        step += 3
    assert step > 9


def test_a_link_at_the_former_place_needs_no_correction(former: Path, tmp_path: Path) -> None:
    present = tmp_path / "present"
    former.rename(present)
    former.symlink_to(present)
    stored = {path: path.stat().st_mtime_ns for path in present.rglob("*") if path.suffix in {".avro", ".json"}}
    assert len(rows(present)["traces"]) == len(rows(former)["traces"]) == 5
    assert {path: path.stat().st_mtime_ns for path in stored} == stored


def test_a_lake_that_is_incomplete_at_its_new_place_says_so(former: Path, tmp_path: Path) -> None:
    present = tmp_path / "present"
    former.rename(present)
    next(present.rglob("traces/metadata/snap-*.avro")).unlink()
    with pytest.raises(Retryable, match=r"the lake in .* was moved, and the paths in its metadata cannot be corrected: .*backup"):
        Lake(present / "lake").scan("traces")
