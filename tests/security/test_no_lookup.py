"""No command looks up or contacts an outside address: nothing is sent that the operator did not ask for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ratchet.runtime.telemetry import NO_TELEMETRY
from tests.builders import JSONL_RECORD
from tests.command import RATCHET, environment
from tests.security.offline import run_offline
from tests.unit.trainers.conftest import write_model

pytestmark = pytest.mark.slow

_REGISTER = """
import sys
from pathlib import Path
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.serving import ModelVersion
from ratchet.gates.registry import MlflowRegistry

folder = Path(sys.argv[1])
registry = MlflowRegistry(f"sqlite:///{folder / 'mlflow.db'}", folder)
registry.register(ModelVersion(line="a", number=1, tag="v1", model=fake_model("1"), cycle=None), folder, {}, {"loss": 0.5})
"""
_LOOP = """
[line]
name = "t"
served_model = "t"
[[sources]]
name = "s"
kind = "jsonl"
path = "in.jsonl"
[[rewards]]
name = "final_number"
[[rewards]]
name = "user_feedback"
"""


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, str]:
    """The environment of an operator who set no variable of a library, with an empty home folder."""
    return {name: value for name, value in environment(tmp_path / "home").items() if name not in NO_TELEMETRY}


def test_the_recorder_finds_lookups_and_connections(tmp_path: Path, asked: dict[str, str]) -> None:
    code = (
        "import socket\ntry: socket.create_connection(('192.0.2.1', 9), 1)\nexcept OSError: pass\nsocket.getaddrinfo('outside.invalid', 80)"
    )
    _, found = run_offline([[sys.executable, "-c", code], [sys.executable, "-c", "import socket; socket.socket()"]], tmp_path, asked)
    assert any("'192.0.2.1'" in line for line in found)
    assert any("'outside.invalid'" in line for line in found)


def test_registering_a_version_asks_for_no_outside_address(tmp_path: Path, asked: dict[str, str]) -> None:
    results, found = run_offline([[sys.executable, "-c", _REGISTER, str(tmp_path)]], tmp_path, asked | {"DO_NOT_TRACK": "1"})
    assert [code for code, _ in results] == [0], results
    assert found == []


def test_commands_ask_for_no_outside_address(tmp_path: Path, asked: dict[str, str]) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(JSONL_RECORD))
    loop = tmp_path / "loop.toml"
    loop.write_text(_LOOP)
    model = write_model(tmp_path / "model")
    given = [["check", loop], ["adopt", loop, model, "--by", "ada"], ["ingest", loop], ["status"], ["doctor", loop], ["report"]]
    commands = [[*RATCHET, *map(str, arguments)] for arguments in [*given, ["serve", "--stop", loop]]]
    results, found = run_offline(commands, tmp_path, asked)
    assert [code for code, _ in results] == [0] * len(commands), "\n".join(text for code, text in results if code)
    assert found == []
