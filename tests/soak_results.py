"""Writes the results of soak tests to benchmarks/results/soak_service.jsonl, with date and code digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.contracts.ids import digest, digest_file

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("contracts", "runtime", "flows", "local", "materializer", "gates", "router", "k8s", "tests/crash")
"""The packages whose code the tests of the service run."""


def record(name: str, result: Mapping[str, Any]) -> None:
    """Append the result of the soak test `name`: the figures that it measured, or its outcome."""
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    code = digest([[path.relative_to(ROOT).as_posix(), digest_file(path)] for path in files])
    row = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "code": code[:12], "test": name, **result}
    with (ROOT / "benchmarks" / "results" / "soak_service.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
