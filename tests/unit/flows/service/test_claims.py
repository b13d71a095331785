"""Tests of the claims of installations on their lines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.fakes import MemoryLedger
from ratchet.flows.service.claims import CLAIM_SECONDS, Claims

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=CLAIM_SECONDS)


def test_second_installation_is_refused_and_claims_nothing() -> None:
    ledger = MemoryLedger()
    Claims(ledger, "one", ["b"]).take(NOON)
    with pytest.raises(ConfigError, match=r"line 'b' is served by another installation .*\(one@"):
        Claims(ledger, "two", ["a", "b"]).take(NOON)
    Claims(ledger, "three", ["a"]).take(NOON)


def test_new_process_of_the_installation_takes_its_claims_over() -> None:
    ledger = MemoryLedger()
    Claims(ledger, "one", ["a"]).take(NOON)
    Claims(ledger, "one", ["a"]).take(NOON)


def test_claim_ends_without_renewal_and_at_once_when_it_is_given_back() -> None:
    ledger = MemoryLedger()
    first = Claims(ledger, "one", ["a"])
    first.take(NOON)
    first.renew(NOON + timedelta(seconds=100))
    with pytest.raises(ConfigError):
        Claims(ledger, "two", ["a"]).take(LATER)
    second = Claims(ledger, "two", ["a"])
    second.take(LATER + timedelta(seconds=100))
    with pytest.raises(ConfigError, match="two@"):
        first.renew(LATER + timedelta(seconds=101))
    second.release()
    first.take(LATER + timedelta(seconds=102))


def test_a_claim_of_another_host_of_the_same_installation_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = MemoryLedger()
    monkeypatch.setattr("socket.gethostname", lambda: "service-0")
    Claims(ledger, "one", ["a"]).take(NOON)
    pods = Claims(ledger, "one", ["a"], several_pods=True)
    with pytest.raises(Retryable, match=r"another process of this installation \(one@service-0\).* its claim ends at 12:03:00 UTC"):
        pods.take(NOON)
    pods.take(LATER)
    assert pods.terms() == {"a": 2}
    Claims(ledger, "one", ["a"], several_pods=True).take(LATER)
