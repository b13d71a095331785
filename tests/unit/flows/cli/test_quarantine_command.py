"""Tests of `ratchet quarantine` on a real lake: list, show, replay, and the alarm in `check` and `status`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.main import cli
from ratchet.materializer.dialects import jsonl

pytestmark = pytest.mark.slow  # loads the packages of a line

RECORD = {"timestamp": "2026-09-01T00:00:00Z", "user_id": "ada", "messages": "mail ada@example.org", "response": "ok", "consent": True}
LOOP = """\
[line]
name = "shop"
served_model = "m"
[[sources]]
name = "app"
kind = "jsonl"
path = "in"
[[rewards]]
name = "exact_match"
"""


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception!r}"
    return result


def as_json(*arguments: str | Path) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line with twenty good records, two bad ones and one cut one, which are ingested."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    (tmp_path / "in").mkdir()
    rows = [RECORD | {"id": str(n)} for n in range(20)] + [RECORD | {"id": f"b{n}", "origin": "batch"} for n in range(2)]
    (tmp_path / "in/x.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + '\n{"id": "cut')
    (tmp_path / "loop.toml").write_text(LOOP)
    run("ingest", "loop.toml")
    return Path("loop.toml")


def test_from_the_list_to_the_replay(loop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = as_json("quarantine", "list", loop)
    assert [(entry["reason"], entry["position"]) for entry in entries] == [
        ("bad_origin", "line 21"),
        ("bad_origin", "line 22"),
        ("malformed_json", "line 23"),
    ]
    table = run("quarantine", "list", loop).stdout
    assert "bad_origin" in table
    assert f"shop/{entries[0]['id']}" in table
    assert [entry["id"] for entry in as_json("quarantine", "list", loop, "--reason", "malformed_json")] == [entries[2]["id"]]
    assert as_json("quarantine", "list", loop, "--since", "2100-01-01") == []
    shown = run("quarantine", "show", f"{loop}/{entries[0]['id']}").stdout
    assert "[EMAIL_1]" in shown
    assert "ada@example.org" not in shown
    assert "x.jsonl, line 21 (byte" in shown.replace("\n", " ")
    assert as_json("quarantine", "show", f"{loop}/{entries[2]['id']}")["content"] is None
    dry = as_json("quarantine", "replay", loop, "--all", "--dry-run")
    assert (dry["outcomes"], dry["stored"]) == ({"bad": 3}, 0)
    monkeypatch.setattr(jsonl, "ORIGINS", jsonl.ORIGINS | {"batch"})
    assert as_json("quarantine", "replay", f"{loop}/{entries[0]['id']}")["outcomes"] == {"resolved": 1}
    done = as_json("quarantine", "replay", loop, "--reason", "bad_origin")
    assert (done["outcomes"], done["stored"]) == ({"resolved": 1}, 1)
    assert len(as_json("quarantine", "list", loop)) == 1
    assert [entry["state"] for entry in as_json("quarantine", "list", loop, "--all")] == ["resolved", "resolved", None]


def test_errors_say_what_to_do_and_check_warns_of_the_alarm(loop: Path) -> None:
    for arguments, said in (
        (["show", "loop.toml/ffff"], "has no entry 'ffff'"),
        (["show", "shop"], "is no entry"),
        (["replay", "loop.toml/ffff"], "has no open entry ffff"),
        (["replay", "loop.toml", "other.toml", "--all"], "name one line"),
        (["list", "loop.toml", "--since", "monday"], "is no time"),
    ):
        result = CliRunner().invoke(cli, ["quarantine", *arguments])
        assert isinstance(result.exception, ConfigError)
        assert said in str(result.exception)
    found = [one for one in as_json("check", loop)["findings"] if one["about"] == "quarantine"]
    assert [one["level"] for one in found] == ["warning"]
    assert "3 of 23 records were quarantined (13.0%; bad_origin 2, malformed_json 1)" in found[0]["text"]
