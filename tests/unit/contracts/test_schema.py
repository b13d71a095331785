"""Tests the schema version: an upgrade brings what an older version wrote into the current form, and newer versions are refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from ratchet.contracts import schema
from ratchet.contracts.cycle import Entry, Row
from ratchet.contracts.errors import NewerRelease, Permanent
from ratchet.contracts.hash_chain import GENESIS, seal_row, verify_chain
from ratchet.contracts.ids import canonical, digest
from ratchet.contracts.schema import SCHEMA_VERSION, UPGRADES, Upgrade, parse, stamped, unstamped, upgraded
from ratchet.contracts.serving import Backend, Route

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROUTE = Route(line="l", served_model="m", backends=(Backend(tag="v-0", url="http://u", model="m", weight=100),), annotation="a")


def row(kind: str, data: dict[str, Any], version: int = SCHEMA_VERSION) -> Entry:
    return seal_row("cycle/l/0001", 1, Row(kind=kind, data=data), NOON, 3, GENESIS, version)


def test_each_version_before_the_present_one_has_a_step() -> None:
    assert sorted(UPGRADES) == list(range(1, SCHEMA_VERSION))


def test_document_carries_the_version_and_reads_back() -> None:
    assert json.loads(stamped(ROUTE))["schema_version"] == SCHEMA_VERSION
    assert parse(Route, stamped(ROUTE)) == ROUTE


def test_document_of_a_newer_release_is_refused() -> None:
    newer = canonical({**ROUTE.model_dump(mode="json"), "schema_version": SCHEMA_VERSION + 1, "unheard_of": 1})
    with pytest.raises(NewerRelease, match=r"stored Route was written by a newer release of Ratchet .*upgrade Ratchet"):
        parse(Route, newer)


@pytest.mark.parametrize(
    "version", [{}, {"schema_version": None}, {"schema_version": 0}, {"schema_version": True}, {"schema_version": "1"}]
)
def test_document_without_a_valid_version_is_refused(version: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no valid schema_version"):
        parse(Route, canonical({**ROUTE.model_dump(mode="json"), **version}))


def test_unknown_fields_stay_errors() -> None:
    with pytest.raises(ValueError, match="unheard_of"):
        parse(Route, stamped({**ROUTE.model_dump(mode="json"), "unheard_of": 1}))
    with pytest.raises(ValueError, match="not a JSON object"):
        parse(Route, b"[]")


def test_version_of_a_row_is_covered_by_its_hash() -> None:
    opened = row("opened", {"a": 1})
    assert opened.hash == digest([SCHEMA_VERSION, "cycle/l/0001", 1, "opened", "", {"a": 1}, NOON.isoformat(), 3, GENESIS])
    verify_chain([opened])
    with pytest.raises(Permanent, match="row 1"):
        verify_chain([opened.model_copy(update={"schema_version": SCHEMA_VERSION + 1})])


def test_rows_of_this_release_are_not_changed() -> None:
    opened = row("opened", {"tag": "v-0"})
    assert upgraded([opened]) == [opened]


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> int:
    """Stand for the next release, which calls the line of a route `line` instead of `model_line`, also in ledger rows."""

    def renamed(data: dict[str, Any]) -> dict[str, Any]:
        return {"line" if name == "model_line" else name: value for name, value in data.items()}

    step = Upgrade(
        row=lambda kind, _key, data: renamed(data) if kind == "routed" else data,
        document=lambda kind, content: renamed(content) if kind == "Route" else content,
    )
    monkeypatch.setattr(schema, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    monkeypatch.setattr(schema, "UPGRADES", {**UPGRADES, SCHEMA_VERSION: step})
    return SCHEMA_VERSION + 1


def test_next_release_reads_the_documents_of_this_one(next_release: int) -> None:
    content = ROUTE.model_dump(mode="json")
    before = {("model_line" if name == "line" else name): value for name, value in content.items()}
    assert parse(Route, canonical({**before, "schema_version": SCHEMA_VERSION})) == ROUTE
    assert unstamped(canonical({**before, "schema_version": SCHEMA_VERSION}), "Other") == before
    assert json.loads(stamped(ROUTE)) == {**content, "schema_version": next_release}
    assert parse(Route, stamped(ROUTE)) == ROUTE
    with pytest.raises(NewerRelease, match=f"reads versions up to {next_release}"):
        parse(Route, canonical({**content, "schema_version": next_release + 1}))


def test_next_release_reads_the_rows_of_this_one_and_their_hashes_stay_valid(next_release: int) -> None:
    first = row("routed", {"model_line": "l"})
    second = seal_row("cycle/l/0001", 2, Row(kind="routed", data={"line": "l"}), NOON, 3, first.hash, next_release)
    verify_chain([first, second])
    current, unchanged = upgraded([first, second])
    assert (current.data, current.hash, unchanged) == ({"line": "l"}, first.hash, second)
    assert first.data == {"model_line": "l"}, "the stored row is not changed"
    assert upgraded([row("opened", {"model_line": "l"})])[0].data == {"model_line": "l"}
