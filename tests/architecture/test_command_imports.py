"""Tests that a command that reads or writes a few rows loads none of the large libraries of the service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.contracts.ids import line_stream
from tests.architecture.test_rules import HEAVY
from tests.command import environment
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cli.homes import LOOP, home_of

LARGE = HEAVY | {
    "httpx",
    "boto3",
    "fsspec",
    "s3fs",
    "aiobotocore",
    "fastapi",
    "uvicorn",
    "jinja2",
    "cryptography",
    "google",
    "opentelemetry",
    "jsonschema",
}
TABLES = {"rich"}
"""Only for commands that print a table."""
_PROGRAM = """
import json, sys
from ratchet.flows.cli.main import main
try:
    main(sys.argv[2:])
except SystemExit as ended:
    code = ended.code or 0
with open(sys.argv[1], "w") as file:
    json.dump({"code": code, "modules": sorted({name.partition(".")[0] for name in sys.modules})}, file)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a loop file and the home of its line, which has promoted a version."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    place = {"folder": str(tmp_path), "file": "loop.toml"}
    for stream, rows in sim.ledger.rows.items():
        if stream == line_stream("sim") or stream.startswith("cycle/"):
            rows[0] = rows[0].model_copy(update={"data": {**rows[0].data, **place}})
    home_of(sim, tmp_path)
    (tmp_path / "loop.toml").write_text(LOOP)
    return tmp_path


def loaded(shop: Path, *arguments: str) -> tuple[int, set[str], str]:
    """Run a command in a process of its own. Return its exit code, the packages that it has loaded, and its standard error."""
    command = [sys.executable, "-c", _PROGRAM, str(shop / "report.json"), *arguments]
    ran = subprocess.run(command, cwd=shop, env=environment(shop / "home"), capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads((shop / "report.json").read_text())
    return found["code"], set(found["modules"]), ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "allowed"),
    [
        (["status"], 0, TABLES),
        (["status", "--json"], 0, set()),
        (["approve", "sim"], 2, set()),
        (["logs", "sim"], 0, set()),
        (["freeze", "sim", "--why", "x"], 0, set()),
        (["trigger", "sim"], 0, set()),
        (["rollback", "sim", "--no-wait"], 0, set()),
        (["ingest", "sim"], 0, TABLES),
        (["history", "sim"], 0, TABLES),
        (["explain", "sim"], 0, TABLES),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_short_command_loads_no_large_library(shop: Path, arguments: list[str], code: int, allowed: set[str]) -> None:
    ended, modules, said = loaded(shop, *arguments)
    assert ended == code, said
    assert "click" in modules
    assert not modules & ((LARGE | TABLES) - allowed)
