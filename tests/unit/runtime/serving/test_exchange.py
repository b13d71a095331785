"""Tests of the exchange between the pods of an installation, with a local S3 server, and of the command line of a pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.runtime.serving.exchange import Exchange, Follower, Published, open_exchange, take_all
from ratchet.runtime.serving.pod_lines import line_ports
from tests.s3 import S3, served_by_default


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
def test_requests_move_to_the_spool_in_parts_and_only_of_the_line(exchange: Exchange, tmp_path: Path) -> None:
    for number in range(5):
        exchange.accept("shop", f"{number:03}.request", b"x" * 100)
    exchange.accept("other", "000.request", b"y")
    assert take_all(exchange, "shop", tmp_path, 250) == 300, "the first that exceeds the limit is the last"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000.request", "001.request", "002.request"]
    assert take_all(exchange, "shop", tmp_path, 250) == 0, "nothing is taken while the spool is full"
    for path in tmp_path.iterdir():
        path.unlink()
    assert take_all(exchange, "shop", tmp_path, 250) == 200
    assert exchange.waiting("shop") == {}
    assert list(exchange.waiting("other")) == ["000.request"]


@pytest.mark.slow
def test_an_object_with_a_foreign_name_is_not_taken(exchange: Exchange, tmp_path: Path) -> None:
    exchange.accept("shop", "../../outside", b"evil")
    with pytest.raises(Retryable, match="no receiver writes"):
        take_all(exchange, "shop", tmp_path / "spool", 1000)
    assert list(tmp_path.iterdir()) == []


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
