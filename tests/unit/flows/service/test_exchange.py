"""Tests of the service's side of the exchange, with a local S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.service import exchange as module
from ratchet.flows.service.exchange import ServiceExchange
from ratchet.runtime import leading
from ratchet.runtime.serving.exchange import EXCHANGE, Exchange, Published
from tests.postgres import postgres_server
from tests.s3 import served_by_default

pytestmark = pytest.mark.slow


def test_requests_are_taken_while_nothing_can_be_published_and_the_reason_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that was restored gives a lower number than the one in the bucket, unless the claim takes a higher one."""
    monkeypatch.setattr(leading, "_TERMS", {"shop": 5})
    monkeypatch.setattr(module, "adopt_keys", lambda *_: None)
    monkeypatch.delenv(variables.KEYS, raising=False)
    with served_by_default(monkeypatch) as s3, postgres_server() as server:
        monkeypatch.setenv(EXCHANGE, s3.settings.url)
        monkeypatch.setenv(variables.LEDGER_URL, server.url())
        home, exchange, said = Home(tmp_path / "home"), Exchange(s3.settings.url), list[str]()
        exchange.publish("shop", Published.CREDENTIALS, b"of a later service")
        module.open_credentials(home, "shop").ensure_router()
        service = ServiceExchange(exchange, home, ["shop"], said.append)
        leading.lead("shop", 2)
        exchange.accept("shop", "a.request", b"1")
        for _ in range(3):
            service.look()
        assert (home.spool("shop") / "a.request").read_bytes() == b"1"
        [text] = said
        assert "took over since (term 5, not 2)" in text
        leading.lead("shop", exchange.newest_term("shop") + 1)
        service.look()
        assert b"router" in (exchange.published("shop", Published.CREDENTIALS) or b"")
        assert home.credentials("shop").read_bytes() == exchange.published("shop", Published.CREDENTIALS)
