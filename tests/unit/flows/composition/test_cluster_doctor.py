"""Tests of what `ratchet k8s doctor` reads on this machine: values, loop files and the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from ratchet.contracts.errors import ConfigError
from ratchet.flows.composition.cluster_doctor import examine_installation, look_at_ledger
from tests.postgres import postgres_server

NOW = datetime(2026, 9, 1, tzinfo=UTC)


@pytest.mark.parametrize(("content", "words"), [("- a", "is not a table"), ("a: [", "is not YAML"), (None, "cannot read the values file")])
def test_a_values_file_that_is_none_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "values.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        examine_installation([], path, "ratchet", "ratchet", None, NOW)


def test_without_its_url_the_ledger_is_unknown() -> None:
    assert look_at_ledger(None).state == "unknown"


def test_a_ledger_outside_postgres_is_refused_and_its_url_is_not_repeated() -> None:
    found = look_at_ledger("mysql://someone:hidden@host/ratchet")
    assert (found.state, found.detail) == ("other", "it is not in Postgres, but mysql")


@pytest.mark.slow
def test_a_ledger_in_postgres_is_reached_and_nothing_is_created() -> None:
    with postgres_server() as server:
        server.create("empty")
        assert look_at_ledger(server.url("empty")).state == "postgres"
        engine = sa.create_engine(server.url("empty"))
        assert sa.inspect(engine).get_table_names() == []
        engine.dispose()
    wrong = look_at_ledger("postgresql+psycopg://someone:hidden@127.0.0.1:1/ratchet")
    assert (wrong.state, "hidden" in wrong.detail) == ("away", False)
