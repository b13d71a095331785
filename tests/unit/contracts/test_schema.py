"""Tests the schema version: rows and documents of older releases are upgraded, and those of newer releases are refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from ratchet.contracts.cycle import Entry, Row
from ratchet.contracts.errors import NewerRelease, Permanent
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.hash_chain import GENESIS, seal_row, verify_chain
from ratchet.contracts.ids import canonical, digest
from ratchet.contracts.jobs.training import Method, TrainingPlan
from ratchet.contracts.schema import SCHEMA_VERSION, UNVERSIONED, parse, stamped, unstamped, upgraded
from ratchet.contracts.serving import Backend, Route

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROUTE = Route(line="l", served_model="m", backends=(Backend(tag="v-0", url="http://u", model="m", weight=100),), annotation="a")
PLAN = TrainingPlan(
    line="l",
    cycle="cycle/l/0001",
    start=fake_model("base"),
    dataset=digest("dataset"),
    pairs=digest("pairs"),
    prompts=digest("prompts"),
    demonstrations=digest(b""),
    method=Method.DPO,
    recipe={},
    seed=0,
    scorers=(),
    code=digest("code"),
)


def old_row(kind: str, key: str, data: dict) -> Entry:
    return seal_row("cycle/l/0001", 1, Row(kind=kind, key=key, data=data), NOON, 3, GENESIS, UNVERSIONED)


def test_document_carries_the_version_and_reads_back() -> None:
    assert json.loads(stamped(ROUTE))["schema_version"] == SCHEMA_VERSION
    assert parse(Route, stamped(ROUTE)) == ROUTE


def test_document_without_a_version_is_read() -> None:
    assert parse(Route, canonical(ROUTE)) == ROUTE
    assert unstamped(canonical([{"kind": "started"}]), "EventLog") == {"events": [{"kind": "started"}]}


def test_document_of_a_newer_release_is_refused() -> None:
    newer = canonical({**ROUTE.model_dump(mode="json"), "schema_version": SCHEMA_VERSION + 1, "unheard_of": 1})
    with pytest.raises(NewerRelease, match=r"stored Route was written by a newer release of Ratchet .*upgrade Ratchet"):
        parse(Route, newer)


def test_unknown_fields_stay_errors() -> None:
    with pytest.raises(ValueError, match="unheard_of"):
        parse(Route, stamped({**ROUTE.model_dump(mode="json"), "unheard_of": 1}))
    with pytest.raises(ValueError, match="not a JSON object"):
        parse(Route, b"[]")


def test_hash_of_a_row_without_a_version_is_that_of_the_release_that_wrote_it() -> None:
    row = old_row("ended", "failed", {"reason": "r"})
    assert row.hash == digest(["cycle/l/0001", 1, "ended", "failed", {"reason": "r"}, NOON.isoformat(), 3, GENESIS])
    verify_chain([row])


def test_version_of_a_row_is_covered_by_its_hash() -> None:
    row = seal_row("cycle/l/0001", 1, Row(kind="opened"), NOON, 0, GENESIS)
    verify_chain([row])
    with pytest.raises(Permanent, match="row 1"):
        verify_chain([row.model_copy(update={"schema_version": UNVERSIONED})])


def test_chain_continues_from_rows_of_an_older_release() -> None:
    first = old_row("opened", "", {})
    verify_chain([first, seal_row("cycle/l/0001", 2, Row(kind="ended"), NOON, 3, first.hash)])


def test_plan_from_before_demonstrations_is_upgraded_and_the_rest_is_not_touched() -> None:
    before = {name: value for name, value in PLAN.model_dump(mode="json").items() if name != "demonstrations"}
    row = old_row("done", "plan", {"choice": {"method": "dpo"}, "plan": before, "dataset": {"name": "n"}})
    [current] = upgraded([row])
    assert TrainingPlan.model_validate(current.data["plan"]) == PLAN
    assert current.data["choice"] == row.data["choice"]
    assert "demonstrations" not in row.data["plan"]
    assert upgraded([old_row("done", "plan", {"plan": None})])[0].data == {"plan": None}
    assert parse(TrainingPlan, canonical(before)) == PLAN


def test_rows_of_this_release_are_not_changed() -> None:
    row = seal_row("cycle/l/0001", 1, Row(kind="done", key="plan", data={"plan": {"name": "n"}}), NOON, 0, GENESIS)
    assert upgraded([row]) == [row]
