"""Tests of the exchange between the pods of an installation, with a local S3 server, and of the command line of a pod."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ratchet.contracts.errors import ConfigError, Fenced, Retryable
from ratchet.runtime import leading
from ratchet.runtime.serving.exchange import Exchange, Follower, Intake, Published, open_exchange
from ratchet.runtime.serving.pod_lines import line_ports
from tests.s3 import S3, served_by_default
from tests.waiting import until


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch):
    with served_by_default(monkeypatch) as server:
        yield server


@pytest.fixture
def exchange(s3: S3) -> Exchange:
    return Exchange(s3.settings.url)


@pytest.mark.slow
def test_a_published_document_is_followed_and_stays_while_the_bucket_is_away(exchange: Exchange, s3: S3, tmp_path: Path) -> None:
    file = tmp_path / "route.json"
    follower = Follower(exchange, {("shop", Published.ROUTE): file})
    assert follower.look()
    assert not file.exists()
    exchange.publish("shop", Published.ROUTE, b"one")
    assert follower.look()
    assert file.read_bytes() == b"one"
    file.write_bytes(b"untouched")
    assert follower.look()
    assert file.read_bytes() == b"untouched", "an unchanged document is not written again"
    exchange.publish("shop", Published.ROUTE, b"two")
    s3.stop()
    assert not follower.look()
    s3.start()
    assert follower.look()
    assert file.read_bytes() == b"two"


@pytest.mark.slow
def test_requests_are_copied_to_the_spool_in_parts_and_only_of_the_line(exchange: Exchange, tmp_path: Path) -> None:
    for number in range(5):
        exchange.accept("shop", f"{number:03}.request", b"x" * 100)
    exchange.accept("other", "000.request", b"y")
    intake = Intake(exchange, "shop", tmp_path)
    assert intake.look(250) == 300, "the first that exceeds the limit is the last"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000.request", "001.request", "002.request"]
    assert intake.look(250) == 0, "nothing is copied while the spool is full"
    assert len(exchange.waiting("shop")) == 5, "the exchange keeps what is not ingested yet"
    for path in tmp_path.iterdir():
        path.unlink()
    assert intake.look(250) == 200
    assert list(exchange.waiting("shop")) == ["003.request", "004.request"]
    for path in tmp_path.iterdir():
        path.unlink()
    assert intake.look(250) == 0
    assert exchange.waiting("shop") == {}
    assert list(exchange.waiting("other")) == ["000.request"]


@pytest.mark.slow
def test_a_request_is_kept_until_it_was_ingested_also_if_the_process_or_its_disk_is_lost(exchange: Exchange, tmp_path: Path) -> None:
    for name in ("a.request", "b.request"):
        exchange.accept("shop", name, name.encode())
    assert Intake(exchange, "shop", tmp_path / "one").look(1000) == 18
    other = Intake(exchange, "shop", tmp_path / "two")  # another pod, with an empty disk
    assert other.look(1000) == 18
    (tmp_path / "two" / "a.request").unlink()  # ingested
    again = Intake(exchange, "shop", tmp_path / "two")  # a new process on the same disk does not know that
    assert again.look(1000) == 9, "it is copied again, and ingest counts it as a duplicate"
    for name in ("a.request", "b.request"):
        (tmp_path / "two" / name).unlink()
    assert again.look(1000) == 0
    assert exchange.waiting("shop") == {}


@pytest.mark.slow
def test_a_spool_that_is_lost_while_the_process_runs_was_not_ingested(exchange: Exchange, tmp_path: Path) -> None:
    exchange.accept("shop", "a.request", b"1")
    intake = Intake(exchange, "shop", tmp_path / "spool")
    assert intake.look(1000) == 1
    shutil.rmtree(tmp_path / "spool")
    until(lambda: intake.look(1000) == 1, 10)
    assert list(exchange.waiting("shop")) == ["a.request"]


@pytest.mark.slow
def test_a_long_list_of_waiting_requests_is_read_once(exchange: Exchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        exchange.accept("shop", f"{number}", b"x")
    listings, waiting = [], exchange.waiting
    monkeypatch.setattr(exchange, "waiting", lambda line: listings.append(line) or waiting(line))
    intake = Intake(exchange, "shop", tmp_path)
    for _ in range(5):
        intake.look(2)  # at most two in the spool
    assert (len(listings), len(list(tmp_path.iterdir()))) == (1, 2)
    for _ in range(3):
        for path in tmp_path.iterdir():
            path.unlink()
        intake.look(2)
    assert waiting("shop") == {}


@pytest.mark.slow
def test_a_ledger_that_was_restored_takes_a_higher_term_than_what_is_published(exchange: Exchange, term) -> None:
    assert exchange.newest_term("shop") == 0
    term(7)
    exchange.publish("shop", Published.ROUTE, b"seven")
    term(3)
    exchange.publish("shop", Published.CREDENTIALS, b"three")
    assert exchange.newest_term("shop") == 7


@pytest.mark.slow
def test_an_object_with_a_foreign_name_is_not_copied(exchange: Exchange, tmp_path: Path) -> None:
    exchange.accept("shop", "../../outside", b"evil")
    with pytest.raises(Retryable, match="no receiver writes"):
        Intake(exchange, "shop", tmp_path / "spool").look(1000)
    assert list(tmp_path.rglob("*")) == [tmp_path / "spool"]


@pytest.fixture
def term(monkeypatch: pytest.MonkeyPatch):
    """Sets the term in which this process leads the line."""
    monkeypatch.setattr(leading, "_TERMS", {})
    return lambda number: leading.lead("shop", number)


@pytest.mark.slow
def test_a_former_leader_replaces_nothing_that_a_later_one_has_published(exchange: Exchange, term) -> None:
    exchange.publish("shop", Published.ROUTE, b"adopted by a command")
    term(7)
    exchange.publish("shop", Published.ROUTE, b"seven")
    term(8)
    exchange.publish("shop", Published.ROUTE, b"eight")
    exchange.publish("shop", Published.ROUTE, b"eight again")
    term(7)
    with pytest.raises(Fenced, match="took over"):
        exchange.publish("shop", Published.ROUTE, b"seven again")
    exchange.publish("shop", Published.CREDENTIALS, b"the term of a document is its own")
    assert exchange.published("shop", Published.ROUTE) == b"eight again"
    leading._TERMS.clear()
    exchange.publish("shop", Published.ROUTE, b"rolled back by a command")
    term(7)
    with pytest.raises(Fenced):
        exchange.publish("shop", Published.ROUTE, b"seven again")
    assert exchange.published("shop", Published.ROUTE) == b"rolled back by a command"


@pytest.mark.slow
def test_a_document_that_changes_between_look_and_write_is_not_replaced(exchange: Exchange, term, monkeypatch: pytest.MonkeyPatch) -> None:
    term(7)
    exchange.publish("shop", Published.ROUTE, b"seven")
    client = exchange._bucket.client
    look = client.head_object

    def looked(**place: str) -> object:
        found = look(**place)
        client.put_object(**place, Body=b"eight", Metadata={"term": "8"})  # the process is suspended here, and another one leads
        return found

    monkeypatch.setattr(client, "head_object", looked)
    with pytest.raises(Retryable, match="meanwhile"):
        exchange.publish("shop", Published.ROUTE, b"old")
    assert exchange.published("shop", Published.ROUTE) == b"eight"


@pytest.mark.slow
def test_who_does_not_lead_any_more_changes_nothing(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange.accept("shop", "a", b"1")
    monkeypatch.setattr(leading, "_until", None)
    leading.lead_until(0.0)
    for change in (
        lambda: exchange.publish("shop", Published.ROUTE, b"late"),
        lambda: exchange.remove("shop", "a"),
        lambda: exchange.accept("shop", "b", b"2"),
        lambda: exchange.installation("late"),
    ):
        with pytest.raises(Fenced, match="does not lead any more"):
            change()
    assert list(exchange.waiting("shop")) == ["a"]


@pytest.mark.slow
def test_the_first_id_of_an_installation_stays(exchange: Exchange) -> None:
    assert exchange.installation("one") == "one"
    assert exchange.installation("two") == "one"


@pytest.mark.slow
def test_accounts_of_replicas_have_the_time_of_the_bucket(exchange: Exchange) -> None:
    exchange.report("shop", "router-0", b"{}")
    exchange.report("shop", "router-1", b"{}")
    reports = exchange.reports("shop")
    assert set(reports) == {"router-0", "router-1"}
    assert all(told.tzinfo is not None for _, told in reports.values())


@pytest.mark.parametrize("url", ["", "https://bucket", "s3://", "s3://UPPER/case"])
def test_a_wrong_place_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="RATCHET_EXCHANGE"):
        open_exchange(url)


def test_lines_of_a_pod_are_named_with_their_ports() -> None:
    assert line_ports(["shop=8080", "help-desk=8081"]) == {"shop": 8080, "help-desk": 8081}
    for wrong in (["shop"], ["shop=0"], ["shop=70000"], ["Shop=8080"], ["a=8080", "a=8081"], ["a=8080", "b=8080"], ["../x=8080"]):
        with pytest.raises(ConfigError):
            line_ports(wrong)
