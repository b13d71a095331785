"""Signed exports of the heads: every manipulation of exported rows is found, and nothing else is reported."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.contracts.cycle import Append, Row
from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.contracts.hash_chain import GENESIS, seal_row
from ratchet.contracts.ids import canonical, digest
from ratchet.flows.cli.admin.anchor import anchor, verify
from ratchet.flows.composition.anchors import BucketExports, Verification, open_anchors, verify_ledger
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.ledger.anchor_key import AnchorKey
from ratchet.flows.ledger.anchors import Anchors, FolderExports
from ratchet.flows.ledger.sql import SqlLedger
from ratchet.flows.service.keepers import export_heads
from tests.s3 import served

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Place:
    """A ledger on SQLite, a key, and a folder of exports."""

    def __init__(self, folder: Path) -> None:
        self.database, self.exports, self.key = folder / "ledger.db", folder / "anchors", folder / "keys" / "anchor.key"
        self.ledger = SqlLedger(f"sqlite:///{self.database}")

    @property
    def anchors(self) -> Anchors:
        """The exports as a new process opens them."""
        return Anchors(FolderExports(self.exports), AnchorKey(self.key))

    def append(self, stream: str, count: int = 1) -> None:
        """Append rows to a stream."""
        after = len(self.ledger.read(stream))
        rows = tuple(Row(kind="noted", key=str(after + number), data={"n": after + number}) for number in range(count))
        self.ledger.append([Append(stream=stream, after=after, rows=rows)], None, NOON)

    def export(self) -> int | None:
        """Export the heads and return the number of the export."""
        export = self.anchors.export(self.ledger, NOON)
        return export.number if export else None

    def verify(self) -> Verification:
        """Verify the ledger."""
        return verify_ledger(self.ledger, self.anchors)

    def found(self) -> list[tuple[str, str]]:
        """Return kind and place of all damage."""
        return [(one.what, one.where) for one in self.verify().damage]

    def run(self, statement: str, *values: object) -> None:
        """Run a statement in the database, past the ledger."""
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute(statement, values)
            connection.commit()

    def reseal(self, stream: str, seq: int) -> None:
        """Change a row and compute all hashes of the stream again, as someone with access to the database can."""
        previous = GENESIS
        for entry in self.ledger.read(stream):
            data = {"n": "changed"} if entry.seq == seq else entry.data
            row = Row(kind=entry.kind, key=entry.key, data=data)
            sealed = seal_row(stream, entry.seq, row, entry.at, entry.epoch, previous)
            self.run(
                "UPDATE ratchet_rows SET data = ?, previous = ?, hash = ? WHERE stream = ? AND seq = ?",
                *(canonical(data).decode(), previous, sealed.hash, stream, entry.seq),
            )
            previous = sealed.hash

    def cut(self, stream: str, after: int) -> None:
        """Delete all rows of a stream after a row."""
        self.run("DELETE FROM ratchet_rows WHERE stream = ? AND seq > ?", stream, after)

    def files(self) -> list[Path]:
        """Return the exports, oldest first."""
        return sorted(self.exports.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A ledger with two exported streams and two exports."""
    place = Place(tmp_path)
    place.append("a", 3)
    assert place.export() == 1
    place.append("b", 2)
    assert place.export() == 2
    return place


def test_an_intact_ledger_has_no_damage_and_names_the_rows_after_the_export(place: Place) -> None:
    assert place.verify().unanchored == []
    place.append("a", 2)
    place.append("c")
    result = place.verify()
    assert result.damage == []
    assert result.newest is not None
    assert (result.exports, result.newest.number) == (2, 2)
    assert [(one.stream, one.first, one.rows) for one in result.unanchored] == [("a", 4, 2), ("c", 1, 1)]


def test_without_an_export_all_rows_are_named(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.append("a", 3)
    place.reseal("a", 2)
    result = place.verify()
    assert (result.damage, result.newest, result.exports) == ([], None, 0)
    assert [(one.stream, one.first, one.rows) for one in result.unanchored] == [("a", 1, 3)]
    assert not place.key.exists(), "verify writes nothing"


def test_each_manipulation_is_named(place: Place) -> None:
    place.reseal("a", 2)
    assert place.found() == [("changed", "a")]
    place.cut("a", 1)
    assert place.found() == [("truncated", "a")]
    place.cut("b", 0)
    assert place.found() == [("truncated", "a"), ("deleted", "b")]
    place.run("UPDATE ratchet_rows SET data = '{}' WHERE stream = 'a'")
    assert place.found() == [("chain", "a"), ("deleted", "b")]


def test_a_deleted_first_row_breaks_the_chain(place: Place) -> None:
    place.run("DELETE FROM ratchet_rows WHERE stream = 'b' AND seq = 1")
    assert place.found() == [("chain", "b")]


def test_a_change_between_two_exports_is_found(place: Place) -> None:
    place.reseal("a", 1)
    place.append("a")
    with pytest.raises(Permanent, match="a row up to row 3 was changed"):
        place.export()
    assert len(place.files()) == 2, "an export would confirm the change"


@pytest.mark.parametrize("manipulate", [lambda p: p.cut("a", 2), lambda p: p.cut("b", 0), lambda p: p.reseal("b", 1)])
def test_a_changed_ledger_is_not_exported(place: Place, manipulate) -> None:
    manipulate(place)
    with pytest.raises(Permanent, match="nothing was exported"):
        place.export()


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_manipulations_of_exported_rows_are_always_found(data: st.DataObject) -> None:
    """Manipulations are drawn with intact histories, so that both answers are tested."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        exported: dict[str, int] = {}
        lengths: dict[str, int] = {}
        for _ in range(data.draw(st.integers(1, 6))):
            stream, count = data.draw(st.sampled_from("abc")), data.draw(st.integers(1, 3))
            place.append(stream, count)
            lengths[stream] = lengths.get(stream, 0) + count
            if data.draw(st.booleans()):
                place.export()
                exported = dict(lengths)
        if not exported:
            place.export()
            exported = dict(lengths)
        stream = data.draw(st.sampled_from(sorted(lengths)))
        kind = data.draw(st.sampled_from(["none", "reseal", "delete", "cut", "edit"]))
        seq = data.draw(st.integers(1, lengths[stream]))
        match kind:
            case "reseal":
                place.reseal(stream, seq)
            case "delete":
                place.cut(stream, 0)
            case "cut":
                place.cut(stream, seq - 1)
            case "edit":
                place.run("UPDATE ratchet_rows SET data = '\"x\"' WHERE stream = ? AND seq = ?", stream, seq)
        known = exported.get(stream, 0)
        seen = kind == "edit" or (kind in ("reseal", "cut") and seq <= known) or (kind == "delete" and known > 0)
        assert [where for _, where in place.found()] == ([stream] if seen else [])


def test_nothing_is_exported_without_a_change(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderExports, "names", lambda _: pytest.fail("the folder is read although nothing changed"))
    assert place.export() is None


def test_an_empty_ledger_exports_nothing_and_makes_no_key(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.export() is None
    assert not place.key.exists()


def test_removed_exports_are_missing(place: Place) -> None:
    place.append("a")
    place.export()
    first, second, third = place.files()
    second.rename(second.with_suffix(".aside"))
    assert place.found() == [("export_missing", "export 2")]
    third.unlink()
    assert place.found() == [("export_missing", "exports 2 to 3")]
    first.unlink()
    assert place.found() == [("export_missing", "exports 1 to 3")]
    place.append("a")
    with pytest.raises(Permanent, match="export 3 is missing"):
        place.export()


def test_exports_with_another_signature_are_forged(place: Place, tmp_path: Path) -> None:
    other = Place(tmp_path / "other")
    other.append("a", 3)
    other.export()
    place.append("a")
    place.export()
    last = place.files()[-1]
    document = json.loads(last.read_bytes())
    document["heads"][0]["hash"] = "0" * 64
    data = canonical(document)
    last.unlink()
    (place.exports / f"00000003-{digest(data)}.json").write_bytes(data)
    assert {what for what, _ in place.found()} == {"export_forged"}
    for file in place.files():
        file.unlink()
    (place.exports / other.files()[0].name).write_bytes(other.files()[0].read_bytes())
    assert ("export_missing", "exports 2 to 3") in place.found()
    assert "export_forged" in {what for what, _ in place.found()}


def test_a_changed_file_is_damaged(place: Place) -> None:
    file = place.files()[-1]
    file.write_bytes(file.read_bytes().replace(b"2026", b"2027"))
    assert place.found() == [("export_damaged", file.name)]
    place.append("a")
    with pytest.raises(Permanent, match="was changed or is incomplete"):
        place.export()


def test_an_export_of_another_series_is_no_successor(place: Place) -> None:
    """The holder of the key writes a second chain; its files do not follow the first one."""
    second = Place(place.database.parent / "second")
    second.key = place.key
    place.key.with_name("anchor.key.last").unlink()
    second.append("y", 3)
    second.exports = place.exports.parent / "more"
    second.export()
    second.append("x")
    second.export()
    place.files()[1].unlink()
    (place.exports / second.files()[1].name).write_bytes(second.files()[1].read_bytes())
    assert ("export_forged", second.files()[1].name) in place.found()


def test_a_missing_key_is_reported_and_not_replaced(place: Place) -> None:
    place.append("a")
    place.key.unlink()
    assert place.found() == [("key_missing", str(place.key))]
    with pytest.raises(Permanent, match=r"anchor\.key is missing"):
        place.export()
    assert not place.key.exists()


def test_the_public_key_verifies_and_cannot_sign(place: Place) -> None:
    public = place.key.with_name("anchor.key.pub")
    assert b"PUBLIC" in public.read_bytes()
    place.key.unlink()
    place.key = public
    assert place.found() == []
    place.reseal("a", 1)
    assert place.found() == [("changed", "a")]
    place.append("b")
    public.chmod(0o600)
    with pytest.raises(ConfigError, match="cannot sign"):
        AnchorKey(public).sign(b"")


def test_the_key_is_private(place: Place) -> None:
    assert place.key.stat().st_mode & 0o777 == 0o600
    place.key.chmod(0o640)
    place.append("a")
    with pytest.raises(ConfigError, match="chmod 600"):
        place.export()
    place.key.write_text("nothing")
    with pytest.raises(ConfigError, match="cannot read the anchor key"):
        AnchorKey(place.key).verifies(b"", "")


def test_a_crash_before_the_number_is_recorded_loses_nothing(place: Place) -> None:
    last = place.key.with_name("anchor.key.last")
    before = last.read_bytes()
    place.append("a")
    assert place.export() == 3
    last.write_bytes(before)
    assert place.found() == []
    assert place.export() == 4
    last.unlink()
    place.append("a")
    assert place.export() == 5
    assert place.found() == []


def test_an_unwritable_folder_is_retried(place: Place) -> None:
    place.append("a")
    place.exports.rename(place.exports.with_name("aside"))
    place.exports.write_text("")
    with pytest.raises(Retryable):
        place.export()


@pytest.mark.slow
def test_exports_in_a_bucket_are_read_again_and_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch) as s3:
        monkeypatch.setenv("AWS_ENDPOINT_URL", str(s3.settings.endpoint))
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("RATCHET_ANCHORS", s3.settings.url)
        home, place = Home(tmp_path), Place(tmp_path)
        place.append("a", 2)
        assert open_anchors(home).export(place.ledger, NOON) is not None
        store = BucketExports(s3.settings.url)
        (name,) = store.names()
        store.add(name, b"other")
        assert verify_ledger(place.ledger, open_anchors(home)).damage == []
        place.cut("a", 1)
        assert [one.what for one in verify_ledger(place.ledger, open_anchors(home)).damage] == ["truncated"]
    with pytest.raises(ConfigError, match="RATCHET_ANCHORS"):
        BucketExports("s3://UPPER")


def test_the_service_exports_changed_heads_and_reports_a_changed_ledger(tmp_path: Path) -> None:
    installation = Installation(Home(tmp_path))
    place = Place(tmp_path)
    place.append("a", 2)
    assert export_heads(installation) == []
    assert export_heads(installation) == []
    assert len(place.files()) == 1
    place.cut("a", 1)
    (said,) = export_heads(installation)
    assert said.startswith("could not export the ledger's heads: nothing was exported")


def test_the_commands_report_damage_with_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path))
    place, runner = Place(tmp_path), CliRunner()
    place.append("a", 2)
    unanchored = runner.invoke(verify, [])
    assert unanchored.exit_code == 0
    assert "no valid export exists" in unanchored.output
    assert json.loads(runner.invoke(anchor, ["--json"]).stdout) == {"exported": True, "number": 1, "streams": 1}
    assert json.loads(runner.invoke(anchor, ["--json"]).stdout)["exported"] is False
    place.append("a", 1)
    assert "1 rows are newer and not anchored yet: a from row 3" in runner.invoke(verify, []).output
    place.reseal("a", 1)
    told = runner.invoke(verify, ["--json"])
    found = json.loads(told.stdout)
    assert (told.exit_code, found["whole"], found["exports"]) == (1, False, 1)
    assert [(one["what"], one["where"]) for one in found["damage"]] == [("changed", "a")]
    assert found["unanchored"] == [{"stream": "a", "first": 3, "rows": 1}]
    text = runner.invoke(verify, [])
    assert text.exit_code == 1
    assert "all hash chains valid" not in text.output
    assert "a: a row up to row 2 was changed and the hash chain computed again (export 1" in text.output


@pytest.mark.slow
def test_many_streams_are_exported_together_and_nothing_is_written_without_a_change(tmp_path: Path) -> None:
    place = Place(tmp_path)
    appends = [Append(stream=f"cycle/line/{n:04d}", after=0, rows=(Row(kind="opened"), Row(kind="ended"))) for n in range(1000)]
    place.ledger.append(appends, None, NOON)
    assert place.anchors.export(place.ledger, NOON) is not None
    assert place.anchors.export(place.ledger, NOON) is None
    place.append("a")
    assert place.anchors.export(place.ledger, NOON + timedelta(minutes=1)) is not None
