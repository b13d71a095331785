"""Tests of the records about adapters in the process of another version, without a process."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.local.guests import GUEST, Guests
from ratchet.runtime.serving.announcement import ALIVE

LOADED = "2026-01-01T12:00:00+00:00"
BASE = "a" * 64


def guests(folder: Path, **record: object) -> Guests:
    """Return the records of a process `v-base` that holds `v-new`."""
    found = Guests(folder)
    (folder / "v-base").mkdir(parents=True)
    found.note_host("v-base", {"base": BASE, "rank": 64})
    (folder / "v-new").mkdir()
    content = {"host": "v-base", "pid": 7, "outages": [], "loaded": LOADED, **record}
    (folder / "v-new" / GUEST).write_text(json.dumps(content))
    return found


def test_the_process_is_found_by_the_digest_of_its_base(tmp_path: Path) -> None:
    found = guests(tmp_path)
    assert found.host_over(BASE) == "v-base"
    assert found.host_over("b" * 64) is None
    found.note_host("v-base", None)
    assert found.host_over(BASE) is None


def test_an_adapter_is_found_from_both_sides(tmp_path: Path) -> None:
    found = guests(tmp_path)
    assert found.host_of("v-new") == "v-base"
    assert found.host_of("v-base") is None
    assert found.of("v-base") == ["v-new"]
    found.forget("v-new")
    assert found.of("v-base") == []


def test_the_live_process_that_loaded_it_has_not_died(tmp_path: Path) -> None:
    assert guests(tmp_path).outages("v-new", 7) == ()


@pytest.mark.parametrize("pid", [None, 8])
def test_a_death_began_when_the_process_was_last_seen(tmp_path: Path, pid: int | None) -> None:
    found = guests(tmp_path)
    seen = datetime(2026, 1, 1, 13, tzinfo=UTC)
    note = tmp_path / "v-base" / f"{ALIVE}.7"
    note.touch()
    os.utime(note, (seen.timestamp(), seen.timestamp()))
    (death,) = found.outages("v-new", pid)
    assert (death.since, death.until) == (seen, None)


def test_without_a_note_the_death_began_after_the_loading(tmp_path: Path) -> None:
    (death,) = guests(tmp_path).outages("v-new", None)
    assert death.since == datetime.fromisoformat(LOADED)


def test_earlier_deaths_stay_in_the_record(tmp_path: Path) -> None:
    first = {"since": "2026-01-01T10:00:00+00:00", "until": "2026-01-01T10:01:00+00:00"}
    assert [one.until is None for one in guests(tmp_path, outages=[first]).outages("v-new", None)] == [False, True]


def test_an_unknown_version_has_no_deaths(tmp_path: Path) -> None:
    assert guests(tmp_path).outages("v-other", None) == ()


def test_a_process_that_does_not_answer_is_asked_again_later(tmp_path: Path) -> None:
    with pytest.raises(Retryable, match="does not list its models"):
        guests(tmp_path).listed("http://127.0.0.1:9")
